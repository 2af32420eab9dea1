"""The requests that every remote provider sends, recorded, beside what the provider's documentation asks for.

    python -m tests.provider_requests docs/providers.md

A provider is a `Row` of `ROWS`. The real provider runs against a server that records what arrives.
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

_HEAD = """# Providers: what is sent, and what their documentation asks for

The middle column was recorded from recalld's own requests, with two texts and one query, by
`python -m tests.provider_requests docs/providers.md`; a test compares it with what is sent now. Of the headers only the
names are shown, without those of every HTTP request. The last column says what the provider's documentation asks for.

| Provider | What is sent | What its documentation asks for |
|---|---|---|
"""


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
    while api.look(job).stage is Stage.RUNNING:
        pass
    list(api.results(job, texts=2))
    api.clean_up(job)
    api.find("a-reference")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    `settings` are those of an agent besides the provider's name and its address. `address` stands in front of the
    recorded paths, and `path` is that of the API at the server; None for the preset's. `asks` is the documentation in
    our words, `documentation` its address.
    `make` returns the provider for the server's address.
    """

    provider: str
    asks: str
    documentation: str
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
        "`model`, `input`, and optionally `truncate` (false: a text that is too long is an error), `keep_alive`, "
        "`dimensions` and `options`; no key. The model's card asks for the words before the texts.",
        "https://docs.ollama.com/api/embed",
    ),
    Row(
        "lmstudio",
        "`input` and `model`; no key. The model's card asks for the words before the texts.",
        "https://lmstudio.ai/docs/developer/openai-compat/embeddings",
    ),
    Row(
        "deepinfra",
        "`input`, `model`, and optionally `encoding_format` and `dimensions`; the key as a bearer token.",
        "https://docs.deepinfra.com/api-reference/openai-embeddings-1",
        {"output_dimensionality": WIDTH},
    ),
    Row(
        "openai-compatible",
        "As OpenAI's. A model whose name says its family gets what its card asks for.",
        "https://platform.openai.com/docs/api-reference/embeddings/create",
        {"model": "BAAI/bge-large-en-v1.5"},
        address="http://your-server",
        path="/v1",
    ),
    Row(
        "bedrock",
        "Titan: `inputText`, one text, and optionally `dimensions` (1,024, 512 or 256) and `normalize` (true unless "
        "said otherwise); signed with AWS's credentials.",
        "https://docs.aws.amazon.com/bedrock/latest/userguide/model-parameters-titan-embed-text.html",
        {"output_dimensionality": WIDTH},
        make=with_aws,
        ask=a_document_and_a_query,
    ),
    Row(
        "bedrock",
        "Cohere: `texts` (at most 96), `input_type`, and optionally `truncate` (NONE: a text that is too long is an "
        "error), `embedding_types` and, in version 4, `output_dimension`.",
        "https://docs.aws.amazon.com/bedrock/latest/userguide/model-parameters-embed-v4.html",
        {"model": "us.cohere.embed-v4:0", "output_dimensionality": WIDTH},
        title="`bedrock`, Cohere",
        make=with_aws,
    ),
    Row(
        "gemini",
        "`requests` (at most 100), each with `model`, `content` (2,048 tokens) and optionally `taskType` (for search "
        "RETRIEVAL_DOCUMENT and RETRIEVAL_QUERY), `title` and `outputDimensionality`; vectors of fewer than 3,072 "
        "dimensions have to be brought to unit length; the key as `x-goog-api-key`. (recalld sends no title: the same "
        "words in two notes would be two texts, each of them paid for.)",
        "https://ai.google.dev/api/embeddings",
        {"output_dimensionality": WIDTH},
    ),
    Row(
        "gemini",
        "The task as words before the text, for there is no field for it: `task: search result | query: ` and "
        "`title: none | text: `.",
        "https://ai.google.dev/gemini-api/docs/embeddings",
        {"model": "gemini-embedding-2"},
        title="`gemini`, gemini-embedding-2",
    ),
    Row(
        "gemini",
        "On the OpenAI-compatible route `input`, `model` and optionally `dimensions`; the key as a bearer token. (It "
        "serves indexes that were made with it, and every `remote.base_url` that ends in `/openai`.)",
        "https://ai.google.dev/gemini-api/docs/openai",
        {"output_dimensionality": WIDTH},
        title="`gemini`, compatible",
        address="https://generativelanguage.googleapis.com",
        path="/v1beta/openai",
    ),
    Row(
        "openai",
        "A file with one request a line, uploaded with the purpose `batch`; a job with `input_file_id`, `endpoint` and "
        "`completion_window`; two files of results.",
        "https://developers.openai.com/api/docs/guides/batch",
        title="`openai`, Batch API",
        server=BatchServer,
        ask=a_batch_job,
    ),
    Row(
        "voyage",
        "As OpenAI's, with model and options in `request_params` and a window of 12 hours.",
        "https://docs.voyageai.com/docs/batch-inference",
        title="`voyage`, Batch API",
        server=BatchServer,
        ask=a_batch_job,
    ),
    Row(
        "gemini",
        "A file with `key` and `request` on each line, uploaded by the resumable protocol; `asyncBatchEmbedContent` "
        "with `displayName` and `inputConfig`; `batches` to look at, to list and to delete; the results as a download.",
        "https://ai.google.dev/gemini-api/docs/batch-api",
        title="`gemini`, Batch API",
        server=GeminiServer,
        ask=a_batch_job,
    ),
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


def document() -> str:
    """Return the whole file with the table."""
    return _HEAD + "".join(map(_line, ROWS))


def _chosen(row: Row, root: str) -> EmbeddingProvider:
    path = urlsplit(PRESETS[row.provider].base_url).path if row.path is None else row.path
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
    asks = row.asks.replace("|", "\\|")
    cells = (row.title or f"`{row.provider}`", "<br>".join(said), f"{asks} [Documentation]({row.documentation})")
    return f"| {' | '.join(cells)} |\n"


def _body(request: Request) -> Any:
    if request.headers.get("content-type", "").startswith("multipart/"):
        return {name: part.decode() for name, part in form(request).items()}
    return request.body if request.body is not None else request.content.decode()


def _code(text: str) -> str:
    return f"`{text.strip()}`".replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(document(), encoding="utf-8")
