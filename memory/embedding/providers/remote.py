"""Providers behind an HTTP API: one guarded client, bounds of a request, and one reading of answers and errors.

`memory.embedding.providers.transport` applies the bounds of an `Exchange` to every byte, under every provider's SDK.
"""

from __future__ import annotations

import binascii
import json
import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from memory.embedding.providers.endpoint import Endpoint, ErrorReader
from memory.embedding.providers.exchange import Exchange, Oversized
from memory.embedding.providers.provider import EmbeddingProvider, Embeddings, clean, cut_to_bytes
from schemas.errors import Permanent, RecalldError, Terminal, Unusable
from schemas.lazy_module import LazyModule
from schemas.version import install_command

if TYPE_CHECKING:
    import httpx2
    import numpy as np
else:
    np = LazyModule("numpy")


#: Dimensions of an answer as long as a model's are not known; 4,096 is the most of models in wide use.
_MOST_DIMENSIONS = 4096

#: Bytes of an answer besides its vectors, of one vector besides its numbers, and of a number written out in JSON.
_ENVELOPE_BYTES = 1_000_000
_ENTRY_BYTES = 512
_NUMBER_BYTES = 32

#: Objects and lists of an answer besides its vectors, and of one vector. An empty list of 3 bytes takes 64 in memory.
_ENVELOPE_NODES = 1000
_ENTRY_NODES = 8


#: Function that returns the error of an answer with this status, headers and body.
ReadStatus = Callable[[int, Mapping[str, str], object], RecalldError]


#: Raised by readers of an answer that is something else.
NO_ANSWER = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)


def read_answer(answer: Any, *, expected: int) -> Embeddings:
    """Return the vectors of a parsed body in the order of their inputs, and the tokens it counted.

    They stand in `data` with an index each (OpenAI and compatible, Voyage), in `embeddings` (Ollama; Gemini with
    `values`, Cohere with `float` between), or in `embedding` (Titan, and lines of Gemini's jobs). One is base64 of
    little-endian float32, or a list of numbers.

    Raises:
        Unusable: not one vector for each input.
        One of NO_ANSWER: it holds no embeddings.
    """
    if "data" in answer:
        order = [entry.get("index", place) for place, entry in enumerate(answer["data"])]
        embeddings = [entry["embedding"] for entry in answer["data"]]
    else:
        embeddings = [answer["embedding"]] if "embedding" in answer else answer["embeddings"]
        embeddings = embeddings["float"] if isinstance(embeddings, Mapping) else embeddings
        order = list(range(len(embeddings)))
    rows = [_row(embedding["values"] if isinstance(embedding, Mapping) else embedding) for embedding in embeddings]
    if len(rows) != expected:
        raise Unusable(f"the endpoint returned {len(rows)} vectors for {expected} texts")
    # `False` is an int and equal to 0.
    if not all(type(place) is int for place in order) or sorted(order) != list(range(expected)):
        raise Unusable("the endpoint returned vectors whose index fields do not match the texts")
    widths = {row.shape[0] for row in rows}
    if len(widths) != 1:
        raise Unusable(f"the endpoint returned vectors of different dimensions: {sorted(widths)}")
    matrix = np.empty((expected, widths.pop()), dtype=np.float32)
    for place, row in zip(order, rows, strict=True):
        matrix[place] = row
    counts = (_within(answer, "usage", "total_tokens"), _within(answer, "usageMetadata", "promptTokenCount"))
    tokens = next((count for count in (*counts, answer.get("prompt_eval_count")) if count is not None), None)
    return Embeddings(matrix, tokens if type(tokens) is int and tokens > 0 else None)


def _within(answer: Mapping[str, Any], name: str, inner: str) -> Any:
    facts = answer.get(name)
    return facts.get(inner) if isinstance(facts, Mapping) else None


