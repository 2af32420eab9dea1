"""Workers whose SQLite lacks a part do what can be done, pay for nothing that is lost, and leave the rest for later."""

from __future__ import annotations

from typing import Any

import pytest

from memory.index.generation_writer import GenerationWriter, HomeOwner
from memory.index.generations import Generations
from memory.store.errors import StoreUnreadable
from memory.store.options import StoreOptions
from schemas.conditions import ConditionCode
from schemas.settings import Chunking, Settings
from tests.embedding_server import EmbeddingServer
from tests.waiting import wait_until
from tests.without_fts5 import without_fts5
from tests.working import Workers, asking
from workers.queue.names import INDEX_PENDING
from workers.queue.private_server import BrokerServer


@pytest.fixture
def remote(settings: Settings, server: EmbeddingServer) -> Settings:
    """One agent whose vectors come from the server, and no cache: what is thrown away is paid for again."""
    return asking(settings, server.url, cache={"enabled": False})


def test_without_fts5_documents_wait_and_are_indexed_by_the_next_worker_that_has_it(
    remote: Settings, broker_server: BrokerServer, server: EmbeddingServer, pauses: list[tuple[str, float]]
) -> None:
    with Workers(remote) as workers:
        workers.index("memory/a.md", "The heron stands in the reeds.")
        workers.stop()
        pauses.clear()  # a job that was about to end may have been interrupted
        paid = server.requests
        workers.write("memory/b.md", "The otter swims.")
        with without_fts5():
            workers.start()
            workers.mark("memory/b.md")
            trouble = wait_until(workers.conditions)
            assert list(trouble) == [ConditionCode.KEYWORDS_UNAVAILABLE]
            wait_until(lambda: len(pauses) >= 2)
            assert set(pauses) == {(INDEX_PENDING, 60.0)}, "no storm"
            workers.stop()
        assert workers.waiting().live == 1
        assert workers.counts().files == 1
        assert server.requests == paid, "nothing is paid that could not be written"
        workers.start()
        wait_until(workers.complete)
        assert workers.finds("otter")
        wait_until(lambda: not workers.conditions())


def test_without_space_for_a_new_generation_that_is_said_and_live_notes_are_found_all_the_same(
    settings: Settings,
    broker_server: BrokerServer,
    pauses: list[tuple[str, float]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Workers(settings) as workers:
        workers.index("memory/a.md", "The heron stands in the reeds.")
    free = [1_000_000]
    pauses.clear()
    monkeypatch.setitem(GenerationWriter.__init__.__kwdefaults__, "free", lambda _: free[0])
    agent = settings.agents[0].model_copy(update={"chunking": Chunking(tokens=64, overlap=0)})
    changed = settings.model_copy(update={"agents": (agent,)})
    with Workers(changed) as workers:
        workers.write("memory/b.md", "The otter swims.")
        workers.mark("memory/a.md", "memory/b.md")
        trouble = wait_until(workers.conditions)
        assert list(trouble) == [ConditionCode.NO_SPACE]
        assert "1 MB are free" in str(trouble[ConditionCode.NO_SPACE].params["error"])
        assert workers.finds("otter")
        assert workers.finds("heron")
        wait_until(lambda: len(pauses) >= 2)
        assert {seconds for _, seconds in pauses} == {60.0}, "no storm"
        assert not workers.settled()
        generation = Generations(settings.indexes_path / "main", StoreOptions()).current()
        free[0] = 10_000_000_000
        wait_until(lambda: Generations(settings.indexes_path / "main", StoreOptions()).current() != generation)
        wait_until(workers.complete)
        wait_until(lambda: not workers.conditions())
        assert workers.finds("otter")


def test_documents_that_wait_for_the_owner_of_the_indexes_are_said_and_kept(
    settings: Settings, broker_server: BrokerServer, pauses: list[tuple[str, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Workers(settings) as workers:
        workers.index("memory/a.md", "The heron stands in the reeds.")
    monkeypatch.setattr("workers.failures.UNTAKEN_SECONDS", 0.0)
    owner = HomeOwner(settings.home)
    assert owner.owns()
    agent = settings.agents[0].model_copy(update={"chunking": Chunking(tokens=64, overlap=0)})
    with Workers(settings.model_copy(update={"agents": (agent,)})) as workers:
        workers.mark("memory/a.md")
        trouble = wait_until(workers.conditions)
        assert list(trouble) == [ConditionCode.SETTINGS_OLDER]
        assert not workers.settled()
        owner.close()
        wait_until(workers.complete)
        wait_until(lambda: not workers.conditions())


def test_clearing_away_that_fails_is_a_trouble_and_maintenance_goes_on_by_itself(
    settings: Settings, broker_server: BrokerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.maintenance.SWEEP_SECONDS", 0.1)
    monkeypatch.setattr("workers.maintenance.HOUSEKEEPING_SECONDS", 0.2)
    monkeypatch.setattr("memory.store.sqlite.writer.WAL_WORTH_CUTTING_BYTES", 1)
    sweep, broken = GenerationWriter.sweep, [True]

    def sweep_unless_broken(writer: GenerationWriter, **options: Any) -> None:
        if broken[0]:
            raise StoreUnreadable("the folder cannot be changed")
        sweep(writer, **options)

    monkeypatch.setattr(GenerationWriter, "sweep", sweep_unless_broken)
    with Workers(settings) as workers:
        workers.index("memory/a.md", "The heron stands in the reeds.")
        assert list(wait_until(workers.conditions)) == [ConditionCode.HOUSEKEEPING_FAILED]
        current = Generations(settings.indexes_path / "main", StoreOptions()).current()
        log = settings.indexes_path / "main" / f"{current}-wal"
        wait_until(lambda: log.stat().st_size == 0)
        broken[0] = False
        wait_until(lambda: not workers.conditions())
