"""Workers whose provider, disk or index fails them: reported in health, nothing lost, and it goes on."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from memory.index.file_generation_writer import HomeOwner
from memory.index.file_generations import FileGenerations
from memory.index.indexer import Indexer
from memory.index.provider import provider_of
from memory.status.home import build_status
from memory.store.options import StoreOptions
from schemas.conditions import ConditionCode
from schemas.documents import DocumentKey
from schemas.settings import Settings
from schemas.status import AgentStatus
from tests.embedding_server import EmbeddingServer, Failure
from tests.waiting import wait_until
from tests.working import Workers, asking
from tests.written_index import with_agent
from workers.queue.names import EMBED_PENDING, INDEX_PENDING
from workers.queue.pending import Waiting
from workers.runtime import Timing

pytestmark = pytest.mark.usefixtures("broker_server")


@pytest.fixture
def remote(settings: Settings, server: EmbeddingServer) -> Settings:
    return asking(settings, server.url)


def test_a_refused_key_leaves_keywords_and_vectors_come_when_it_is_accepted(
    remote: Settings, server: EmbeddingServer, pauses: list[tuple[str, float]]
) -> None:
    server.fail_next(Failure(status=401, message="Incorrect API key: a-secret-key"), times=10_000)
    with Workers(remote) as workers:
        workers.note("memory/a.md", "The heron stands in the reeds.")
        trouble = wait_until(workers.conditions)
        assert list(trouble) == [ConditionCode.PROVIDER_REFUSES]
        assert trouble[ConditionCode.PROVIDER_REFUSES].subject == "openai"
        assert "a-secret-key" not in str(trouble)
        wait_until(workers.settled)
        assert workers.finds("heron")
        counts = workers.counts()
        assert (counts.vectors_ready, counts.vectors_pending) == (0, 1)
        wait_until(lambda: pauses)
        assert set(pauses) == {(EMBED_PENDING, 60.0)}
        server.recover()
        provider = provider_of(remote, remote.agents[0]).provider
        assert provider is not None
        workers.health.take_step(provider.account, provider.model, "forget")
        wait_until(workers.complete)
        wait_until(lambda: not workers.conditions())


@pytest.mark.long
def test_a_provider_that_asks_for_time_gets_it(
    remote: Settings, server: EmbeddingServer, pauses: list[tuple[str, float]]
) -> None:
    server.fail_next(Failure(status=429, headers={"Retry-After": "6"}))
    with Workers(remote, timing=Timing(patience=0.3)) as workers:
        workers.note("memory/a.md", "The heron stands in the reeds.")
        trouble = wait_until(workers.conditions)
        assert list(trouble) == [ConditionCode.PROVIDER_FAILS]
        assert workers.finds("heron")
        wait_until(workers.complete)
        wait_until(lambda: not workers.conditions())
    first, second = server.log
    assert second.started - first.started >= 6
    assert {actor for actor, _ in pauses} == {EMBED_PENDING}
    assert all(0 < seconds <= 6 for _, seconds in pauses), "what is left of the time that was asked for"


def test_an_unexpected_error_is_reported_and_retried_ever_more_rarely(
    settings: Settings, pauses: list[tuple[str, float]], monkeypatch: pytest.MonkeyPatch
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
        [failed] = workers.health.conditions("main")
        assert (failed.code, failed.subject) == (ConditionCode.JOB_FAILED, "index_pending live")
        assert "ZeroDivisionError" in str(failed.params["error"])
        wait_until(lambda: workers.waiting() == Waiting(live=3, backfill=0, running=0))
        assert workers.counts().files == 0
        broken.clear()
        wait_until(workers.complete)
        assert workers.counts().files == 3
        wait_until(lambda: not workers.conditions())


def test_an_endpoint_that_accepts_and_never_answers_is_named_while_it_is_waited_for(
    remote: Settings, server: EmbeddingServer
) -> None:
    server.open.clear()
    with Workers(remote, timing=Timing(late_answer=0.1, heartbeat=0.05)) as workers:
        workers.note("memory/note.md", "the kettle")

        def told() -> AgentStatus | None:
            [agent] = build_status(remote, workers.health).agents
            return agent if agent.endpoint is not None and agent.endpoint.condition != "ok" else None

        status = wait_until(told)
        assert status.endpoint is not None
        assert status.endpoint.condition == "waiting"
        assert server.url in str(status.endpoint.reason)
        server.open.set()
        wait_until(lambda: workers.complete() and told() is None)
        assert build_status(remote, workers.health).ok
    assert server.requests == 1


def test_a_request_beyond_its_seconds_is_sent_again_and_the_reason_says_them(
    remote: Settings, server: EmbeddingServer
) -> None:
    address = remote.agents[0].remote.model_copy(update={"timeout_seconds": 0.3})
    server.open.clear()
    with Workers(with_agent(remote, remote=address), timing=Timing(patience=0.1)) as workers:
        workers.note("memory/note.md", "the kettle")
        reason = "did not answer in time (0.3 s): raise remote.timeout_seconds"
        wait_until(lambda: reason in str(workers.conditions().get(ConditionCode.PROVIDER_FAILS)))
        wait_until(lambda: server.requests > 1)
        server.open.set()
        wait_until(workers.complete)


# No space, and no owner


def test_without_space_for_a_new_generation_live_notes_are_found_all_the_same(
    settings: Settings, pauses: list[tuple[str, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Workers(settings) as workers:
        workers.index("memory/a.md", "The heron stands in the reeds.")
    free = [1_000_000]
    pauses.clear()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free[0]))
    with Workers(with_agent(settings, chunking={"tokens": 64, "overlap": 0})) as workers:
        workers.write("memory/b.md", "The otter swims.")
        workers.mark("memory/a.md", "memory/b.md")
        trouble = wait_until(workers.conditions)
        assert list(trouble) == [ConditionCode.NO_SPACE]
        assert "1 MB are free" in str(trouble[ConditionCode.NO_SPACE].params["error"])
        wait_until(lambda: workers.finds("otter"))  # a job for sentences may have found the lack of space first
        assert workers.finds("heron")
        wait_until(lambda: len(pauses) >= 2)
        assert {seconds for _, seconds in pauses} == {60.0}, "no storm"
        assert not workers.settled()
        generation = FileGenerations(settings.indexes_path / "main", StoreOptions()).current()
        free[0] = 10_000_000_000
        wait_until(lambda: FileGenerations(settings.indexes_path / "main", StoreOptions()).current() != generation)
        wait_until(workers.complete)
        wait_until(lambda: not workers.conditions())
        assert workers.finds("otter")


def test_documents_that_wait_for_the_owner_of_the_indexes_are_said_and_kept(
    settings: Settings, pauses: list[tuple[str, float]]
) -> None:
    with Workers(settings) as workers:
        workers.index("memory/a.md", "The heron stands in the reeds.")
    owner = HomeOwner(settings.home)
    assert owner.owns()
    changed = with_agent(settings, chunking={"tokens": 64, "overlap": 0})
    with Workers(changed, timing=Timing(untaken=0.0)) as workers:
        workers.mark("memory/a.md")
        trouble = wait_until(workers.conditions)
        assert list(trouble) == [ConditionCode.SETTINGS_OLDER]
        assert not workers.settled()
        owner.close()
        wait_until(workers.complete)
        wait_until(lambda: not workers.conditions())


# The configured fallback


def with_fallback(settings: Settings, server: EmbeddingServer, key: str | None = "a-key", **more: Any) -> Settings:
    remote = {"base_url": server.url, "api_key": key} if key is not None else {}
    provider = {"provider": "openai", "fallback": "stub", "remote": remote, **more}
    agent = {"id": "main", "workspace": settings.agents[0].workspace, **provider}
    return Settings.model_validate({"home": settings.home, "agents": [agent], **provider})


def identity(workers: Workers) -> str:
    with workers.reading("main") as reader:
        description = reader.meta("identity") if reader is not None else None
    return str(json.loads(json.loads(description)["embedding"])["provider"]) if description else ""


def test_the_fallback_takes_over_as_a_new_generation_and_no_vectors_are_mixed(
    settings: Settings, server: EmbeddingServer
) -> None:
    ours = with_fallback(settings, server)
    with Workers(ours) as workers:
        workers.index("memory/a.md", "The heron stands in the reeds.")
        assert identity(workers) == "openai"
        server.fail_next(Failure(status=401, message="revoked"), times=10_000)
        workers.note("memory/b.md", "The otter swims in the brook.")
        wait_until(lambda: identity(workers) == "stub", what="the fallback's generation answers")
        wait_until(workers.complete)
        counts = workers.counts()
        assert (counts.files, counts.vectors_ready) == (2, 2)
        wait_until(lambda: not workers.conditions())
        asked = server.requests
        workers.note("memory/c.md", "And a kingfisher.")
        wait_until(lambda: workers.counts().files == 3 and workers.complete())
        assert server.requests == asked, "it takes over once: the first provider is not asked any more"
    choice = provider_of(ours, ours.agents[0])
    assert (choice.name, choice.requested) == ("stub", "openai")
    assert "HTTP 401" in str(choice.reason)


def test_a_new_key_gives_the_first_provider_back_and_pays_nothing_twice(
    settings: Settings, server: EmbeddingServer
) -> None:
    with Workers(with_fallback(settings, server)) as workers:
        workers.index("memory/a.md", "The heron stands in the reeds.")
        server.fail_next(Failure(status=401), times=10_000)
        workers.note("memory/b.md", "The otter swims in the brook.")
        wait_until(lambda: identity(workers) == "stub" and workers.complete())
    server.recover()
    renewed = with_fallback(settings, server, key="another-key")
    with Workers(renewed) as workers:
        workers.note("memory/c.md", "And a kingfisher.")
        wait_until(lambda: identity(workers) == "openai" and workers.complete())
        assert workers.counts().files == 3
    assert provider_of(renewed, renewed.agents[0]).name == "openai"
    assert server.inputs == server.distinct == 3


def test_an_endpoint_that_stays_away_is_taken_over_from_after_a_while_only(
    settings: Settings, server: EmbeddingServer, pauses: list[tuple[str, float]]
) -> None:
    server.fail_next(Failure(status=502), times=10_000)
    with Workers(with_fallback(settings, server), timing=Timing(patience=0.1)) as workers:
        workers.note("memory/a.md", "The heron stands in the reeds.")
        wait_until(workers.conditions)
        wait_until(lambda: len(pauses) >= 3, what="it was tried again and again")
        assert identity(workers) == "openai"
    with Workers(with_fallback(settings, server), timing=Timing(patience=0.1, lost_provider=0.0)) as workers:
        wait_until(lambda: identity(workers) == "stub" and workers.complete())
        wait_until(lambda: not workers.conditions())


def test_a_fallback_that_cannot_be_had_is_said_and_does_not_take_over(
    settings: Settings, server: EmbeddingServer
) -> None:
    server.fail_next(Failure(status=401), times=10_000)
    with Workers(with_fallback(settings, server, fallback="voyage")) as workers:
        workers.note("memory/a.md", "The heron stands in the reeds.")
        wait_until(lambda: len(workers.conditions()) > 1)
        said = workers.conditions()
        assert {one.subject for one in said.values()} == {"openai"}
        assert said.keys() == {ConditionCode.PROVIDER_REFUSES, ConditionCode.FALLBACK_UNUSABLE}
        assert "VOYAGE_API_KEY" in str(said[ConditionCode.FALLBACK_UNUSABLE].params["reason"])
        assert identity(workers) == "openai"
