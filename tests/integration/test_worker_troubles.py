"""Workers whose provider, disk or index fails them: said on the board, nothing lost, and it goes on."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import pytest

from memory.embedding import coordination
from memory.embedding.batcher import EmbeddingBatcher
from memory.index.indexer import Indexer
from memory.index.provider_fallback import provider_of
from memory.status.home import build_status
from schemas.conditions import ConditionCode, Param
from schemas.documents import DocumentKey
from schemas.settings import Settings
from schemas.status import AgentStatus
from tests.embedding_server import EmbeddingServer, Failure
from tests.waiting import wait_until
from tests.working import Workers, asking
from workers import run
from workers.health.health_store import HealthStore
from workers.health.heartbeat import Heartbeat
from workers.queue.names import EMBED_PENDING, INDEX_PENDING
from workers.queue.pending import Waiting
from workers.queue.private_server import BrokerServer


@pytest.fixture
def remote(settings: Settings, server: EmbeddingServer) -> Settings:
    return asking(settings, server.url)


Reported = list[tuple[ConditionCode, Mapping[str, Param]]]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Reported:
    """Every condition that was reported, also those that are over: (code, params)."""
    told: Reported = []
    report = HealthStore.report

    def listened(
        board: HealthStore, code: ConditionCode, *, agent: str = "*", subject: str = "", **params: Param
    ) -> None:
        told.append((code, params))
        report(board, code, agent=agent, subject=subject, **params)

    monkeypatch.setattr(HealthStore, "report", listened)
    return told


def test_a_refused_key_leaves_keywords_and_a_sentence_and_vectors_come_when_it_is_accepted(
    remote: Settings,
    broker_server: BrokerServer,
    server: EmbeddingServer,
    pauses: list[tuple[str, float]],
) -> None:
    server.fail_next(Failure(status=401, message="Incorrect API key: a-secret-key"), times=10_000)
    with Workers(remote) as workers:
        workers.note("memory/a.md", "The heron stands in the reeds.")
        trouble = wait_until(workers.conditions)
        assert list(trouble) == [ConditionCode.PROVIDER_REFUSES]
        assert trouble[ConditionCode.PROVIDER_REFUSES].subject == "openai"
        assert "a-secret-key" not in str(trouble)
        assert workers.settled()
        assert workers.finds("heron")
        counts = workers.counts()
        assert (counts.vectors_ready, counts.vectors_pending) == (0, 1)
        wait_until(lambda: pauses)
        assert set(pauses) == {(EMBED_PENDING, 60.0)}
        server.recover()
        provider = provider_of(remote, remote.agents[0]).provider
        assert provider is not None
        workers.board.ask_again(provider.account, provider.model)
        wait_until(workers.complete)
        wait_until(lambda: not workers.conditions())


def test_edits_while_the_provider_refuses_wait_as_one_message(
    remote: Settings, broker_server: BrokerServer, server: EmbeddingServer
) -> None:
    server.fail_next(Failure(status=401), times=10_000)
    with Workers(remote) as workers:
        for number in range(6):
            workers.note(f"memory/{number}.md", f"Note number {number}.")
            wait_until(workers.settled)
        wait_until(lambda: not workers.client.hlen(workers.keys.messages("vectors")))
        wait_until(lambda: workers.client.hlen(workers.keys.delayed_messages("vectors")))
        assert workers.client.hlen(workers.keys.delayed_messages("vectors")) == 1
        assert workers.counts().vectors_pending == 6


def test_a_provider_that_asks_for_time_gets_it(
    remote: Settings,
    broker_server: BrokerServer,
    server: EmbeddingServer,
    pauses: list[tuple[str, float]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(EmbeddingBatcher.__init__.__kwdefaults__, "patience_seconds", 0.3)
    server.fail_next(Failure(status=429, headers={"Retry-After": "1.5"}))
    with Workers(remote) as workers:
        workers.note("memory/a.md", "The heron stands in the reeds.")
        trouble = wait_until(workers.conditions)
        assert list(trouble) == [ConditionCode.PROVIDER_FAILS]
        assert workers.finds("heron")
        assert workers.counts().vectors_pending == 1
        wait_until(workers.complete)
        wait_until(lambda: not workers.conditions())
    first, second = server.log
    assert second.started - first.started >= 1.5
    assert {actor for actor, _ in pauses} == {EMBED_PENDING}
    assert all(0.5 <= seconds <= 1.5 for _, seconds in pauses), "what is left of the time that was asked for"


def test_an_error_that_nobody_foresaw_is_said_and_tried_again_ever_more_rarely_until_its_cause_is_gone(
    settings: Settings,
    broker_server: BrokerServer,
    pauses: list[tuple[str, float]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = threading.Event()
    broken.set()
    index = Indexer.index

    def index_unless_broken(indexer: Indexer, keys: Iterable[DocumentKey], **options: Any) -> Any:
        if broken.is_set():
            assert next(iter(keys))
            raise ZeroDivisionError("the moon is full")
        return index(indexer, keys, **options)

    monkeypatch.setattr(Indexer, "index", index_unless_broken)
    with Workers(settings) as workers:
        paths = [f"memory/{number}.md" for number in range(3)]
        for path in paths:
            workers.write(path, f"The heron of {path}.")
        workers.mark(*paths)
        wait_until(lambda: len(pauses) >= 3)
        assert pauses[:3] == [(INDEX_PENDING, 2.0), (INDEX_PENDING, 4.0), (INDEX_PENDING, 8.0)]
        [failed] = workers.board.conditions("main")
        assert (failed.code, failed.subject) == (ConditionCode.JOB_FAILED, "index_pending live")
        assert failed.params == {"error": "unexpected ZeroDivisionError: the moon is full"}
        wait_until(lambda: workers.waiting() == Waiting(live=3, backfill=0, running=0))
        assert workers.counts().files == 0
        broken.clear()
        wait_until(workers.complete)
        assert workers.counts().files == 3
        wait_until(lambda: not workers.conditions())


def test_a_damaged_index_is_set_aside_and_built_again_without_paying_the_provider_again(
    remote: Settings, broker_server: BrokerServer, server: EmbeddingServer, said: Reported
) -> None:
    with Workers(remote) as workers:
        paths = [f"memory/{number}.md" for number in range(12)]
        for path in paths:
            workers.write(path, f"The heron of {path}.")
        workers.mark(*paths)
        wait_until(workers.complete)
        workers.stop()
        before, paid = workers.counts(), server.requests
        folder = remote.indexes_path / "main"
        [file] = folder.glob("*.sqlite")
        with file.open("r+b") as damaged:
            damaged.seek(4096)
            damaged.write(b"\xff" * (file.stat().st_size - 4096))
        workers.start()
        workers.mark(paths[0])
        wait_until(lambda: any(code is ConditionCode.INDEX_SET_ASIDE for code, _ in said))
        [aside] = {path for path in folder.glob("*.corrupt-*") if not path.name.endswith(("-wal", "-shm"))}
        wait_until(lambda: not workers.conditions())
        wait_until(workers.complete)
        after = workers.counts()
        assert (after.files, after.chunks, after.vectors_ready) == (12, before.chunks, before.vectors_ready)
        assert workers.finds("heron")
        assert server.requests == paid, "the cache had them all"
    assert aside.name.startswith(file.name)
    [set_aside] = {str(params["files"]) for code, params in said if code is ConditionCode.INDEX_SET_ASIDE}
    assert aside.name in set_aside


def test_a_write_ahead_log_that_was_cut_short_while_it_is_used_is_as_good_as_a_damaged_index(
    remote: Settings, broker_server: BrokerServer, server: EmbeddingServer, said: Reported
) -> None:
    with Workers(remote) as workers:
        paths = [f"memory/{number}.md" for number in range(12)]
        for path in paths:
            workers.write(path, f"The heron of {path}.")
        workers.mark(*paths)
        wait_until(workers.complete)
        paid = server.requests
        [log] = (remote.indexes_path / "main").glob("*.sqlite-wal")
        with workers.reading("main") as reader:
            assert reader is not None
            assert reader.counts().files == 12
            os.truncate(log, log.stat().st_size // 3)
            workers.write(paths[0], "The otter swims.")
            workers.mark(paths[0])
            wait_until(lambda: any(code is ConditionCode.INDEX_SET_ASIDE for code, _ in said))
            wait_until(lambda: workers.settled() and not workers.conditions() and workers.finds("otter"))
            wait_until(lambda: workers.complete() and workers.counts().files == 12)
        assert workers.finds("heron")
        assert server.requests == paid + 1, "the cache had all but the new one"


def test_an_endpoint_that_accepts_and_never_answers_is_named_while_it_is_waited_for(
    remote: Settings, broker_server: BrokerServer, server: EmbeddingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordination, "UNUSUAL_SECONDS", 0.1)
    monkeypatch.setattr(run, "Heartbeat", partial(Heartbeat, beat_seconds=0.05))
    monkeypatch.setattr("memory.status.agent.SILENCE_SECONDS", 0.0)
    server.open.clear()
    with Workers(remote) as workers:
        workers.note("memory/note.md", "the kettle")

        def told() -> AgentStatus | None:
            [agent] = build_status(remote, workers.board).agents
            return agent if agent.endpoint is not None and agent.endpoint.condition != "ok" else None

        status = wait_until(told)
        assert status.endpoint is not None
        assert (status.endpoint.condition, status.ok) == ("waiting", False)
        assert status.endpoint.reason == f"openai at {server.url} has not answered a request"
        [trouble] = [one for one in status.troubles if one.part == "provider openai"]
        assert trouble.since == status.endpoint.since
        server.open.set()
        wait_until(lambda: workers.complete() and told() is None)
        assert build_status(remote, workers.board).ok
