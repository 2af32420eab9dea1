"""The openai SDK against a real HTTP server that behaves, and that does not."""

from __future__ import annotations

import logging
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memory.chunking.chunker import text_hash
from memory.embedding.batcher import EmbeddingBatcher
from memory.embedding.cache import EmbeddingCache
from memory.embedding.providers.provider import EmbeddingProvider
from memory.embedding.selection import choose_provider
from memory.store.writer import Refusal
from schemas.documents import Lane
from schemas.errors import Permanent, Terminal, Throttled, TooLarge, Transient
from schemas.settings import Credentials, MemorySettings
from tests.embedding_server import EmbeddingServer, Failure, embed
from tests.waiting import wait_until

KEY = "sk-very-secret-0123456789"

Connect = Callable[..., EmbeddingProvider]


@pytest.fixture
def connect() -> Iterator[Connect]:
    made: list[EmbeddingProvider] = []

    def build(server: EmbeddingServer | str, **settings: Any) -> EmbeddingProvider:
        url = server if isinstance(server, str) else server.url
        remote = {"base_url": url, "api_key": KEY, **settings.pop("remote", {})}
        memory = MemorySettings.model_validate({"provider": "openai", "remote": remote, **settings})
        provider = choose_provider(memory, Credentials()).provider
        assert provider is not None
        made.append(provider)
        return provider

    yield build
    for provider in made:
        provider.close()


def expected(texts: list[str], dimensions: int = 64) -> np.ndarray:
    return np.stack([embed(text, dimensions) for text in texts])


TEXTS = ["sourdough needs a warm place", "北京的冬天很冷", "a\x00b \ud83d and 🚀"]


