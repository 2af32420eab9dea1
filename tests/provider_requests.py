"""The requests that every remote provider sends, recorded, beside what the provider's documentation asks for.

    python -m tests.provider_requests docs/providers.md

A provider is a `Row` of `ROWS`. The real provider runs against a server that records what arrives.
"""

from __future__ import annotations

import http.server
import json
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from memory.embedding.presets import PRESETS
from memory.embedding.provider import EmbeddingProvider
from memory.embedding.selection import choose_provider
from schemas.machine_sections import Credentials
from schemas.settings import MemorySettings

#: Dimensions of every vector of the recording server.
WIDTH = 256

#: Headers of every HTTP request, and those that an SDK adds about itself.
_USUAL = ("accept", "connection", "content-length", "host", "user-agent", "x-stainless-")

_HEAD = """# Providers: what is sent, and what their documentation asks for

The middle column was recorded from recalld's own requests, with two texts and one query, by
`python -m tests.provider_requests docs/providers.md`; a test compares it with what is sent now. Of the headers only the
names are shown, without those of every HTTP request. The last column says what the provider's documentation asks for.

| Provider | What is sent | What its documentation asks for |
|---|---|---|
"""


@dataclass(frozen=True, slots=True)
class Recorded:
    """One request: its path has the query, `headers` are lower-case names, `body` is parsed JSON or its text."""

    method: str
    path: str
    headers: tuple[str, ...]
    body: Any


class Recording(Protocol):
    """A server that records; `root` is its address without a path."""

    root: str
    log: list[Recorded]


Answer = Callable[[str, Any], Any]


def openai_answer(path: str, body: Any) -> dict[str, Any]:
    """Return an answer in OpenAI's form, which Voyage, Mistral and others share."""
    texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
    return {"data": [{"index": place, "embedding": [1.0] * WIDTH} for place in range(len(texts))]}


@contextmanager
def recording(answer: Answer) -> Iterator[Recording]:
    """Serve on a free port, with the JSON that `answer` makes of a path and a body."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers.get("content-length", 0)))
            server.log.append(recorded(self.command, self.path, self.headers, content))
            payload = json.dumps(answer(self.path, server.log[-1].body)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        do_GET = do_POST  # noqa: N815 - the base class's name

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        listening.daemon_threads = True
        server = _Recording(f"http://127.0.0.1:{listening.server_address[1]}")
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            listening.shutdown()
            thread.join()


@dataclass
class _Recording:
    root: str
    log: list[Recorded] = field(default_factory=list)


def recorded(method: str, path: str, headers: Any, content: bytes) -> Recorded:
    """Return what is kept of a request."""
    names = sorted({name.lower() for name in headers})
    try:
        body: Any = json.loads(content) if content else None
    except ValueError:
        body = content.decode("utf-8", "replace")
    return Recorded(method, path, tuple(name for name in names if not name.startswith(_USUAL)), body)


def documents_and_a_query(provider: EmbeddingProvider) -> None:
    """Embed what every row embeds."""
    provider.embed_documents(["one", "two"])
    provider.embed_query("three")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    `settings` are those of an agent besides the provider's name and its address. `address` is what stands in front of
    the recorded paths, None for the preset's. `asks` is the documentation in our words, `documentation` its address.
    `make` returns the provider for the server's address.
    """

    provider: str
    asks: str
    documentation: str
    settings: dict[str, Any] = field(default_factory=dict)
    title: str = ""
    address: str | None = None
    answer: Answer = openai_answer
    server: Callable[[Answer], AbstractContextManager[Recording]] = recording
    make: Callable[[Row, str], EmbeddingProvider] | None = None
    ask: Callable[[EmbeddingProvider], None] = documents_and_a_query


ROWS: Sequence[Row] = (
    Row(
        "openai",
        "`input` (at most 2,048 texts of 8,192 tokens, 300,000 tokens together), `model`, and optionally `dimensions` "
        "and `encoding_format`; the key as a bearer token.",
        "https://platform.openai.com/docs/api-reference/embeddings/create",
        {"output_dimensionality": WIDTH},
    ),
    Row(
        "voyage",
        "`input` (at most 1,000 texts), `model`, `input_type` `query` or `document` for retrieval, and optionally "
        "`truncation`, `output_dimension` and `encoding_format`; the key as a bearer token.",
        "https://docs.voyageai.com/reference/embeddings-api",
        {"output_dimensionality": WIDTH},
    ),
    Row(
        "mistral",
        "`input`, `model`, and optionally `output_dimension` and `encoding_format`; the key as a bearer token.",
        "https://docs.mistral.ai/api/endpoint/embeddings",
        {"output_dimensionality": WIDTH},
    ),
    Row(
        "ollama",
        "On its OpenAI-compatible route `input`, `model`, and optionally `encoding_format` and `dimensions`; no key.",
        "https://github.com/ollama/ollama/blob/main/docs/api/openai-compatibility.mdx",
    ),
    Row(
        "gemini",
        "On its OpenAI-compatible route `input`, `model` and optionally `dimensions`; the key as a bearer token.",
        "https://ai.google.dev/gemini-api/docs/openai",
        {"output_dimensionality": WIDTH},
    ),
)


def requests_of(row: Row) -> list[Recorded]:
    """Return what the provider of a row sends."""
    with row.server(row.answer) as server:
        provider = (row.make or _chosen)(row, server.root)
        try:
            row.ask(provider)
        finally:
            provider.close()
        return list(server.log)


def document() -> str:
    """Return the whole file with the table."""
    return _HEAD + "".join(map(_line, ROWS))


def _chosen(row: Row, root: str) -> EmbeddingProvider:
    path = urlsplit(PRESETS[row.provider].base_url).path
    settings = {"provider": row.provider, "remote": {"base_url": root + path, "api_key": "a-key"}, **row.settings}
    choice = choose_provider(MemorySettings.model_validate(settings), Credentials())
    if choice.provider is None:
        raise ValueError(choice.error)
    return choice.provider


def _line(row: Row) -> str:
    address = row.address
    if address is None:
        parts = urlsplit(PRESETS[row.provider].base_url)
        address = f"{parts.scheme}://{parts.netloc}"
    said: list[str] = []
    before: tuple[object, ...] = ()
    for request in requests_of(row):
        now = (request.method, request.path, request.headers)
        if now != before:
            said.append(_code(f"{request.method} {address}{request.path}"))
            said.append("headers " + (", ".join(map(_code, request.headers)) or "none"))
        if request.body is not None:
            body = request.body
            said.append(_code(body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)))
        before = now
    cells = (row.title or f"`{row.provider}`", "<br>".join(said), f"{row.asks} [Documentation]({row.documentation})")
    return f"| {' | '.join(cells)} |\n"


def _code(text: str) -> str:
    return f"`{text.strip()}`".replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(document(), encoding="utf-8")
