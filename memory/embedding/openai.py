"""Any endpoint that speaks OpenAI's embeddings API, through the openai SDK."""

from __future__ import annotations

import binascii
import importlib
import json
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from memory.embedding.endpoint import identity_of
from memory.embedding.openai_errors import ErrorReader
from memory.embedding.provider import EmbeddingProvider, Matrix, ProviderLimits
from memory.embedding.wording import clean, cut_to_bytes
from schemas.errors import Permanent, RecalldError, Terminal, Transient

if TYPE_CHECKING:
    from openai import OpenAI

CONNECT_SECONDS = 10.0
DOCUMENTS_SECONDS = 120.0
QUERY_SECONDS = 15.0

#: The SDK wants a key even where the server does not.
_NO_KEY = "unused"


class OpenAIProvider(EmbeddingProvider):
    """An OpenAI-compatible endpoint.

    `dimensions` is asked for only when given. `query_input_type` and `document_input_type` are sent as
    `input_type`, for models that tell them apart. `key_name` is what messages call the key.
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
        self._base_url = base_url
        self._api_key = api_key
        self._dimensions = dimensions
        self._headers = dict(headers or {})
        self._input_types = {"query": query_input_type, "document": document_input_type}
        self._errors = ErrorReader(
            name=name, model=model, base_url=base_url, key_name=key_name, api_key=api_key, headers=self._headers
        )
        self._encoding = "base64"
        self._making = threading.Lock()
        self._client: OpenAI | None = None

    def embed_documents(self, texts: Sequence[str]) -> Matrix:
        return self._embed([clean(text) for text in texts], kind="document", seconds=DOCUMENTS_SECONDS)

    def embed_query(self, text: str) -> Matrix:
        fitting = cut_to_bytes(clean(text).strip(), self.limits.input_bytes)
        if not fitting:
            raise Permanent("there is nothing to embed in an empty query")
        return self._embed([fitting], kind="query", seconds=QUERY_SECONDS)

    def close(self) -> None:
        with self._making:
            if self._client is not None:
                self._client.close()
                self._client = None

    def _embed(self, texts: list[str], *, kind: str, seconds: float) -> Matrix:
        encoding = self._encoding
        try:
            content = self._post(texts, kind=kind, seconds=seconds, encoding=encoding)
        except Permanent as error:
            if encoding != "base64" or "encoding_format" not in error.reason:
                raise
            # A server that does not know base64: plain numbers from now on.
            self._encoding = "float"
            content = self._post(texts, kind=kind, seconds=seconds, encoding="float")
        matrix = _parse(content, expected=len(texts))
        if self._dimensions is not None and matrix.shape[1] != self._dimensions:
            raise Terminal(
                f"{self.name} returned {matrix.shape[1]} dimensions though {self._dimensions} were asked for: "
                f"the model {self.model} does not support output_dimensionality, unset it"
            )
        return matrix

    def _post(self, texts: list[str], *, kind: str, seconds: float, encoding: str) -> bytes:
        client = self._connected()
        openai = importlib.import_module("openai")
        options: dict[str, Any] = {}
        if self._dimensions is not None:
            options["dimensions"] = self._dimensions
        if self._input_types[kind] is not None:
            options["extra_body"] = {"input_type": self._input_types[kind]}
        try:
            # Raw: the SDK would build a Python object for every number, three times the time of all the rest.
            response = client.embeddings.with_raw_response.create(
                input=texts,
                model=self.model,
                encoding_format=encoding,  # type: ignore[arg-type] # one of its two literals
                timeout=openai.Timeout(seconds, connect=CONNECT_SECONDS),
                **options,
            )
            content: bytes = response.content
        except RecalldError:
            raise
        except Exception as error:
            raise self._errors.read(error) from error
        return content

    def _connected(self) -> OpenAI:
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


def _parse(content: bytes, *, expected: int) -> Matrix:
    """The vectors of a response body in the order of their inputs, shape (expected, dimensions).

    Raises:
        Transient: not an embeddings response, or not one vector for each input.
    """
    try:
        answer = json.loads(content)
        data = answer["data"]
        order = [entry.get("index", place) for place, entry in enumerate(data)]
        rows = [_row(entry["embedding"]) for entry in data]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Transient(
            "the endpoint's answer holds no embeddings: see that remote.base_url is an OpenAI-compatible API"
        ) from error
    if len(rows) != expected:
        raise Transient(f"the endpoint returned {len(rows)} vectors for {expected} texts")
    if sorted(order) != list(range(expected)):
        raise Transient("the endpoint returned vectors whose index fields do not match the texts")
    widths = {row.shape[0] for row in rows}
    if len(widths) != 1:
        raise Transient(f"the endpoint returned vectors of different dimensions: {sorted(widths)}")
    matrix = np.empty((expected, widths.pop()), dtype=np.float32)
    for place, row in zip(order, rows, strict=True):
        matrix[place] = row
    return matrix


def _row(embedding: object) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    if isinstance(embedding, str):
        return np.frombuffer(binascii.a2b_base64(embedding), dtype="<f4")
    if not isinstance(embedding, list):
        raise TypeError("an embedding is neither base64 nor a list")
    # A null among the numbers becomes NaN, which is dealt with row by row.
    return np.array(embedding, dtype=np.float32)
