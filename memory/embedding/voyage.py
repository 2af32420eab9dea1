"""Voyage AI's embeddings, through the voyageai SDK."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from memory.embedding.answers import check_dimensions, no_embeddings, read_answer
from memory.embedding.endpoint import account_of, identity_of, normalised_url
from memory.embedding.endpoint_errors import ErrorReader
from memory.embedding.presets import PRESETS
from memory.embedding.provider import EmbeddingProvider, Embeddings, ProviderLimits
from memory.embedding.voyage_session import asking, load_sdk, make_session
from memory.embedding.wording import clean, cut_to_bytes
from schemas.errors import Permanent, RecalldError

if TYPE_CHECKING:
    from memory.embedding.batch_api import BatchApi

CONNECT_SECONDS = 10.0
DOCUMENTS_SECONDS = 120.0
QUERY_SECONDS = 15.0

#: Keys that begin with "al-" are MongoDB Atlas's; the SDK sends them here, too.
_ATLAS_URL = "https://ai.mongodb.com/v1"

#: Without a key the SDK would look for one in the environment.
_NO_KEY = "unused"


class VoyageProvider(EmbeddingProvider):
    """Voyage AI, or a server that speaks its API at `base_url` (None: the service itself).

    `dimensions` is asked for only when given. Every request says whether it holds queries or documents.
    """

    name = "voyage"

    def __init__(
        self,
        *,
        model: str,
        api_key: str | None,
        key_name: str,
        limits: ProviderLimits,
        base_url: str | None = None,
        dimensions: int | None = None,
        headers: Mapping[str, str] | None = None,
        query_input_type: str | None = "query",
        document_input_type: str | None = "document",
    ) -> None:
        self.model = model
        self.limits = limits
        # Which of the service's two addresses it is follows from the key, so it is not part of the identity.
        self.identity = identity_of(
            provider=self.name,
            model=model,
            base_url=base_url or PRESETS[self.name].base_url,
            dimensions=dimensions,
            query_input_type=query_input_type,
            document_input_type=document_input_type,
            headers=headers,
        )
        self._base_url = (base_url or service_url(api_key)).rstrip("/")
        self.address = normalised_url(self._base_url)
        self.account = account_of(base_url=self._base_url, api_key=api_key, headers=headers)
        self._api_key = api_key
        self._dimensions = dimensions
        self._headers = dict(headers or {})
        self._input_types = {"query": query_input_type, "document": document_input_type}
        self._errors = ErrorReader(
            name=self.name,
            model=model,
            base_url=self._base_url,
            key_name=key_name,
            api_key=api_key,
            headers=self._headers,
        )
        self._making = threading.Lock()
        self._session: Any = None
        self._batches: BatchApi | None = None

    def embed_documents(self, texts: Sequence[str]) -> Embeddings:
        return self._embed([clean(text) for text in texts], kind="document", seconds=DOCUMENTS_SECONDS)

    def embed_query(self, text: str) -> Embeddings:
        fitting = cut_to_bytes(clean(text).strip(), self.limits.input_bytes)
        if not fitting:
            raise Permanent("there is nothing to embed in an empty query")
        return self._embed([fitting], kind="query", seconds=QUERY_SECONDS)

    def batch_api(self) -> BatchApi:
        from memory.embedding.voyage_batches import VoyageBatches  # queries do without

        with self._making:
            if self._batches is None:
                self._batches = VoyageBatches(
                    base_url=self._base_url,
                    api_key=self._api_key,
                    headers=self._headers,
                    options=self.options("document"),
                    errors=self._errors,
                )
            return self._batches

    def warm_up(self) -> None:
        load_sdk()

    def close(self) -> None:
        with self._making:
            if self._session is not None:
                self._session.close()
                self._session = None

    def options(self, kind: str) -> dict[str, object]:
        """The fields of a request that the settings decide, without the inputs; `kind` is "query" or "document"."""
        options: dict[str, object] = {
            "model": self.model,
            # What is too long is refused, and listed. Cut, it would be found by its beginning only, and nobody told.
            "truncation": False,
        }
        if self._input_types[kind] is not None:
            options["input_type"] = self._input_types[kind]
        if self._dimensions is not None:
            options["output_dimension"] = self._dimensions
        return options

    def _embed(self, texts: list[str], *, kind: str, seconds: float) -> Embeddings:
        body = self._post({"input": texts, "encoding_format": "base64", **self.options(kind)}, seconds=seconds)
        answer = read_answer(body, expected=len(texts))
        return check_dimensions(answer, asked=self._dimensions, name=self.name, model=self.model)

    def _post(self, params: Mapping[str, object], *, seconds: float) -> Any:
        voyageai = load_sdk()
        try:
            with asking(self._connected()):
                # Not through `Client.embed`: it would make a Python object of every number.
                return voyageai.Embedding.create(
                    api_key=self._api_key or _NO_KEY,
                    base_url=self._base_url,
                    request_timeout=(CONNECT_SECONDS, seconds),
                    **params,
                )
        except RecalldError:
            raise
        except Exception as error:
            raise self._read(voyageai, error) from error

    def _read(self, voyageai: Any, error: Exception) -> RecalldError:
        if isinstance(error, (voyageai.error.APIError, ValueError, RecursionError)):
            # Refusals never come this far, the session raises them: this is an answer that is no JSON.
            return no_embeddings()
        timed_out = isinstance(error, voyageai.error.Timeout)
        return self._errors.of_connection(error.__cause__ or error, timed_out=timed_out)

    def _connected(self) -> Any:
        with self._making:
            if self._session is None:
                self._session = make_session(headers=self._headers, read_status=self._errors.of_status)
            return self._session


def service_url(api_key: str | None) -> str:
    """Where the service is for this key."""
    return _ATLAS_URL if (api_key or "").startswith("al-") else PRESETS["voyage"].base_url
