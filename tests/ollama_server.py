"""A real HTTP server that speaks Ollama's own API, as its `server/routes.go` does, and misbehaves on request."""

from __future__ import annotations

from typing import Any

from tests.embedding_server import EmbeddingServer, Failure


class OllamaServer(EmbeddingServer):
    """As its base. It has the `pulled` models; a text of more than `context` bytes is cut, or refused with `status`.

    `cut` counts the texts that it cut without a word.
    """

    def __init__(self, *, pulled: tuple[str, ...] = (), context: int = 2048, status: int = 400, **options: Any) -> None:
        super().__init__(**options)
        self.pulled = pulled
        self.context = context
        self.status = status
        self.cut = 0

    def _answer(
        self, path: str, headers: dict[str, str], body: dict[str, Any], inputs: list[str], failure: Failure
    ) -> tuple[int, Any, dict[str, str]]:
        if path != "/api/embed":
            return 404, b"404 page not found", {}
        if body["model"] not in self.pulled:
            return 404, {"error": f"model '{body['model']}' not found"}, {}
        if failure.status is not None:
            return failure.status, {"error": failure.message}, failure.headers
        too_long = [text for text in inputs if len(text.encode()) > self.context]
        if too_long and body.get("truncate") is False:
            return self.status, {"error": "the input length exceeds the context length"}, {}
        self.cut += len(too_long)
        status, answer, extra = super()._answer("/v1/embeddings", headers, body, inputs, failure)
        if status == 200 and isinstance(answer, dict):
            rows = [entry["embedding"] for entry in answer["data"]]
            answer = {"model": body["model"], "embeddings": rows, "prompt_eval_count": 3 * len(rows)}
        return status, answer, extra
