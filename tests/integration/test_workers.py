"""Workers on a real Valkey and real SQLite: what becomes of marks, and who goes first."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from memory.documents.agent_files import AgentFiles, SourceText
from schemas.documents import DocumentKey, Lane
from schemas.settings import Settings
from tests.transcript_files import message_line
from tests.waiting import wait_until
from tests.working import Workers
from tests.written_index import with_agent
from workers.failure_policy import Postponed
from workers.index_job import CLAIM, index_turn
from workers.maintenance import keep_house
from workers.queue.job_queue import queued_jobs
from workers.queue.names import EMBED_PENDING, INDEX_PENDING
from workers.queue.pending import LIVE_DOCUMENTS
from workers.runtime import Runtime, Timing
from workers.vectors_job import embed_turn

pytestmark = pytest.mark.usefixtures("broker_server")

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
    counts = workers.health.counters.read().values()
    return sum(number for by_labels in counts for labels, number in by_labels.items() if labels[:1] == (actor,))


class Gate:
    """Holds whoever passes until it is opened."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.open = threading.Event()

    def pass_through(self) -> None:
        self.reached.set()
        assert self.open.wait(60)


def test_any_number_of_marks_during_a_job_cost_one_more_message_and_one_more_read(
    one_thread: Settings, on_read: Callable[[OnRead], None]
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
    one_thread: Settings, on_read: Callable[[OnRead], None]
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
    one_thread: Settings, on_read: Callable[[OnRead], None]
) -> None:
    order: list[str] = []
    on_read(lambda files, key: order.append("noisy" if "noisy" in key.path else "quiet"))
    # A shared turn is as long as one claim.
    workers = Workers(one_thread, timing=Timing(turn=100.0, shared_turn=0.0))
    noisy = [f"memory/noisy-{number}.md" for number in range(5 * CLAIM)]
    for path in noisy:
        workers.write(path, path)
    workers.mark(*noisy, lane=Lane.BACKFILL)
    quiet = [f"memory/quiet-{number}.md" for number in range(CLAIM + 2)]
    for path in quiet:
        workers.write(path, path, agent="other")
    workers.mark(*quiet, agent="other", lane=Lane.BACKFILL)
    with workers:
        wait_until(lambda: workers.settled() and workers.settled("other"))
    assert order == [
        *["noisy"] * CLAIM,
        *["quiet"] * CLAIM,
        *["noisy"] * CLAIM,
        *["quiet"] * 2,
        *["noisy"] * 3 * CLAIM,
    ]


# A very long transcript


MESSAGES = 12_000
KEY = DocumentKey("sessions", "sessions/long.jsonl")


@pytest.fixture
def two_agents(settings: Settings, tmp_path: Path) -> Settings:
    """One backfill job at a time for both of them; keywords only."""
    sessions = tmp_path / "sessions"
    sessions.mkdir()
    with (sessions / KEY.path.removeprefix("sessions/")).open("wb") as file:
        for number in range(MESSAGES):
            file.write(message_line("plain", "user", f"word{number} " + "stands beside telescopes again " * 8))
    agents = []
    for name in ("main", "second"):
        (tmp_path / name / "memory").mkdir(parents=True)
        agents.append({"id": name, "workspace": tmp_path / name, "provider": "none", "sessions": [str(sessions)]})
    facts = {"home": settings.home, "agents": agents, "workers": {"threads": 1}}
    return Settings.model_validate(facts)


def test_other_agents_take_their_turn_while_a_long_transcript_is_read(two_agents: Settings) -> None:
    with Workers(two_agents, timing=Timing(turn=0.2)) as workers:
        workers.write("memory/short.md", "The okapi is short.\n", agent="second")
        workers.queue.mark_changed("main", [KEY], lane=Lane.BACKFILL)
        wait_until(lambda: workers.counts("main").chunks, what="the long one is under way")
        workers.mark("memory/short.md", agent="second", lane=Lane.BACKFILL)
        wait_until(lambda: workers.finds("okapi", "second"))
        assert not workers.settled("main"), "the long transcript was over before it was the other agent's turn"
        wait_until(lambda: workers.settled("main"), timeout=120)
        wait_until(lambda: workers.settled("second"))
        in_turns = content(workers, "main")
    with Workers(two_agents, timing=Timing(turn=600.0)) as workers:
        workers.queue.mark_changed("second", [KEY], lane=Lane.BACKFILL)
        wait_until(lambda: workers.settled("second"), timeout=120)
        assert in_turns == content(workers, "second")
        assert workers.finds(f"word{MESSAGES - 1}")


def content(workers: Workers, agent: str) -> list[tuple[int, int, int, str]]:
    """Ordinal, lines and hash of each chunk of the long transcript."""
    with workers.reading(agent) as reader:
        assert reader is not None
        return [(one.ordinal, one.start_line, one.end_line, one.text_hash) for one in reader.chunks_of(KEY)]


