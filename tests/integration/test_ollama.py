"""Ollama over its own API: every spelling of its address, no silent cut, and failures that say what to type."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from memory.embedding.providers.json_apis import OllamaProvider
from memory.embedding.providers.provider import EmbeddingProvider
from memory.embedding.selection import choose_provider
from schemas.errors import Terminal, TooLarge, Transient
from schemas.settings import Credentials, MemorySettings
from tests.commanding import CommandLine
from tests.embedding_server import Failure
from tests.ollama_server import OllamaServer

PLAIN, NOMIC = "all-minilm", "nomic-embed-text"


@pytest.fixture
def ollama() -> Iterator[OllamaServer]:
    with OllamaServer(pulled=(PLAIN, NOMIC)) as running:
        yield running


@pytest.fixture
def made() -> Iterator[Any]:
    with ExitStack() as opened:

        def make(base_url: str, **settings: Any) -> EmbeddingProvider:
            tree = {"provider": "ollama", "model": PLAIN, "remote": {"base_url": base_url}, **settings}
            provider = choose_provider(MemorySettings.model_validate(tree), Credentials()).provider
            assert isinstance(provider, OllamaProvider)
            opened.callback(provider.close)
            return provider

        yield make


@pytest.mark.parametrize("spelling", ["", "/", "/v1", "/v1/"])
def test_every_spelling_of_the_address_works_and_is_the_identity_that_indexes_have(
    ollama: OllamaServer, made: Any, spelling: str
) -> None:
    provider = made(ollama.root + spelling)
    assert json.loads(provider.identity) == {"base_url": f"{ollama.root}/v1", "model": PLAIN, "provider": "ollama"}
    assert provider.account == made(f"{ollama.root}/v1").account
    answer = provider.embed_documents(["one", "two"])
    assert (answer.vectors.shape, answer.tokens) == ((2, 64), 6)
    assert provider.embed_query("three").vectors.shape == (1, 64)
    assert {request.path for request in ollama.log} == {"/api/embed"}


def test_a_request_keeps_the_model_loaded_and_forbids_to_cut(ollama: OllamaServer, made: Any) -> None:
    made(ollama.root).embed_documents(["one"])
    made(ollama.root, output_dimensionality=32).embed_query("two")
    plain, narrow = ollama.log
    assert plain.body == {"model": PLAIN, "input": ["one"], "truncate": False, "keep_alive": "30m"}
    assert narrow.body == {**plain.body, "input": ["two"], "dimensions": 32}


@pytest.mark.parametrize("status", [400, 413, 500])
def test_a_text_that_is_too_long_is_refused_whatever_the_version_answers(made: Any, status: int) -> None:
    with OllamaServer(pulled=(PLAIN,), context=20, status=status) as ollama, pytest.raises(TooLarge):
        made(ollama.root).embed_documents(["one", "x" * 21])


def test_a_text_that_is_too_long_keeps_no_other_from_its_vector_and_is_never_cut(
    commands: CommandLine, workspace: Path
) -> None:
    with OllamaServer(pulled=(PLAIN,), context=300) as ollama:
        for key, value in (("PROVIDER", "ollama"), ("MODEL", PLAIN), ("REMOTE__BASE_URL", ollama.root)):
            commands.set(f"RECALLD_{key}", value)
        (workspace / "MEMORY.md").write_text("The heron stands in the reeds.\n", "utf-8")
        (workspace / "memory" / "long.md").write_text("The otter swims in the brook. " * 40, "utf-8")
        done = commands.agent("index")
        assert (done["files"], done["vectorsPending"], done["failed"]) == (2, 0, [])
        assert done["vectorsReady"] == done["chunks"]
        assert ollama.cut == 0
        assert max(len(text) for text in ollama.texts) <= 300, "the long text was embedded in pieces"


def test_a_model_that_is_not_pulled_is_said_with_the_command_that_pulls_it(ollama: OllamaServer, made: Any) -> None:
    with pytest.raises(Terminal, match=r"ollama pull bge-m3$"):
        made(ollama.root, model="bge-m3").embed_query("one")


def test_a_model_that_cannot_embed_is_no_fault_of_the_text(ollama: OllamaServer, made: Any) -> None:
    ollama.fail_next(Failure(status=501, message="this model does not support embeddings"))
    with pytest.raises(Terminal, match=PLAIN):
        made(ollama.root).embed_documents(["one"])


def test_a_server_that_is_not_there_is_said_with_its_address_and_how_to_start_it(made: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(Transient, match=f"{address}: start it with `ollama serve`"):
            made(address).embed_query("one")


def test_nonsense_instead_of_vectors_is_tried_again(ollama: OllamaServer, made: Any) -> None:
    for raw in (b"<html>", b"[]", b'{"embeddings": null}', b'{"embeddings": [[1.0], [2.0]]}'):
        ollama.fail_next(Failure(raw=raw))
        with pytest.raises(Transient):
            made(ollama.root).embed_documents(["one"])
