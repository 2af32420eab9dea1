"""Any endpoint that speaks OpenAI's embeddings API, through the openai SDK."""

from __future__ import annotations

import importlib
import json
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from memory.embedding.answers import check_dimensions, no_embeddings, read_answer
from memory.embedding.endpoint import account_of, identity_of, normalised_url
from memory.embedding.endpoint_errors import ErrorReader
from memory.embedding.provider import EmbeddingProvider, Embeddings, ProviderLimits
from memory.embedding.wording import clean, cut_to_bytes
from schemas.errors import Permanent, RecalldError, Terminal

if TYPE_CHECKING:
    from openai import OpenAI

    from memory.embedding.batch_api import BatchApi

CONNECT_SECONDS = 10.0
DOCUMENTS_SECONDS = 120.0
QUERY_SECONDS = 15.0

#: The SDK wants a key even where the server does not.
_NO_KEY = "unused"


class OpenAIProvider(EmbeddingProvider):
    """An OpenAI-compatible endpoint.

    `dimensions` is asked for only when given, as `dimensions_field`. `query_input_type` and `document_input_type`
    are sent as `input_type`, for models that tell them apart. `key_name` is what messages call the key.
    """

    def __init__(
        self,
        *,
        name: str,
        model: str,
        base_url: str,
        api_key: str | None,
        key_name: str,
        limits: ProviderLimits,
        dimensions: int | None = None,
        dimensions_field: str = "dimensions",
        headers: Mapping[str, str] | None = None,
        query_input_type: str | None = None,
        document_input_type: str | None = None,
    ) -> None:
        self.name = name
        self.model = model
        self.limits = limits
        self.identity = identity_of(
            provider=name,
            model=model,
            base_url=base_url,
            dimensions=dimensions,
            query_input_type=query_input_type,
            document_input_type=document_input_type,
            headers=headers,
        )
        self.account = account_of(base_url=base_url, api_key=api_key, headers=headers)
        self.address = normalised_url(base_url)
        self._base_url = base_url
        self._api_key = api_key
        self._dimensions = dimensions
        self._dimensions_field = dimensions_field
        self._headers = dict(headers or {})
        self._input_types = {"query": query_input_type, "document": document_input_type}
        self._errors = ErrorReader(
            name=name, model=model, base_url=base_url, key_name=key_name, api_key=api_key, headers=self._headers
        )
        #: "float" from the moment on when the server did not know base64.
        self.encoding = "base64"
        self._making = threading.Lock()
        self._client: OpenAI | None = None

    def embed_documents(self, texts: Sequence[str]) -> Embeddings:
        return self._embed([clean(text) for text in texts], kind="document", seconds=DOCUMENTS_SECONDS)

    def embed_query(self, text: str) -> Embeddings:
        fitting = cut_to_bytes(clean(text).strip(), self.limits.input_bytes)
        if not fitting:
            raise Permanent("there is nothing to embed in an empty query")
        return self._embed([fitting], kind="query", seconds=QUERY_SECONDS)

    def batch_api(self) -> BatchApi | None:
        # Gemini takes the file of a job over its own protocol only, Mistral's jobs have another form, Ollama has none.
        if self.name != "openai":
            return None
        from memory.embedding.openai_batches import OpenAIBatches  # queries do without

        return OpenAIBatches(self)

    def close(self) -> None:
        with self._making:
            if self._client is not None:
                self._client.close()
                self._client = None

    def _embed(self, texts: list[str], *, kind: str, seconds: float) -> Embeddings:
        encoding = self.encoding
        try:
            content = self._post(texts, kind=kind, seconds=seconds, encoding=encoding)
        except Permanent as error:
            if encoding != "base64" or "encoding_format" not in error.reason:
                raise
            # A server that does not know base64: plain numbers from now on.
            self.encoding = "float"
            content = self._post(texts, kind=kind, seconds=seconds, encoding="float")
        answer = read_answer(_parsed(content), expected=len(texts))
        return check_dimensions(answer, asked=self._dimensions, name=self.name, model=self.model)

    def _post(self, texts: list[str], *, kind: str, seconds: float, encoding: str) -> bytes:
        client = self.client()
        openai = importlib.import_module("openai")
        try:
            # Raw: the SDK would build a Python object for every number, three times the time of all the rest.
            response = client.embeddings.with_raw_response.create(
                input=texts,
                model=self.model,
                encoding_format=encoding,  # type: ignore[arg-type] # one of its two literals
                timeout=openai.Timeout(seconds, connect=CONNECT_SECONDS),
                extra_body=self.options(kind) or None,
            )
            content: bytes = response.content
        except Exception as error:
            raise self.read_error(error) from error
        return content

    def options(self, kind: str) -> dict[str, object]:
        """What the settings add to a request besides the model; `kind` is "query" or "document"."""
        options: dict[str, object] = {}
        if self._dimensions is not None:
            options[self._dimensions_field] = self._dimensions
        if self._input_types[kind] is not None:
            options["input_type"] = self._input_types[kind]
        return options

    def read_error(self, error: Exception) -> RecalldError:
        """What to raise for an exception of the SDK."""
        status = getattr(error, "status_code", None)
        if isinstance(status, int):
            headers: Mapping[str, str] = getattr(getattr(error, "response", None), "headers", {})
            return self._errors.of_status(status, headers, getattr(error, "body", None))
        return self._errors.of_connection(error.__cause__ or error, timed_out="Timeout" in type(error).__name__)

    def client(self) -> OpenAI:
        """The SDK's client, connected to the endpoint with its key. It is closed with the provider.

        Raises:
            Terminal: the openai package is not installed.
        """
        with self._making:
            if self._client is None:
                try:
                    openai = importlib.import_module("openai")
                except ImportError as error:
                    raise Terminal('the openai package is not installed: pip install "recalld[openai]"') from error
                client: OpenAI = openai.OpenAI(
                    api_key=self._api_key or _NO_KEY,
                    base_url=self._base_url,
                    max_retries=0,  # one owner for retries: the batcher
                    timeout=openai.Timeout(DOCUMENTS_SECONDS, connect=CONNECT_SECONDS),
                    default_headers=self._headers,
                )
                # The SDK takes these from the environment; they are none of another endpoint's business.
                client.organization = client.project = None
                self._client = client
            return self._client


def _parsed(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise no_embeddings() from error
