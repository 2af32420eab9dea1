"""A real HTTP server that speaks Voyage's embeddings API, and misbehaves on request."""

from __future__ import annotations

from typing import Any

from tests.embedding_server import EmbeddingServer, Failure

#: What the API takes; it refuses everything else.
_FIELDS = {"input", "model", "input_type", "truncation", "output_dimension", "output_dtype", "encoding_format"}


class VoyageServer(EmbeddingServer):
    """As its base, with Voyage's names of fields, `{"detail": ...}` for errors and a count of tokens (its words)."""

    def _answer(
        self, path: str, headers: dict[str, str], body: dict[str, Any], inputs: list[str], failure: Failure
    ) -> tuple[int, Any, dict[str, str]]:
        if failure.status is not None and failure.body is None:
            return failure.status, {"detail": failure.message}, failure.headers
        unknown = sorted(set(body) - _FIELDS)
        if unknown:
            return 400, {"detail": f"Argument '{unknown[0]}' is not supported by our API."}, {}
        asked = {**body, "dimensions": body.get("output_dimension")}
        status, answer, extra = super()._answer(path, headers, asked, inputs, failure)
        if status == 200 and isinstance(answer, dict) and failure.changed is None:
            answer["usage"] = {"total_tokens": sum(len(text.split()) for text in inputs)}
        elif status >= 400 and isinstance(answer, dict) and failure.status is None:
            # Too many inputs or tokens are 400 here.
            status, answer = 400 if status == 413 else status, {"detail": answer["error"]["message"]}
        return status, answer, extra
