"""Workers whose provider, disk or index fails them: said on the board, nothing lost, and it goes on."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import pytest
import redis

from memory.embedding import coordination
from memory.embedding.batcher import EmbeddingBatcher
from memory.index.indexer import Indexer
from memory.index.provider_fallback import provider_of
from memory.status.summary import build_status
from memory.store.errors import NoRoom, StoreFull
from memory.store.sqlite.writer import SqliteStore
from schemas.conditions import ConditionCode, Param
from schemas.documents import DocumentKey
from schemas.settings import Settings
from schemas.status import AgentStatus
from tests.embedding_server import EmbeddingServer, Failure
from tests.waiting import wait_until
from tests.working import Workers
from workers import maintenance, run
from workers.failures import Failures
from workers.health.health_store import HealthStore
from workers.health.heartbeat import Heartbeat
from workers.queue.broker import DoorbellBroker, make_broker, message
from workers.queue.job_queue import BrokerJobQueue
from workers.queue.names import EMBED_PENDING, INDEX_PENDING
from workers.queue.pending import Waiting
from workers.queue.private_server import BrokerServer


@pytest.fixture
def remote(settings: Settings, server: EmbeddingServer) -> Settings:
    """One agent whose vectors come from the server."""
    provider = {"provider": "openai", "remote": {"base_url": server.url, "api_key": "a-secret-key"}}
    agent = {"id": "main", "workspace": settings.agents[0].workspace, **provider}
    return Settings.model_validate({"home": settings.home, "agents": [agent], **provider})


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
        workers.write("memory/a.md", "The heron stands in the reeds.")
        workers.mark("memory/a.md")
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


def test_a_trouble_of_a_provider_is_over_when_nothing_waits_for_it_any_more(
    remote: Settings, broker_server: BrokerServer, server: EmbeddingServer
) -> None:
    # The job that could not embed comes back after a minute.
    server.fail_next(Failure(status=401, message="Incorrect API key"), times=10_000)
    with Workers(remote) as workers:
        workers.write("memory/a.md", "The heron stands in the reeds.")
        workers.mark("memory/a.md")
        wait_until(workers.conditions)
        wait_until(lambda: workers.settled() and workers.counts().vectors_pending == 1)
    # Started again with settings that name no provider: what waited is settled without the one that failed.
    keywords = remote.agents[0].model_copy(update={"provider": "stub"})
    with Workers(remote.model_copy(update={"agents": (keywords,)})) as workers:
        workers.write("memory/b.md", "The otter swims.")
        workers.mark("memory/a.md", "memory/b.md")
        wait_until(lambda: workers.complete() and workers.counts().vectors_ready == 2)
        wait_until(lambda: not workers.conditions())


def test_edits_while_the_provider_refuses_wait_as_one_message(
    remote: Settings, broker_server: BrokerServer, server: EmbeddingServer
) -> None:
    server.fail_next(Failure(status=401), times=10_000)
    with Workers(remote) as workers:
        for number in range(6):
            workers.write(f"memory/{number}.md", f"Note number {number}.")
            workers.mark(f"memory/{number}.md")
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
        workers.write("memory/a.md", "The heron stands in the reeds.")
        workers.mark("memory/a.md")
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


def test_a_full_disk_is_said_and_indexing_goes_on_when_there_is_room(
    settings: Settings,
    broker_server: BrokerServer,
    pauses: list[tuple[str, float]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    full = threading.Event()
    full.set()
    write = SqliteStore.write

    def write_unless_full(store: SqliteStore, changes: Any) -> Any:
        if full.is_set():
            raise StoreFull("no space left; free some and indexing goes on")
        return write(store, changes)

    monkeypatch.setattr(SqliteStore, "write", write_unless_full)
    with Workers(settings) as workers:
        workers.write("memory/a.md", "The heron stands in the reeds.")
        workers.mark("memory/a.md")
        wait_until(lambda: pauses)
        assert pauses[0] == (INDEX_PENDING, 10.0)
        assert list(workers.conditions()) == [ConditionCode.STORE_FULL]
        assert not workers.settled()
        full.clear()
        wait_until(workers.complete)
        assert workers.finds("heron")
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


def test_what_puts_things_right_outlives_whatever_goes_wrong(
    settings: Settings, broker_server: BrokerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds: list[str] = []

    def refused(*_: object) -> None:
        rounds.append("kept house")
        raise redis.ResponseError("MISCONF Errors writing to the AOF file")

    monkeypatch.setattr(maintenance, "keep_house", refused)
    monkeypatch.setattr(maintenance, "SWEEP_SECONDS", 0.05)
    monkeypatch.setattr(maintenance, "HOUSEKEEPING_SECONDS", 0.05)
    with Workers(settings):
        wait_until(lambda: len(rounds) >= 3)


def test_that_there_is_no_room_is_told_once_whoever_finds_out_and_until_there_is_some(
    settings: Settings, broker_server: BrokerServer, said: Reported, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: Indexer) -> None:
        raise NoRoom("a new index beside the present one needs about 71 MB")

    monkeypatch.setattr(maintenance, "SWEEP_SECONDS", 0.05)
    monkeypatch.setattr(maintenance, "HOUSEKEEPING_SECONDS", 0.05)
    with Workers(settings) as workers:
        with monkeypatch.context() as disk:
            disk.setattr(Indexer, "target", full)
            wait_until(lambda: said)
            assert {code for code, _ in said} == {ConditionCode.NO_SPACE}
        wait_until(lambda: not workers.board.conditions("main"))


def test_a_message_that_was_done_while_the_broker_took_nothing_is_over_when_it_does_again(
    settings: Settings, broker_server: BrokerServer, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: Any = client
    ended = Failures.after_process_message

    def full(failures: Failures, *arguments: Any, **options: Any) -> None:
        ended(failures, *arguments, **options)
        asked.replicaof("127.0.0.1", "1")  # every write is refused from now on

    monkeypatch.setattr("dramatiq.worker.POST_PROCESS_MESSAGE_RETRY_DELAY_SECS", 0.1)
    with Workers(settings) as workers:
        monkeypatch.setattr(Failures, "after_process_message", full)
        workers.write("memory/a.md", "The heron stands in the reeds.")
        workers.mark("memory/a.md")
        wait_until(lambda: asked.info("replication")["role"] == "slave")
        assert asked.hlen(workers.keys.messages("live")) == 1
        monkeypatch.setattr(Failures, "after_process_message", ended)
        asked.replicaof("NO", "ONE")
        wait_until(lambda: asked.hlen(workers.keys.messages("live")) == 0)
        assert workers.finds("heron")


def test_a_job_that_comes_back_later_does_so_though_the_broker_was_away_meanwhile(
    settings: Settings, broker_server: BrokerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []
    consume = DoorbellBroker.consume

    def counted(broker: DoorbellBroker, queue_name: str, *arguments: Any, **options: Any) -> Any:
        begun.append(queue_name)
        return consume(broker, queue_name, *arguments, **options)

    monkeypatch.setattr(DoorbellBroker, "consume", counted)
    monkeypatch.setattr("dramatiq.worker.CONSUMER_RESTART_DELAY_SECS", 0.2)
    with Workers(settings) as workers:
        delayed, keys = workers.keys.delayed_messages("live"), f"{workers.keys.dramatiq}:__acks__.*.live.DQ"
        make_broker(workers.client, workers.keys).enqueue(message(INDEX_PENDING, "live", "main", "live"), delay=2_000)
        wait_until(lambda: list(workers.client.scan_iter(keys)), what="a worker holds it")
        before = begun.count("live.DQ")
        broker_server.stop()
        wait_until(lambda: begun.count("live.DQ") > before, what="the worker noticed")
        broker_server.ensure()
        wait_until(lambda: not workers.client.hlen(delayed))


def test_vectors_that_a_dead_job_did_not_ask_for_are_asked_for_by_the_next_one(
    remote: Settings, broker_server: BrokerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memory.index.indexer.VECTOR_PATIENCE_SECONDS", -1.0)
    monkeypatch.setattr(BrokerJobQueue, "request_vectors", lambda *_: None)
    monkeypatch.setattr("workers.maintenance.SWEEP_SECONDS", 60.0)
    with Workers(remote) as workers:
        workers.write("memory/a.md", "The heron stands in the reeds.")
        workers.mark("memory/a.md")
        wait_until(lambda: workers.settled() and workers.counts().vectors_pending == 1)
        monkeypatch.undo()
        workers.write("memory/b.md", "The otter swims.")
        workers.mark("memory/b.md")
        wait_until(workers.complete)
        assert workers.counts().vectors_ready == 2


def test_workers_that_are_to_stop_wait_for_no_provider_and_hand_back_what_is_left(
    remote: Settings, broker_server: BrokerServer, server: EmbeddingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memory.index.vector_fill.ROUND_TIMEOUT_SECONDS", 300.0)
    monkeypatch.setattr("memory.index.indexer.VECTOR_PATIENCE_SECONDS", -1.0)
    monkeypatch.setattr("workers.run.DRAIN_SECONDS", 300.0)
    server.open.clear()
    with Workers(remote) as workers:
        workers.write("memory/a.md", "The heron stands in the reeds.")
        workers.mark("memory/a.md")
        wait_until(lambda: server.in_flight)
        ending = threading.Thread(target=workers.stop)
        ending.start()
        # The job is over and its work is another message's, while the answer is still on its way.
        wait_until(lambda: workers.client.llen(f"{workers.keys.dramatiq}:vectors"))
        server.open.set()
        ending.join(60)
        assert not ending.is_alive()
        assert workers.counts().vectors_pending == 1
        workers.start()
        wait_until(workers.complete)
    assert not server.paid_twice, "the answer that came too late for the index is in the cache"


def test_an_endpoint_that_accepts_and_never_answers_is_named_while_it_is_waited_for(
    remote: Settings, broker_server: BrokerServer, server: EmbeddingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordination, "UNUSUAL_SECONDS", 0.1)
    monkeypatch.setattr(run, "Heartbeat", partial(Heartbeat, beat_seconds=0.05))
    monkeypatch.setattr("memory.status.agent.SILENCE_SECONDS", 0.0)
    server.open.clear()
    with Workers(remote) as workers:
        workers.write("memory/note.md", "the kettle")
        workers.mark("memory/note.md")

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
