"""Gemini's and Ollama's own embeddings APIs, as JSON over plain HTTP.

Gemini's tells queries from documents: https://ai.google.dev/api/embeddings. Ollama's can be made to refuse a text that
is too long (https://docs.ollama.com/api/embed), which its OpenAI-compatible API cuts without a trace in the answer.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from memory.embedding.providers.endpoint import TOO_LARGE, Endpoint
from memory.embedding.providers.provider import ProviderUnavailable
from memory.embedding.providers.remote import ReadStatus, RemoteProvider
from schemas.errors import RecalldError, Terminal, TooLarge, Transient

#: Version of Gemini's API, the first part of every path.
VERSION = "v1beta"

#: Task types, and the words before a text by which gemini-embedding-2 knows them: it has no field for them.
#: https://ai.google.dev/gemini-api/docs/embeddings#task-types-embeddings-2
#: A title is never sent: it would make the same words in two notes two texts, each of them paid for.
TASKS = {
    "RETRIEVAL_DOCUMENT": "title: none | text: ",
    "RETRIEVAL_QUERY": "task: search result | query: ",
    "QUESTION_ANSWERING": "task: question answering | query: ",
    "FACT_VERIFICATION": "task: fact checking | query: ",
    "CODE_RETRIEVAL_QUERY": "task: code retrieval | query: ",
    "CLASSIFICATION": "task: classification | query: ",
    "CLUSTERING": "task: clustering | query: ",
    "SEMANTIC_SIMILARITY": "task: sentence similarity | query: ",
}


#: How long Ollama's model stays in memory after a request: loading takes seconds, and its own 5 minutes are shorter
#: than a person's pause between two questions.
_KEEP_ALIVE = "30m"


class JsonProvider(RemoteProvider):
    """Endpoint that takes one JSON body at `path`. `read_status` reads its refusals."""

    path: str
    read_status: ReadStatus | None = None

    def load(self) -> None:
        self.client()

    @abstractmethod
    def _body(self, texts: Sequence[str], kind: str) -> dict[str, object]:
        """Return the body that asks for the vectors of texts; `kind` is "query" or "document"."""

    def _ask(self, texts: Sequence[str], *, kind: str) -> Any:
        _, content = self.fetch("POST", self.path, json=self._body(texts, kind), read_status=self.read_status)
        return json.loads(content)


class GeminiProvider(JsonProvider):
    """Gemini's own API at `base_url`, with or without the version in its path. Input types are names of `TASKS`."""

    def __init__(self, endpoint: Endpoint) -> None:
        for setting in ("query_input_type", "document_input_type"):
            if (task := getattr(endpoint, setting)) not in TASKS:
                raise ProviderUnavailable(
                    f"{setting} {task} is no task type of Gemini", f"name one of {', '.join(TASKS)}"
                )
        root = endpoint.base_url.rstrip("/").removesuffix(f"/{VERSION}")
        super().__init__(replace(endpoint, base_url=root))
        # The quota of a key is one, also for requests through the OpenAI-compatible API.
        self.account = replace(endpoint, base_url=f"{root}/{VERSION}/openai").account
        #: The model's name in paths and bodies.
        self.resource = f"models/{self.model.removeprefix('models/')}"
        self.path = f"/{VERSION}/{self.resource}:batchEmbedContents"

    def request(self, text: str, kind: str) -> dict[str, object]:
        """Return the request for one text's vector; `kind` is "query" or "document"."""
        options = super().options(kind)
        task = str(options.pop("input_type"))
        if self.resource.startswith("models/gemini-embedding-2"):
            text = TASKS[task] + text
        else:
            options["taskType"] = task
        return {"model": self.resource, "content": {"parts": [{"text": text}]}, **options}

    def key_headers(self) -> dict[str, str]:
        return {} if self.endpoint.api_key is None else {"x-goog-api-key": self.endpoint.api_key}

    def _body(self, texts: Sequence[str], kind: str) -> dict[str, object]:
        return {"requests": [self.request(text, kind) for text in texts]}


class OllamaProvider(JsonProvider):
    """An Ollama server at `base_url`, which ends in "/v1", as in the identity of every index so far."""

    path = "/api/embed"

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self.base_url = endpoint.base_url.removesuffix("/v1")
        self.read_status = self._read_status

    def warm_up(self) -> None:
        self.load()

    def read_error(self, error: Exception) -> RecalldError:
        from httpcore2 import ConnectError  # as the client

        if isinstance(error, ConnectError):
            return Transient(
                f"no Ollama answers at {self.base_url}: start it with `ollama serve`, or correct remote.base_url"
            )
        return super().read_error(error)

    def _body(self, texts: Sequence[str], kind: str) -> dict[str, object]:
        always = {"truncate": False, "keep_alive": _KEEP_ALIVE}
        return {"model": self.model, "input": list(texts), **always, **self.options(kind)}

    def _read_status(self, status: int, headers: Mapping[str, str], body: object) -> RecalldError:
        words = str(body.get("error", "")) if isinstance(body, Mapping) else ""
        error = self.errors.of_status(status, headers, body)
        # Versions differ in the status (400, 413, 500) of a text that is too long.
        if status in {400, 500} and TOO_LARGE.search(words):
            return TooLarge(str(error))
        if status == 404 and "not found" in words:
            return Terminal(f"Ollama at {self.base_url} does not have the model: ollama pull {self.model}")
        if "does not support embed" in words:
            return Terminal(f"the model {self.model} of Ollama cannot embed: name an embedding model in `model`")
        return error
