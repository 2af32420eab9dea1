"""Workers on a real Valkey and real SQLite: what becomes of marks, and who goes first."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import structlog

from memory.documents.agent_files import AgentFiles, SourceText
from schemas.documents import DocumentKey, Lane
from schemas.settings import Settings
from tests.waiting import wait_until
from tests.working import Workers
from workers import index_job as indexing_job
from workers.queue.names import EMBED_PENDING, INDEX_PENDING
from workers.queue.pending import Waiting
from workers.queue.private_server import BrokerServer

#: The marks when nothing waits and nothing runs.
AT_REST = Waiting(live=0, backfill=0, running=0)

OnRead = Callable[[AgentFiles, DocumentKey], None]


@pytest.fixture
def one_thread(settings: Settings, workspace: Path) -> Settings:
    """Two agents, and one job of a queue at a time."""
    other = workspace.parent / "other"
    other.mkdir()
    return Settings.model_validate(
        {
            "home": settings.home,
            "workers": {"threads": 1},
            "agents": [
                {"id": "main", "workspace": workspace, "provider": "stub"},
                {"id": "other", "workspace": other, "provider": "stub"},
            ],
        }
    )


@pytest.fixture
def on_read(monkeypatch: pytest.MonkeyPatch) -> Callable[[OnRead], None]:
    """Have something done whenever a worker reads a document."""
    read = AgentFiles.read

    def watch(look: OnRead) -> None:
        def reading(files: AgentFiles, key: DocumentKey) -> SourceText:
            look(files, key)
            return read(files, key)

        monkeypatch.setattr(AgentFiles, "read", reading)

    return watch


def jobs(workers: Workers, actor: str) -> int:
    """Stop the workers; return how many jobs of an actor they ran."""
    workers.stop()
    return sum(count.number for count in workers.board.counters.read() if count.labels[:1] == (actor,))


class Gate:
    """Holds whoever passes until it is opened."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.open = threading.Event()

    def pass_through(self) -> None:
        self.reached.set()
        assert self.open.wait(60)


def test_any_number_of_marks_during_a_job_cost_one_more_message_and_one_more_read(
    one_thread: Settings, broker_server: BrokerServer, on_read: Callable[[OnRead], None]
) -> None:
    gate, reads = Gate(), Counter[str]()

    def look(_files: AgentFiles, key: DocumentKey) -> None:
        reads[key.path] += 1
        gate.pass_through()

    on_read(look)
    with Workers(one_thread) as workers:
        workers.note("memory/a.md", "The heron stands in the reeds.")
        assert gate.reached.wait(60)
        for number in range(25):
            workers.note("memory/a.md", f"The kestrel hovers, {number}.")
        gate.open.set()
        wait_until(workers.complete)
        assert workers.finds("kestrel")
        assert workers.finds("24")
        assert reads["memory/a.md"] <= 2
        # The first job's, the one of the marks during it, and that of the document which waited once more.
        assert jobs(workers, INDEX_PENDING) <= 3


def test_an_agent_whose_job_takes_long_leaves_the_other_threads_to_other_agents(
    one_thread: Settings, broker_server: BrokerServer, on_read: Callable[[OnRead], None]
) -> None:
    two_threads = one_thread.model_copy(update={"workers": one_thread.workers.model_copy(update={"threads": 2})})
    gate = Gate()
    on_read(lambda _files, key: gate.pass_through() if "storm" in key.path else None)
    with Workers(two_threads) as workers:
        storm = [f"memory/storm-{number}.md" for number in range(3)]
        for path in storm:
            workers.write(path, f"Thunder and lightning, {path}.")
        workers.mark(storm[0])
        assert gate.reached.wait(60)
        for path in storm[1:]:
            workers.mark(path)
            # Its message is taken: by a thread that the storm does not get.
            wait_until(lambda: not workers.queue.others_wait(Lane.LIVE))
        workers.note("memory/new.md", "The heron stands in the reeds.", agent="other")
        wait_until(lambda: workers.finds("heron", "other"))
        assert workers.waiting().live == 2
        gate.open.set()
        wait_until(workers.complete)
        assert workers.counts().files == 3


def test_two_agents_take_turns_that_are_short_as_long_as_both_wait(
    one_thread: Settings,
    broker_server: BrokerServer,
    on_read: Callable[[OnRead], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order: list[str] = []
    on_read(lambda files, key: order.append("noisy" if "noisy" in key.path else "quiet"))
    # A clock that ticks at each look makes a turn as long as one claim.
    ticks = iter(range(1_000_000))
    monkeypatch.setattr(indexing_job, "time", SimpleNamespace(time=time.time, monotonic=lambda: float(next(ticks))))
    monkeypatch.setattr(indexing_job, "TURN_SECONDS", 100.0)
    monkeypatch.setattr(indexing_job, "SHARED_TURN_SECONDS", 1.5)
    monkeypatch.setattr(indexing_job, "CLAIM", 4)
    workers = Workers(one_thread)
    noisy = [f"memory/noisy-{number}.md" for number in range(20)]
    for path in noisy:
        workers.write(path, path)
    workers.mark(*noisy, lane=Lane.BACKFILL)
    quiet = [f"memory/quiet-{number}.md" for number in range(6)]
    for path in quiet:
        workers.write(path, path, agent="other")
    workers.mark(*quiet, agent="other", lane=Lane.BACKFILL)
    with workers:
        wait_until(lambda: workers.settled() and workers.settled("other"))
    assert order == ["noisy"] * 4 + ["quiet"] * 4 + ["noisy"] * 4 + ["quiet"] * 2 + ["noisy"] * 12


def test_a_message_for_an_agent_that_nobody_knows_is_dropped_and_said(
    settings: Settings, broker_server: BrokerServer
) -> None:
    with structlog.testing.capture_logs() as logs, Workers(settings) as workers:
        workers.mark("memory/a.md", agent="stranger")
        wait_until(lambda: any(entry["event"] == "unknown_agent" for entry in logs))
        wait_until(lambda: not workers.client.hlen(workers.keys.messages("live")))
        workers.index("memory/a.md", "The heron stands in the reeds.")
    [said] = [entry for entry in logs if entry["event"] == "unknown_agent"]
    assert said["agent"] == "stranger"
    assert not (settings.indexes_path / "stranger").exists()


def test_without_a_provider_nobody_asks_for_vectors_for_ever(
    settings: Settings, workspace: Path, broker_server: BrokerServer
) -> None:
    keywords_only = Settings.model_validate(
        {"home": settings.home, "agents": [{"id": "main", "workspace": workspace, "provider": "none"}]}
    )
    with Workers(keywords_only) as workers:
        workers.note("memory/one.md", "The caracal sleeps.\n")
        wait_until(lambda: workers.settled() and workers.finds("caracal"))
        workers.queue.request_vectors("main")
        for number in range(3):
            workers.note("memory/two.md", f"The ocelot wakes {number}.\n")
            wait_until(lambda: workers.settled() and workers.finds("ocelot"))
        wait_until(lambda: not workers.client.hlen(workers.keys.messages("vectors")))
        assert jobs(workers, EMBED_PENDING) == 1
