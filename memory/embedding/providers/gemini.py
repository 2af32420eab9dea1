"""Gemini's embeddings over its own API, which tells queries from documents: https://ai.google.dev/api/embeddings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from memory.embedding.providers.endpoint import Endpoint
from memory.embedding.providers.remote import RemoteProvider, no_embeddings

if TYPE_CHECKING:
    import httpx2


#: Version of the API, the first part of every path.
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


class GeminiProvider(RemoteProvider):
    """Gemini's own API at `base_url`, with or without the version in its path. Input types are names of `TASKS`."""

    def __init__(self, endpoint: Endpoint) -> None:
        root = endpoint.base_url.rstrip("/").removesuffix(f"/{VERSION}")
        super().__init__(replace(endpoint, base_url=root))
        # The quota of a key is one, also for requests through the OpenAI-compatible API.
        self.account = replace(endpoint, base_url=f"{root}/{VERSION}/openai").account

    @property
    def resource(self) -> str:
        """The model's name in paths and bodies."""
        return f"models/{self.model.removeprefix('models/')}"

    def request(self, text: str, kind: str) -> dict[str, object]:
        """Return what asks for one text's vector; `kind` is "query" or "document"."""
        options = super().options(kind)
        task = str(options.pop("input_type"))
        if self.resource.startswith("models/gemini-embedding-2"):
            text = TASKS[task] + text
        else:
            options["taskType"] = task
        return {"model": self.resource, "content": {"parts": [{"text": text}]}, **options}

    def key_headers(self) -> dict[str, str]:
        return {} if self.endpoint.api_key is None else {"x-goog-api-key": self.endpoint.api_key}

    def _ask(self, texts: Sequence[str], *, kind: str) -> Any:
        body = {"requests": [self.request(text, kind) for text in texts]}
        _, content = self.fetch("POST", f"/{VERSION}/{self.resource}:batchEmbedContents", json=body)
        try:
            return as_openai(json.loads(content))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise no_embeddings() from error

    def _load(self) -> httpx2.Client:
        return self.client()


def as_openai(answer: Any) -> dict[str, object]:
    """Return an answer of Gemini in the form of OpenAI's: its vectors, and the tokens where it counts them.

    Raises:
        KeyError, TypeError, AttributeError: it is no answer with vectors.
    """
    return {
        "data": [{"embedding": one["values"]} for one in answer["embeddings"]],
        "usage": {"total_tokens": (answer.get("usageMetadata") or {}).get("promptTokenCount")},
    }
