"""Gemini's own API, spoken to a server over HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from memory.chunking.chunker import text_hash
from memory.embedding.batcher import EmbeddingBatcher
from memory.embedding.providers.provider import EmbeddingProvider
from memory.embedding.providers.remote import Oversized
from memory.embedding.selection import choose_provider, made_like
from memory.embedding.vectors import check_and_round
from memory.index.provider_fallback import provider_of
from memory.status.vectors import no_prefixes
from recalld.wiring import fingerprint_of
from schemas.conditions import ConditionCode
from schemas.documents import Lane
from schemas.errors import Permanent, RecalldError, Terminal, Throttled, TooLarge, Transient
from schemas.settings import Credentials, MemorySettings, Settings
from tests.embedding_server import embed
from tests.gemini_server import GeminiServer
from tests.raw_server import DROP, answer, raw_server
from tests.waiting import wait_until
from tests.working import Workers
from tests.written_index import write_index, writer_of
from workers.queue.private_server import BrokerServer

KEY = "AIza-very-secret-0123456789"
PATH = "/v1beta/models/gemini-embedding-001:batchEmbedContents"

Connect = Callable[..., EmbeddingProvider]


@pytest.fixture
def connect() -> Iterator[Connect]:
    made: list[EmbeddingProvider] = []

    def build(url: str, **settings: Any) -> EmbeddingProvider:
        remote = {"base_url": url, "api_key": KEY, **settings.pop("remote", {})}
        memory = MemorySettings.model_validate({"provider": "gemini", "remote": remote, **settings})
        provider = choose_provider(memory, Credentials()).provider
        assert provider is not None
        made.append(provider)
        return provider

    yield build
    for provider in made:
        provider.close()


def test_an_answer_has_the_vectors_in_the_order_of_the_texts_and_the_tokens(connect: Connect) -> None:
    with GeminiServer() as server:
        got = connect(server.url).embed_documents(["one", "北京的冬天很冷"])
        np.testing.assert_allclose(got.vectors, np.stack([embed(text, 32) for text in ("one", "北京的冬天很冷")]))
        assert got.tokens == 14
        assert "x-goog-api-key" in server.log[0].headers
        assert "authorization" not in server.log[0].headers


@pytest.mark.parametrize("written", ["", "/", "/v1beta", "/v1beta/"])
def test_the_address_may_end_before_or_after_the_version(connect: Connect, written: str) -> None:
    with GeminiServer() as server:
        connect(server.root + written).embed_query("one")
        assert server.log[0].path == PATH


def test_settings_name_other_task_types_and_only_task_types(connect: Connect) -> None:
    with GeminiServer() as server:
        provider = connect(server.url, query_input_type="QUESTION_ANSWERING", document_input_type="CLUSTERING")
        provider.embed_documents(["one"])
        provider.embed_query("two")
        assert [entry.body["requests"][0]["taskType"] for entry in server.log] == ["CLUSTERING", "QUESTION_ANSWERING"]
    memory = MemorySettings(provider="gemini", query_input_type="query")
    refused = choose_provider(memory, Credentials.model_validate({"gemini": "k"}))
    assert refused.provider is None
    assert "RETRIEVAL_QUERY" in (refused.error or "")


def test_shortened_vectors_are_stored_with_unit_length(connect: Connect) -> None:
    with GeminiServer(length=0.58) as server:
        provider = connect(server.url, output_dimensionality=64)
        raw = provider.embed_documents(["one two three"]).vectors
        np.testing.assert_allclose(np.linalg.norm(raw), 0.58, rtol=1e-5)
        batcher = EmbeddingBatcher(provider, None)
        ticket = batcher.submit({text_hash("one two three"): "one two three"}, lane=Lane.LIVE)
        assert ticket.wait(60)
        [vector] = ticket.results().values()
        batcher.close(timeout_seconds=5)
    assert isinstance(vector, np.ndarray)
    assert vector.shape == (64,)
    np.testing.assert_allclose(np.linalg.norm(vector), 1.0, rtol=1e-6)
    np.testing.assert_array_equal(vector, check_and_round(raw, expected=1, dimensions=64)[0])


def _google(status: int, name: str, message: str = "no", *details: dict[str, Any]) -> bytes:
    body = {"error": {"message": message, "status": name, "details": list(details)}}
    return answer(json.dumps(body).encode(), status=f"{status} {name}")


_RETRY = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.5s"}


def _quota(name: str) -> dict[str, Any]:
    return {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [{"quotaId": name}]}


def _field(name: str) -> dict[str, Any]:
    return {"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": [{"field": name}]}


@pytest.mark.parametrize(
    ("turn", "error", "words"),
    [
        (_google(400, "INVALID_ARGUMENT", "bad", {"reason": "API_KEY_INVALID"}), Terminal, "refused the key"),
        (_google(401, "UNAUTHENTICATED"), Terminal, "check GEMINI_API_KEY or remote.api_key"),
        (_google(403, "PERMISSION_DENIED"), Terminal, "refused access"),
        (_google(400, "FAILED_PRECONDITION", "not in your country"), Terminal, "not in your country"),
        (_google(404, "NOT_FOUND", "models/x is not found for API version v1beta"), Terminal, "check model"),
        (_google(400, "INVALID_ARGUMENT", "bad", _field("requests[0].task_type")), Terminal, "task_type"),
        (_google(400, "INVALID_ARGUMENT", "bad", _field("requests[0].output_dimensionality")), Terminal, "setting"),
        (_google(400, "INVALID_ARGUMENT", "The input token count (3000) exceeds the limit"), TooLarge, "the text"),
        (_google(400, "INVALID_ARGUMENT", "bad", _field("requests[0].content")), Permanent, "the text"),
        (_google(429, "RESOURCE_EXHAUSTED", "q", _quota("RequestsPerMinutePerProject"), _RETRY), Throttled, "slow"),
        (_google(429, "RESOURCE_EXHAUSTED", "q", _quota("RequestsPerDayPerProject"), _RETRY), Terminal, "day's"),
        (_google(500, "INTERNAL"), Transient, "passing"),
        (_google(503, "UNAVAILABLE", "The model is overloaded."), Transient, "passing"),
        (_google(504, "DEADLINE_EXCEEDED"), Transient, "passing"),
        (answer(b'{"embeddings": [{"values": [1.0, 0.0]}]}'), Transient, "1 vectors for 2 texts"),
        (answer(b'{"embeddings": [{}, {}]}'), Transient, "holds no embeddings"),
        (answer(b'{"embeddings": [3]}'), Transient, "holds no embeddings"),
        (answer(b"[]"), Transient, "holds no embeddings"),
        (answer(b'{"embeddings": [{"values": [1.0, 0.0]}]}')[:-9], Transient, "connection"),
        (DROP, Transient, "connection"),
        (answer(b"packed", "Content-Encoding: gzip"), Terminal, "compresses"),
        (answer(b"[" * 100_000), Oversized, "JSON values"),
        (answer(b" " * 3_000_000), Oversized, "bytes"),
        (answer(b"", "Location: http://localhost:1/v1beta", status="307 Elsewhere"), Terminal, "localhost"),
    ],
)
def test_every_failure_has_its_class_and_no_message_the_key(
    connect: Connect, turn: bytes | str, error: type[RecalldError], words: str
) -> None:
    with raw_server([turn]) as server:
        with pytest.raises(error) as caught:
            connect(server.url).embed_documents(["one", "two"])
        assert type(caught.value) is error
        assert words in str(caught.value)
        assert KEY not in str(caught.value)
        if error is Throttled:
            assert caught.value.retry_after == 34.5  # type: ignore[attr-defined] # Throttled has it
        [request] = server.requests
        assert f"x-goog-api-key: {KEY}".encode() in request


def _settings(settings: Settings, base_url: str) -> Settings:
    remote = {"base_url": base_url, "api_key": KEY}
    common = {"provider": "gemini", "remote": remote, "output_dimensionality": 32}
    agent = {"id": "main", "workspace": settings.agents[0].workspace, **common}
    return Settings.model_validate({"home": settings.home, "agents": [agent], **common})


def test_an_index_of_the_compatible_api_goes_on_with_it_until_a_person_rebuilds_it(
    settings: Settings, broker_server: BrokerServer
) -> None:
    with GeminiServer() as server:
        old = _settings(settings, server.root)
        agent = old.agents[0]
        with Workers(old) as workers:
            workers.write("memory/1.md", "The heron stands in the reeds.")
            write_index(old, earlier_version=True).close()
            assert [entry.path for entry in server.log] == ["/embeddings"]
            workers.write("memory/2.md", "An otter came by.")
            workers.mark("memory/1.md", "memory/2.md")
            wait_until(lambda: workers.complete() and workers.counts().files == 2)
        assert server.paid == {"The heron stands in the reeds.": 1, "An otter came by.": 1}
        assert {entry.path for entry in server.log} == {"/embeddings"}
        told = no_prefixes("main", agent, provider_of(old, agent), chunks=2)
        assert told is not None
        assert (told.code, told.params["texts"]) == (ConditionCode.TASK_TYPES_MISSING, "2 texts")
        identity = fingerprint_of(old, agent, rebuild=True)
        with closing(writer_of(old)) as writer:
            writer.begin(identity.digest, identity.description, force=True)
        with Workers(old) as workers:
            workers.mark("memory/1.md", "memory/2.md", lane=Lane.BACKFILL)
            wait_until(lambda: server.paid.total() == 4, what="the new index is made over the other API")
        assert server.log[-1].path == PATH
        assert provider_of(old, agent).rebuilt is None


def test_an_index_of_either_api_is_asked_over_its_own_while_the_other_is_built() -> None:
    keys = Credentials.model_validate({"gemini": "k"})

    accounts = set()

    def chosen(base_url: str | None) -> tuple[MemorySettings, str]:
        memory = MemorySettings.model_validate({"provider": "gemini", "remote": {"base_url": base_url}})
        choice = choose_provider(memory, keys)
        assert choice.provider is not None
        assert (choice.earlier is None) == (base_url is not None), "an address that names an API means that API"
        accounts.add(choice.provider.account)
        return memory, choice.provider.identity

    google = "https://generativelanguage.googleapis.com/v1beta"
    default, native = chosen(None)
    explicit, same = chosen(google)
    compatible, old = chosen(f"{google}/openai")
    assert native == same
    assert len(accounts) == 1, "what was noted of the account holds for either"
    # What every index of an earlier version holds.
    assert old == (
        '{"base_url":"https://generativelanguage.googleapis.com/v1beta/openai",'
        '"model":"gemini-embedding-001","provider":"gemini"}'
    )
    for identity in (native, old):
        for memory in (default, explicit, compatible):
            found = made_like(identity, memory, keys)
            assert found is not None
            assert found.provider is not None
            assert found.provider.identity == identity
