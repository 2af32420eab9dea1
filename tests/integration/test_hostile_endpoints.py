"""Embedding endpoints that mean harm, or are broken beyond what a status says: each SDK comes back, unharmed."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import pytest

from memory.embedding.providers.endpoint import Endpoint
from memory.embedding.providers.openai import OpenAIProvider
from memory.embedding.providers.provider import ProviderLimits
from memory.embedding.providers.remote import RemoteProvider
from memory.embedding.providers.voyage import VoyageProvider
from schemas.errors import Terminal, Transient, Unusable
from schemas.settings import Settings
from tests.embedding_server import EmbeddingServer, Failure, Wire
from tests.raw_server import HANG, answer, raw_server
from tests.waiting import wait_until
from tests.working import Workers, asking
from tests.written_index import with_agent

LIMITS = ProviderLimits(inputs=100, tokens=10_000, input_bytes=8000, concurrency=2, chunks_per_second=100)

#: A whole answer of the server takes some seconds a byte at a time.
SECONDS = 0.5

Connect = Callable[..., RemoteProvider]


@pytest.fixture(params=["openai", "voyage"])
def server(request: pytest.FixtureRequest) -> Iterator[EmbeddingServer]:
    with EmbeddingServer(api=request.param) as running:
        yield running


@pytest.fixture
def connect(server: EmbeddingServer, request: pytest.FixtureRequest) -> Iterator[Connect]:
    made: list[RemoteProvider] = []

    def build(**options: Any) -> RemoteProvider:
        settings = {
            "model": "m",
            "base_url": server.url,
            "api_key": "the-key",
            "key_name": "KEY",
            "limits": LIMITS,
            "headers": {"X-Api-Key": "the-secret-header"},
            **options,
        }
        voyage = request.node.callspec.params["server"] == "voyage"
        kind = VoyageProvider if voyage else OpenAIProvider
        made.append(kind(Endpoint(name="voyage" if voyage else "openai", **settings)))
        return made[-1]

    yield build
    for provider in made:
        provider.close()


@pytest.mark.parametrize("wire", get_args(Wire))
def test_no_way_to_send_an_answer_holds_a_request_and_the_next_one_is_answered(
    connect: Connect, server: EmbeddingServer, wire: Wire
) -> None:
    # More than the buffers of a connection take, so that sending it waits for the server.
    texts = ["one", "x" * 8_000_000 if wire == "request trickles" else "two"]
    # An answer that begins with 200 is billed, whatever becomes of it.
    is_billed = wire not in {"silent", "request trickles"}
    # On a busy machine the begin comes too late; it is given more time then.
    for seconds in (2, 8, 30, 60):
        provider = connect(documents_seconds=seconds)
        server.recover()
        server.fail_next(Failure(wire=wire))
        with pytest.raises(Transient) as caught:
            provider.embed_documents(texts)
        if isinstance(caught.value, Unusable) or not is_billed:
            break
    assert isinstance(caught.value, Unusable) == is_billed
    wait_until(lambda: answered(provider))


@pytest.mark.parametrize("turn", [answer(b"", status="404 Not Found"), b"nonsense\r\n\r\n"])
def test_an_endpoint_with_an_answer_of_any_kind_is_reached_without_the_key(connect: Connect, turn: bytes) -> None:
    with raw_server([turn]) as endpoint:
        connect(base_url=endpoint.url).reach(seconds=20)
    [request] = endpoint.requests
    assert (request[:5], b"the-" in request) == (b"GET /", False)


def test_a_closed_port_and_a_silent_server_are_not_reached(connect: Connect) -> None:
    with raw_server([HANG]) as endpoint:
        provider = connect(base_url=endpoint.url)
        with pytest.raises(Transient, match="did not answer in time"):
            provider.reach(seconds=SECONDS)
    with pytest.raises(Transient, match="Connection refused"):
        provider.reach(seconds=20)


def answered(provider: RemoteProvider) -> bool:
    """Return True once the endpoint answers well, on a machine that may be busy."""
    with suppress(Transient):
        return provider.embed_documents(["one", "two"]).vectors.shape == (2, 64)
    return False


@pytest.mark.parametrize("wire", ["silent", "body trickles"])
def test_queries_are_given_less_time_than_documents(connect: Connect, server: EmbeddingServer, wire: Wire) -> None:
    provider = connect(query_seconds=SECONDS)
    server.fail_next(Failure(wire=wire))
    with pytest.raises(Transient, match="did not answer in time"):
        provider.embed_query("slow")
    server.recover()  # on a busy machine the query's time may be over before it is sent
    server.fail_next(Failure(delay=2 * SECONDS))
    assert provider.embed_documents(["slow"]).vectors.shape == (1, 64)


def test_a_server_that_takes_no_connection_is_left_in_time(connect: Connect) -> None:
    with EmbeddingServer(deaf=True) as deaf, pytest.raises(Transient, match="took no connection in time"):
        connect(base_url=deaf.url, query_seconds=SECONDS).embed_query("slow")


def test_a_request_ends_when_its_provider_is_closed(connect: Connect, server: EmbeddingServer) -> None:
    provider = connect()
    server.open.clear()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(provider.embed_query, "slow")
        wait_until(lambda: server.in_flight)
        provider.close()
        with pytest.raises(Transient, match="the connection to"):
            waiting.result(60)
        server.open.set()


VECTOR = answer(b'{"data": [{"index": 0, "embedding": [1, 0]}]}', "Content-Type: application/json")


def test_the_same_holds_over_tls_and_a_stranger_s_certificate_is_refused(
    connect: Connect, certificate: Path, tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    with raw_server([VECTOR], tls=tls) as stranger:
        with pytest.raises(Transient, match="CERTIFICATE_VERIFY_FAILED"):
            connect(base_url=stranger.url).embed_query("private")
        assert stranger.requests == []
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with raw_server([[bytes([byte]) for byte in VECTOR]], [VECTOR], tls=tls) as server:
        provider = connect(base_url=server.url, query_seconds=SECONDS)
        with pytest.raises(Transient, match="did not answer in time"):
            provider.embed_query("one")
        assert connect(base_url=server.url).embed_query("one").vectors.tolist() == [[1.0, 0.0]]


@pytest.mark.parametrize("status", [302, 308])
def test_a_redirect_is_not_followed_and_its_host_is_named(
    connect: Connect, server: EmbeddingServer, status: int
) -> None:
    with raw_server([answer(b"{}")]) as elsewhere:
        host = elsewhere.url.replace("127.0.0.1", "localhost")
        server.fail_next(Failure(status=status, headers={"Location": f"{host}/v1/embeddings?signature=hidden"}))
        with pytest.raises(Terminal) as caught:
            connect().embed_documents(["a private note"])
    assert elsewhere.connections == []
    assert "localhost" in str(caught.value)
    assert "hidden" not in str(caught.value)


@pytest.mark.usefixtures("broker_server")
@pytest.mark.parametrize(
    "failure",
    [
        Failure(drop=1),
        # These take until a request's deadline, and until a probe after an answer that a person has to look into.
        *(pytest.param(Failure(wire=wire), marks=pytest.mark.long) for wire in ("silent", "compressed")),
        *(pytest.param(failure, marks=pytest.mark.long) for failure in (Failure(nan=(0,)), Failure(disconnect=True))),
    ],
)
def test_a_worker_goes_on_without_a_restart_and_counts_what_was_sent(settings: Settings, failure: Failure) -> None:
    with EmbeddingServer() as server:
        server.fail_next(failure)
        remote = asking(settings, server.url).agents[0].remote.model_copy(update={"timeout_seconds": 20})
        with Workers(with_agent(asking(settings, server.url), remote=remote)) as workers:
            workers.write("memory/a.md", "The heron stands in the reeds.\n")
            workers.mark("memory/a.md")
            wait_until(lambda: workers.finds("heron"))
            wait_until(workers.complete, timeout=200)
            wait_until(lambda: sum(one.requests for one in workers.health.usage("*")) >= server.requests)
            [usage] = workers.health.usage("main")
            assert (usage.inputs, usage.requests - usage.failed) == (1, 1)
            assert usage.tokens < 100
            wait_until(lambda: not workers.conditions())