def _row(embedding: object) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    if isinstance(embedding, str):
        return np.frombuffer(binascii.a2b_base64(embedding), dtype="<f4")
    if not isinstance(embedding, list):
        raise TypeError("an embedding is neither base64 nor a list")
    # A null among the numbers becomes NaN, which is dealt with row by row.
    row: np.ndarray[tuple[int], np.dtype[np.float32]] = np.array(embedding, dtype=np.float32)
    if row.ndim != 1 or not row.size:
        raise TypeError("an embedding is a list of lists, or empty")
    return row


class RemoteProvider(EmbeddingProvider):
    """An embedding endpoint. `extra` installs the SDK."""

    extra: ClassVar[str] = "openai"

    #: Form of the vectors that is asked for; "float" from the moment on when the server did not know base64.
    encoding = "base64"

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.name, self.model, self.base_url = endpoint.name, endpoint.model, endpoint.base_url
        self.identity, self.account, self.address = endpoint.identity, endpoint.account, endpoint.address
        # A chunk and its prefix are one input; half is left to the text, however long the prefix is.
        most = endpoint.limits.input_bytes
        room = max(most // 2, most - len(endpoint.document_prefix.encode()))
        self.limits = replace(endpoint.limits, input_bytes=room)
        # Without a key both SDKs would look for one in the environment.
        self.api_key = endpoint.api_key or "unused"
        self.errors = ErrorReader(endpoint)
        self._making = threading.Lock()
        self._client: httpx2.Client | None = None
        self._closed = False
        #: Dimensions of the last good answer.
        self._width: int | None = None

    def embed_documents(self, texts: Sequence[str]) -> Embeddings:
        return self._embed([self.prefixed(text, "document") for text in texts], kind="document")

    def embed_query(self, text: str) -> Embeddings:
        fitting = cut_to_bytes(clean(text).strip(), self.limits.input_bytes)
        if not fitting:
            raise Permanent("there is nothing to embed in an empty query")
        return self._embed([self.prefixed(fitting, "query")], kind="query")

    def of_width(self, width: int) -> RemoteProvider:
        """Return the same provider with an identity of its own, for vectors of another width."""
        return type(self)(replace(self.endpoint, width=width))

    def close(self) -> None:
        with self._making:
            self._closed = True
            if self._client is not None:
                self._client.close()
                self._client = None

    @abstractmethod
    def load(self) -> Any:
        """Return the SDK, or its client, ready to be used.

        Raises:
            Terminal: a package is not installed.
        """

    @abstractmethod
    def _ask(self, texts: Sequence[str], *, kind: str) -> Any:
        """Return the parsed body of the endpoint's answer to one request; raise one of NO_ANSWER for another body."""

    def prefixed(self, text: str, kind: str) -> str:
        """Return a text as it is sent; `kind` is "query" or "document"."""
        return (self.endpoint.query_prefix if kind == "query" else self.endpoint.document_prefix) + clean(text)

    def options(self, kind: str) -> dict[str, object]:
        """Return the fields that the settings add to a request besides the model; `kind` is "query" or "document"."""
        endpoint = self.endpoint
        options = {
            endpoint.dimensions_field: endpoint.dimensions,
            "input_type": endpoint.query_input_type if kind == "query" else endpoint.document_input_type,
        }
        return {name: value for name, value in options.items() if value is not None}

    def key_headers(self) -> dict[str, str]:
        """Return the headers that hold the key."""
        return {"Authorization": f"Bearer {self.api_key}"}

    def answer_bytes(self, texts: int) -> int:
        """Return the most bytes that the endpoint's vectors of so many texts can have."""
        dimensions = self.endpoint.dimensions or self._width or _MOST_DIMENSIONS
        return _ENVELOPE_BYTES + texts * (_ENTRY_BYTES + _NUMBER_BYTES * dimensions)

    def exchange(self, *, seconds: float, answer_bytes: int, **bounds: Any) -> Exchange:
        """Return an `Exchange` with the endpoint; `bounds` are its further ones."""
        return Exchange(f"{self.name} at {self.address}", seconds=seconds, answer_bytes=answer_bytes, **bounds)

    def client(self) -> httpx2.Client:
        """Return the client that leads to the endpoint. It is closed with the provider.

        Raises:
            Terminal: a package is not installed.
        """
        with self._making:
            if self._client is None:
                try:
                    from memory.embedding.providers.transport import connect  # keyword searches do without
                except ImportError as error:
                    raise self.missing(str(error.name)) from error
                # A request that is tried again after `close` makes a client that nothing else closes.
                self._client = connect(self.base_url, keeps_connections=not self._closed)
            return self._client

    def send(self, method: str, path: str, *, read_status: ReadStatus | None = None, **options: Any) -> httpx2.Response:
        """Send a request to a path of the API, with key and headers; `options` are those of `Client.build_request`.

        The body of the response is not read yet; the caller closes the response. `read_status` returns the error of
        a status that is no success, if not the usual one.

        Raises:
            RecalldError: there was no answer, or it was no success.
        """
        client, url = self.client(), f"{self.base_url.rstrip('/')}{path}"
        headers = {**self.key_headers(), **options.pop("headers", {}), **self.endpoint.headers}
        try:
            response = client.send(client.build_request(method, url, headers=headers, **options), stream=True)
            if response.is_success:
                return response
            body = _body(response.read())
        except Exception as error:
            raise self.read_error(error) from error
        raise (read_status or self.errors.of_status)(response.status_code, response.headers, body)

    def fetch(self, method: str, path: str, **options: Any) -> tuple[Mapping[str, str], bytes]:
        """Return headers and content of an answer. Parameters and errors are those of `send`."""
        response = self.send(method, path, **options)
        try:
            return response.headers, response.read()
        except Exception as error:
            raise self.read_error(error) from error
        finally:
            response.close()

    def reach(self, *, seconds: float) -> None:
        try:
            from memory.embedding.providers.transport import no_answer
        except ImportError:
            return  # the first request says so
        exchange = self.exchange(seconds=seconds, answer_bytes=_ENVELOPE_BYTES)
        if (error := no_answer(self.base_url, exchange)) is not None:
            raise self.read_error(error)

    def missing(self, package: str) -> Terminal:
        """Return the error for a package that is not installed."""
        return Terminal(f"the {package} package is not installed: {install_command(self.extra)}")

    def read_error(self, error: Exception) -> RecalldError:
        """Return the error for an exception of an SDK or of the client."""
        status = getattr(error, "status_code", None)
        if isinstance(status, int):
            headers: Mapping[str, str] = getattr(getattr(error, "response", None), "headers", {})
            return self.errors.of_status(status, headers, getattr(error, "body", None))
        # An SDK wraps the errors of the transport.
        return next(
            (cause for cause in (error, error.__cause__) if isinstance(cause, RecalldError)),
            self.errors.of_connection(error.__cause__ or error),
        )

    def _embed(self, texts: list[str], *, kind: str) -> Embeddings:
        self.load()
        exchange = self.exchange(
            seconds=self.endpoint.seconds(kind),
            setting="remote.query_timeout_seconds" if kind == "query" else "remote.timeout_seconds",
            answer_bytes=self.answer_bytes(len(texts)),
            nodes=_ENVELOPE_NODES + _ENTRY_NODES * len(texts),
        )
        try:
            with exchange.running():
                answer = read_answer(self._ask(texts, kind=kind), expected=len(texts))
        except NO_ANSWER as error:
            raise Unusable(
                "the endpoint's answer holds no embeddings: see that remote.base_url is an address of its API"
            ) from error
        except Oversized:
            # The dimensions that were learned may be those of a bad answer.
            self._width = None
            raise
        except RecalldError as error:
            if exchange.accepted and not isinstance(error, Unusable):
                raise Unusable(str(error)) from error
            raise
        width, expected = answer.vectors.shape[1], self.endpoint.dimensions or self.endpoint.width
        if expected is not None and width != expected:
            reason = f"{self.name} returned vectors of {width} dimensions instead of {expected}"
            if self.endpoint.dimensions is not None:
                reason += f": the model {self.model} does not support output_dimensionality, unset it"
            raise Unusable(reason, got=width, expected=expected)
        self._width = width
        return answer


def _body(content: bytes) -> object:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return content.decode("utf-8", "replace")