def test_vectors_come_as_base64_in_the_order_of_the_texts(connect: Connect) -> None:
    with EmbeddingServer() as server:
        got = connect(server).embed_documents(TEXTS[:2]).vectors
        assert got.dtype == np.float32
        assert np.array_equal(got, expected(TEXTS[:2]))
        request = server.log[0]
        assert request.body["encoding_format"] == "base64"
        assert request.body["model"] == "text-embedding-3-small"
        assert "dimensions" not in request.body
        assert request.headers["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize("options", [{"floats": True}, {"refuses_base64": True}, {"shuffled": True}])
def test_endpoints_that_answer_in_their_own_way_work_too(connect: Connect, options: dict[str, bool]) -> None:
    with EmbeddingServer(**options) as server:
        provider = connect(server)
        for _ in range(2):
            assert np.allclose(provider.embed_documents(TEXTS[:2]).vectors, expected(TEXTS[:2]), atol=1e-7)
        assert server.requests <= 3, "what an endpoint does not take is not tried every time"


def test_what_no_json_can_carry_is_cleaned(connect: Connect) -> None:
    with EmbeddingServer() as server:
        connect(server).embed_documents(TEXTS)
        assert server.log[0].inputs[2] == "a b \ufffd and 🚀"


def test_dimensions_input_types_and_headers_are_sent_when_set(connect: Connect) -> None:
    with EmbeddingServer() as server:
        provider = connect(
            server,
            model="custom",
            output_dimensionality=32,
            query_input_type="query",
            document_input_type="passage",
            remote={"headers": {"X-Team": "memory"}},
        )
        assert provider.embed_documents(["one"]).vectors.shape == (1, 32)
        assert provider.embed_query("two").vectors.shape == (1, 32)
        document, query = server.log
        assert (document.body["dimensions"], document.body["input_type"]) == (32, "passage")
        assert (query.body["input_type"], query.body["model"]) == ("query", "custom")
        assert query.headers["x-team"] == "memory"


def test_an_endpoint_that_ignores_the_dimensions_is_told_apart(connect: Connect) -> None:
    with EmbeddingServer() as server:
        server.fail_next(Failure(dimensions=64))
        with pytest.raises(Terminal, match="output_dimensionality"):
            connect(server, output_dimensionality=32).embed_documents(["one"])


def test_long_queries_are_cut_and_empty_ones_not_sent(connect: Connect) -> None:
    with EmbeddingServer() as server:
        provider = connect(server)
        provider.embed_query("字" * 20_000)
        assert len(server.log[0].inputs[0].encode()) <= 8191
        with pytest.raises(Permanent, match="nothing to embed"):
            provider.embed_query("  ")
        assert server.requests == 1


@pytest.mark.parametrize(
    ("failure", "error", "words"),
    [
        (Failure(status=401), Terminal, "check OPENAI_API_KEY or remote.api_key"),
        (Failure(status=403), Terminal, "refused access"),
        (Failure(status=429, code="insufficient_quota"), Terminal, "top it up"),
        (Failure(status=404, code="model_not_found"), Terminal, "check model and remote.base_url"),
        (Failure(status=400, param="dimensions"), Terminal, "refused the setting dimensions"),
        (Failure(status=400, message="maximum context length is 8192 tokens"), TooLarge, "refused the text"),
        (Failure(status=400), Permanent, "refused the text"),
        (Failure(status=413), TooLarge, "HTTP 413"),
        (Failure(status=500), Transient, "HTTP 500"),
        (Failure(status=503, headers={"Retry-After": "2"}), Throttled, "HTTP 503"),
        (Failure(status=408), Transient, "HTTP 408"),
        (Failure(disconnect=True), Transient, "connection to openai"),
        (Failure(drop=1), Transient, "1 vectors for 2 texts"),
        (Failure(raw=b"<html>welcome</html>"), Transient, "remote.base_url"),
        (Failure(raw=b'{"error": {"message": "no"}}'), Transient, "remote.base_url"),
        (Failure(raw=b'{"data": [{"embedding": "!"}, {"embedding": 3}]}'), Transient, "remote.base_url"),
        (
            Failure(raw=b'{"data": [{"index": 0, "embedding": [1]}, {"index": 0, "embedding": [1]}]}'),
            Transient,
            "index",
        ),
        (Failure(raw=b'{"data": [{"embedding": [1]}, {"embedding": [1, 2]}]}'), Transient, "different dimensions"),
    ],
)
def test_every_failure_has_its_class_and_says_what_to_do(
    connect: Connect, failure: Failure, error: type[Exception], words: str
) -> None:
    with EmbeddingServer() as server:
        server.fail_next(failure)
        with pytest.raises(error) as caught:
            connect(server).embed_documents(["one", "two"])
        assert type(caught.value) is error
        assert words in str(caught.value)
        assert server.requests == 1, "retries are not the SDK's"


def test_no_message_holds_a_key(connect: Connect) -> None:
    with EmbeddingServer() as server:
        provider = connect(server, remote={"headers": {"X-Api-Key": "another-secret"}})
        for status in (400, 401, 404, 429, 500):
            server.fail_next(Failure(status=status, message=f"bad key {KEY} another-secret " + "x" * 5000))
            with pytest.raises((Permanent, Terminal, Transient)) as caught:
                provider.embed_documents(["one"])
            said = str(caught.value)
            assert KEY not in said
            assert "another-secret" not in said
            assert len(said) < 600


def test_a_server_that_is_not_there_is_a_passing_failure(connect: Connect) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(Transient, match=rf"connection to openai at http://127.0.0.1:{port}/v1 failed"):
        connect(f"http://127.0.0.1:{port}/v1").embed_query("anybody there")


def test_a_missing_sdk_is_named_with_its_command(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    provider = connect("http://127.0.0.1:9/v1")
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(Terminal, match=r'pip install "recalld\[openai\]"'):
        provider.embed_documents(["one"])


def test_two_thousand_notes_through_a_misbehaving_endpoint_are_all_embedded_and_none_is_paid_twice(
    connect: Connect, tmp_path: Path
) -> None:
    cache = EmbeddingCache(tmp_path / "cache.sqlite")
    with EmbeddingServer(poison="BAD") as server:
        batcher = EmbeddingBatcher(connect(server), cache)
        good = {text_hash(text): text for text in (f"note {i} about thing {i % 7}" for i in range(2_000))}
        bad = {text_hash("BAD one"): "BAD one"}
        server.fail_next(None)
        server.fail_next(Failure(status=429, headers={"Retry-After": "0.2"}))
        server.fail_next(Failure(status=500))
        server.fail_next(Failure(disconnect=True))
        everything = list({**good, **bad}.items())
        tickets = []

        def job(first: int) -> None:
            tickets.append(batcher.submit(dict(everything[first : first + 41]), lane=Lane.BACKFILL))

        jobs = [threading.Thread(target=job, args=(first,)) for first in range(0, len(everything), 41)]
        for thread in jobs:
            thread.start()
        for thread in jobs:
            thread.join()
        results = {}
        for ticket in tickets:
            assert ticket.wait(60)
            assert ticket.error() is None
            results.update(ticket.results())
        batcher.close(timeout_seconds=5)
        assert len(results) == 2_001
        assert [key for key, result in results.items() if isinstance(result, Refusal)] == list(bad)
        assert server.inputs == server.distinct == 2_000
        assert server.requests < 80
        assert server.most_in_flight <= 4
        assert server.largest_tokens <= 120_000
        assert cache.entries() == 2_000


def test_nothing_leaves_before_the_endpoint_s_time_has_come(connect: Connect) -> None:
    with EmbeddingServer(latency=0.02) as server:
        batcher = EmbeddingBatcher(connect(server), None)
        server.fail_next(Failure(status=429, headers={"Retry-After": "0.5"}))
        first = batcher.submit({text_hash("first"): "first"}, lane=Lane.LIVE)
        wait_until(lambda: server.requests == 1)
        wait_until(lambda: server.in_flight == 0)
        others = [batcher.submit({text_hash(f"n {i}"): f"n {i}"}, lane=Lane.BACKFILL) for i in range(20)]
        for ticket in (first, *others):
            assert ticket.wait(60)
            assert ticket.error() is None
        assert min(request.started for request in server.log[1:]) - server.log[0].started >= 0.5
        batcher.close(timeout_seconds=5)


def test_the_key_is_in_no_log(connect: Connect, caplog: pytest.LogCaptureFixture, capsys: Any) -> None:
    caplog.set_level(logging.DEBUG)
    with EmbeddingServer() as server:
        batcher = EmbeddingBatcher(connect(server), None)
        server.fail_next(Failure(status=500, message=f"echo {KEY}"))
        server.fail_next(Failure(status=401, message=f"echo {KEY}"))
        ticket = batcher.submit({text_hash("a"): "a"}, lane=Lane.LIVE)
        assert ticket.wait(60)
        batcher.close(timeout_seconds=5)
    shown = capsys.readouterr()
    assert isinstance(ticket.error(), Terminal)
    assert KEY not in shown.out + shown.err + caplog.text
