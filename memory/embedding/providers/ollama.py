"""Ollama's own embeddings API, https://docs.ollama.com/api/embed.

Its OpenAI-compatible API cuts a text that is too long for the model, and nothing in the answer says so. This one can
be told to refuse it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from memory.embedding.providers.endpoint import TOO_LARGE, Endpoint
from memory.embedding.providers.remote import RemoteProvider, no_embeddings
from schemas.errors import RecalldError, Terminal, TooLarge, Transient

#: How long the model stays in memory after a request: loading takes seconds, and Ollama's own 5 minutes are shorter
#: than a person's pause between two questions.
_KEEP_ALIVE = "30m"


class OllamaProvider(RemoteProvider):
    """An Ollama server at `base_url`, which ends in "/v1", as in the identity of every index so far."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self.base_url = endpoint.base_url.removesuffix("/v1")

    def warm_up(self) -> None:
        self._load()

    def read_error(self, error: Exception) -> RecalldError:
        from httpcore2 import ConnectError  # as the client

        if isinstance(error, ConnectError):
            return Transient(
                f"no Ollama answers at {self.base_url}: start it with `ollama serve`, or correct remote.base_url"
            )
        return super().read_error(error)

    def _load(self) -> None:
        self.client()

    def _ask(self, texts: Sequence[str], *, kind: str) -> Any:
        body = {
            "model": self.model,
            "input": list(texts),
            "truncate": False,
            "keep_alive": _KEEP_ALIVE,
            **self.options(kind),
        }
        _, content = self.fetch("POST", "/api/embed", json=body, read_status=self._read_status)
        try:
            answer = json.loads(content)
            rows = [{"embedding": row} for row in answer["embeddings"]]
        except (ValueError, RecursionError, KeyError, TypeError) as error:
            raise no_embeddings() from error
        return {"data": rows, "usage": {"total_tokens": answer.get("prompt_eval_count")}}

    def _read_status(self, status: int, headers: Mapping[str, str], body: object) -> RecalldError:
        words = str(body.get("error", "")) if isinstance(body, Mapping) else ""
        known = self.errors.of_status(status, headers, body)
        # Versions differ in the status (400, 413, 500) of a text that is too long.
        if status in {400, 500} and TOO_LARGE.search(words):
            return TooLarge(str(known))
        if status == 404 and "not found" in words:
            return Terminal(f"Ollama at {self.base_url} does not have the model: ollama pull {self.model}")
        if "does not support embed" in words:
            return Terminal(f"the model {self.model} of Ollama cannot embed: name an embedding model in `model`")
        return known