def test_a_vanished_session_leaves_the_index_when_its_archive_is_there_whole(
    settings: Settings, workspace: Path
) -> None:
    sessions = workspace.parent / "sessions"
    sessions.mkdir()
    file = sessions / "a.jsonl"
    archive = sessions / "a.jsonl.reset.2026-02-04T10-00-00.000Z"
    said = [message_line("plain", "user", f"word{number} " + "stands beside telescopes " * 40) for number in range(9)]

    def known(workers: Workers) -> list[str]:
        with workers.reading("main") as reader:
            return sorted(file.key.path for file in reader.files()) if reader is not None else []

    def indexed(path: Path) -> None:
        workers.queue.mark_changed("main", [DocumentKey("sessions", f"sessions/{path.name}")], lane=Lane.LIVE)
        wait_until(workers.complete)

    with Workers(with_agent(settings, sessions=[str(sessions)])) as workers:
        file.write_bytes(b"".join(said))
        indexed(file)
        archive.write_bytes(b"".join(said[:5]))
        indexed(archive)
        archive.write_bytes(b"".join(said))
        file.unlink()
        indexed(file)
        assert known(workers) == [f"sessions/{file.name}", f"sessions/{archive.name}"]
        indexed(archive)
        wait_until(lambda: known(workers) == [f"sessions/{archive.name}"])


def commits_beside_live_work(settings: Settings, lane: Lane, documents: int) -> int:
    """Index documents in one turn while a job on live documents runs; return the number of commits."""
    workers = Workers(settings)
    runtime = Runtime(settings, workers.queue, workers.health, timing=Timing(turn=600.0, shared_turn=600.0))
    names = [f"memory/{number}.md" for number in range(documents)]
    for name in names:
        workers.write(name, f"The heron of {name} stood in the reed bed.")
    workers.mark(*names, lane=lane)
    # A job on live documents that does not end, and counts as a short one however slow this machine is.
    workers.client.zadd(workers.keys.live_jobs, {"live": time.time() + 3600})
    runtime.courtesy.let_pass(0.0)
    claim = workers.queue.started(INDEX_PENDING, "main", lane, job="job", limit=CLAIM)
    assert claim is not None
    with capture_logs() as logged:
        index_turn(runtime, "main", lane, "job", claim)
    runtime.close()
    assert workers.counts().chunks == len(names)
    [commits] = [line["commits"] for line in logged if line["event"] == "documents_indexed"]
    return int(commits)


def test_old_documents_are_indexed_in_small_steps_while_live_ones_are(one_thread: Settings) -> None:
    # The first claim may be a whole one.
    assert commits_beside_live_work(one_thread, Lane.BACKFILL, 2 * CLAIM) > 2


def test_live_documents_are_indexed_in_whole_steps_beside_each_other(one_thread: Settings) -> None:
    assert commits_beside_live_work(one_thread, Lane.LIVE, LIVE_DOCUMENTS) == 1


def test_sentences_give_way_to_documents_of_any_agent_and_come_last(one_thread: Settings) -> None:
    workers = Workers(one_thread)
    runtime = Runtime(one_thread, workers.queue, workers.health)

    def sentences() -> tuple[int, int]:
        with workers.reading("main") as reader:
            assert reader is not None
            return reader.sentence_counts()

    workers.note("MEMORY.md", "The heron stood in the reed bed of the northern lake.")
    claim = workers.queue.started(INDEX_PENDING, "main", Lane.LIVE, job="job", limit=CLAIM)
    assert claim is not None
    index_turn(runtime, "main", Lane.LIVE, "job", claim)
    assert EMBED_PENDING in [job.actor for job in queued_jobs(workers.client, workers.keys)]
    workers.mark("MEMORY.md", agent="other")
    with pytest.raises(Postponed):
        embed_turn(runtime, "main", "job")
    assert sentences() == (0, 1)
    runtime.close()
    with workers:
        wait_until(lambda: workers.settled("other"))
        workers.note("MEMORY.md", "The heron left the reed bed of the northern lake.")
        wait_until(lambda: workers.complete() and sentences() == (1, 1))


def test_housekeeping_requests_sentences_of_an_index_that_has_none(settings: Settings) -> None:
    with Workers(with_agent(settings, query={"sentences": "off"})) as workers:
        workers.index("MEMORY.md", "The heron stood in the reed bed of the northern lake.")
        workers.stop()
        runtime = Runtime(settings, workers.queue, workers.health)
        keep_house(runtime, "main")
        runtime.close()
        assert [job.actor for job in queued_jobs(workers.client, workers.keys)] == [EMBED_PENDING]


def test_agents_of_one_tenant_share_a_supply_of_vectors_and_tenants_do_not(settings: Settings) -> None:
    agents = [settings.agents[0].model_copy(update={"id": name}) for name in ("acme/anna", "acme/bob", "other/carl")]
    fleet = settings.model_copy(update={"agents": tuple(agents)})
    workers = Workers(fleet)
    runtime = Runtime(fleet, workers.queue, workers.health)
    with ExitStack() as lent:
        anna, bob, carl = (lent.enter_context(runtime.indexer(agent.id)).supply for agent in agents)
        assert anna is bob
        assert anna is not carl
        assert anna.batcher is not carl.batcher
        assert anna.cache is not carl.cache
    runtime.close()
