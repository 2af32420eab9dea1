"""The requests that every remote provider sends, recorded for the middle column of the table of a page.

    python -m tests.provider_requests docs/providers.md

A provider is a `Row` of `ROWS`. The real provider runs against a server that records what arrives. What the provider's
documentation asks for is written in the page.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import urlsplit

from memory.embedding.batch_jobs.batch_api import batch_api_of
from memory.embedding.batch_jobs.batch_ledger import Stage
from memory.embedding.providers.presets import PRESETS
from memory.embedding.providers.provider import EmbeddingProvider
from memory.embedding.selection import choose_provider
from schemas.settings import Credentials, MemorySettings
from tests.batch_server import BatchServer, GeminiServer, form
from tests.embedding_server import EmbeddingServer, Request

#: Dimensions of every vector of the recording server.
WIDTH = 256

#: Headers of every HTTP request, and those that an SDK adds about itself.
_USUAL = ("accept", "connection", "content-length", "host", "user-agent", "x-stainless-")

#: What boto3 takes credentials and region from.
AWS = {
    "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE",
    "AWS_SECRET_ACCESS_KEY": "not-a-secret",
    "AWS_DEFAULT_REGION": "eu-central-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": "/nonexistent",
    "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
    "NO_PROXY": "127.0.0.1",
}

WIDE = {"output_dimensionality": WIDTH}


def a_document_and_a_query(provider: EmbeddingProvider) -> None:
    """Embed what a model embeds that takes one text at a time."""
    provider.embed_documents(["one"])
    provider.embed_query("three")


def documents_and_a_query(provider: EmbeddingProvider) -> None:
    """Embed what every row embeds."""
    provider.embed_documents(["one", "two"])
    provider.embed_query("three")


def a_batch_job(provider: EmbeddingProvider) -> None:
    """Let a Batch API embed two texts, from the upload to the end."""
    api = batch_api_of(provider)
    if api is None:
        raise ValueError(f"{provider.name} has no Batch API")
    file = api.write([("id-1", "one"), ("id-2", "two")])
    with file.content:
        job = api.submit(file, reference="a-reference")
    while (seen := api.look(job)) is None or seen.stage is Stage.RUNNING:
        pass
    list(api.results(seen, texts=2))
    api.clean_up(job)
    api.find("a-reference")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    `settings` are those of an agent besides the provider's name and its address. `title` is what the first cell says
    after the name. `address` stands in front of the recorded paths, and `path` is that of the API at the server; None
    for the preset's. `make` returns the provider for the server's address.
    """

    provider: str
    settings: dict[str, Any] = field(default_factory=dict)
    title: str = ""
    address: str | None = None
    path: str | None = None
    server: Callable[[], EmbeddingServer] = lambda: EmbeddingServer(dimensions=WIDTH)
    make: Callable[[Row, str], EmbeddingProvider] | None = None
    ask: Callable[[EmbeddingProvider], None] = documents_and_a_query


def with_aws(row: Row, root: str) -> EmbeddingProvider:
    """Return the provider of a row of Bedrock, with credentials that are no machine's."""
    with mock.patch.dict(os.environ, AWS):
        provider = _chosen(row, root)
        provider.warm_up()
    return provider


BATCHES: dict[str, Any] = {"title": ", Batch API", "ask": a_batch_job}
GOOGLE = {"address": "https://generativelanguage.googleapis.com", "path": "/v1beta/openai"}

ROWS: Sequence[Row] = (
    *(Row(name, WIDE) for name in ("openai", "voyage", "mistral", "deepinfra", "gemini")),
    *(Row(name) for name in ("ollama", "lmstudio")),
    Row("openai-compatible", {"model": "BAAI/bge-large-en-v1.5"}, address="http://your-server", path="/v1"),
    Row("bedrock", WIDE, make=with_aws, ask=a_document_and_a_query),
    Row("bedrock", {"model": "us.cohere.embed-v4:0", **WIDE}, ", Cohere", make=with_aws),
    Row("gemini", {"model": "gemini-embedding-2"}, ", gemini-embedding-2"),
    Row("gemini", WIDE, ", compatible", **GOOGLE),
    Row("openai", server=BatchServer, **BATCHES),
    Row("voyage", server=BatchServer, **BATCHES),
    Row("gemini", server=GeminiServer, **BATCHES),
)


def requests_of(row: Row) -> list[Request]:
    """Return what the provider of a row sends."""
    with row.server() as server:
        provider = (row.make or _chosen)(row, server.root)
        try:
            row.ask(provider)
        finally:
            provider.close()
        return list(server.log)


def document(page: str) -> str:
    """Return the page with what is sent now in the middle column of its table."""
    sent = {f"`{row.provider}`{row.title}": row for row in ROWS}
    lines = []
    for line in page.splitlines(keepends=True):
        title, _, rest = line.removeprefix("| ").partition(" | ")
        row = sent.pop(title, None)
        lines.append(line if row is None else f"| {title} | {_sent(row)} | {rest.rpartition(' | ')[2]}")
    if sent:
        raise ValueError(f"the table has no line for {', '.join(sent)}")
    return "".join(lines)


def _chosen(row: Row, root: str) -> EmbeddingProvider:
    path = urlsplit(PRESETS[row.provider].base_url).path if row.path is None else row.path
    settings = {"provider": row.provider, "remote": {"base_url": root + path, "api_key": "a-key"}, **row.settings}
    choice = choose_provider(MemorySettings.model_validate(settings), Credentials())
    if choice.provider is None:
        raise ValueError(choice.error)
    return choice.provider


def _sent(row: Row) -> str:
    address = row.address
    if address is None:
        parts = urlsplit(PRESETS[row.provider].base_url)
        address = f"{parts.scheme}://{parts.netloc}"
    said: list[str] = []
    target, headers = "", None
    for request in requests_of(row):
        now = f"{request.method} {address}{request.path}"
        if now != target:
            said.append(_code(now))
        names = sorted(name for name in request.headers if not name.startswith(_USUAL))
        if names != headers:
            said.append("headers " + (", ".join(map(_code, names)) or "none"))
        if request.content:
            body = _body(request)
            said.append(_code(body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)))
        target, headers = now, names
    return "<br>".join(said)


def _body(request: Request) -> Any:
    if request.headers.get("content-type", "").startswith("multipart/"):
        return {name: part.decode() for name, part in form(request).items()}
    return request.body if request.body is not None else request.content.decode()


def _code(text: str) -> str:
    return f"`{text.strip()}`".replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    written = Path(sys.argv[1])
    written.write_text(document(written.read_text("utf-8")), "utf-8")
