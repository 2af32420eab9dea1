"""A command that waits for an index: it asks anew, waits for its own work, says for what, and always comes back."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from memory.index.provider import provider_of
from recalld.invocation import Invocation
from recalld.runs.by_workers import Wait, progress
from recalld.runs.outcome import Outcome
from recalld.runs.run import NO_FORECAST, Forecast, Run
from recalld.terminal_text import ProgressLine
from recalld.up.lifecycle import running_broker
from recalld.wiring import BrokerSide, open_broker
from schemas.conditions import ConditionCode
from schemas.documents import DocumentKey, Lane
from schemas.errors import Transient
from schemas.settings import Settings
from schemas.status import IndexCounts
from tests.commanding import CommandLine
from tests.embedding_server import EmbeddingServer, Failure
from tests.transcript_files import transcript
from tests.waiting import wait_until
from tests.working import key
from tests.written_index import with_agent, write_index
from workers.claims import shared_limiter
from workers.queue.names import EMBED_PENDING, VECTORS_QUEUE
from workers.queue.private_server import BrokerServer

OWN, OTHER = key("MEMORY.md"), key("memory/other.md")


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """Settings without sentences: the test is the worker."""
    return with_agent(settings, query={"sentences": "off"})


@pytest.fixture
def side(settings: Settings, broker_server: BrokerServer) -> Iterator[BrokerSide]:
    opened = open_broker(settings)
    yield opened
    opened.client.close()


class Recorded(ProgressLine):
    """Keeps what it is given instead of drawing it."""

    def __init__(self) -> None:
        super().__init__(print, terminal=False, at_once=True)
        self.shown: list[str] = []

    def draw(self, text: str, *, share: float | None = None, last: bool = False) -> None:
        self.shown.append(text)


class Waiting:
    """A run in a thread, while the test is the worker."""

    def __init__(
        self,
        settings: Settings,
        side: BrokerSide,
        forecast: Forecast = NO_FORECAST,
        server: BrokerServer | None = None,
    ) -> None:
        self._stop = threading.Event()
        self.run = Run(settings, settings.agents)
        self.waited = Wait(self.run, side, self._stop, forecast, server=server)
        self.waited.line = self.line = Recorded()
        self.side = side
        self.outcomes: list[Outcome] = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Waiting:
        self.waited.enqueue([])
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)
        self.run.__exit__()

    def mark(self, *documents: DocumentKey) -> None:
        self.side.queue.mark_changed("main", documents, lane=Lane.LIVE)

    def claim(self, number: int) -> None:
        self.side.queue.pending_set.claim("main", lane=Lane.LIVE, job="job", limit=number)

    def finish(self, document: DocumentKey) -> None:
        self.side.queue.pending_set.finish("main", [document], job="job", now=0.0)

    def came_back(self) -> bool:
        return not self._thread.is_alive()

    def _run(self) -> None:
        self.outcomes = self.waited.until_done(works=lambda: True)


@pytest.mark.parametrize(
    ("counts", "start", "forecast", "more", "line"),
    [
        pytest.param(
            IndexCounts(chunks=1_100, vectors_ready=1_000, vectors_pending=100),
            IndexCounts(chunks=600, vectors_ready=600),
            Forecast((30_000_000, 50_000_000), 2_000, rate=7.0),
            {"read": 0.25, "failed": 2},
            "20%  documents 3/8  chunks 400/2,000  100 wait for vectors (keywords work)  2 failed  2.0 MB/s  "
            "80 texts/s, about 30 s left",
            id="reading takes longest",
        ),
        pytest.param(
            IndexCounts(chunks=600, vectors_ready=300, vectors_pending=300),
            IndexCounts(chunks=600, vectors_ready=200, vectors_pending=400),
            Forecast((), 400),
            {"read": 1.0},
            "25%  documents 3/8  chunks 100/400  300 wait for vectors (keywords work)  20 texts/s, about 15 s left",
            id="chunks that waited for their vectors already are a part of the work",
        ),
        pytest.param(
            IndexCounts(chunks=900, vectors_ready=500, vectors_pending=100, vectors_held=300),
            IndexCounts(chunks=800, vectors_ready=500, vectors_held=300),
            Forecast((10_000_000,), 500, finished=500, rate=7.0),
            {"read": 0.5},
            "50%  documents 3/8  chunks 500/1,000  100 wait for vectors (keywords work)  0.5 MB/s  "
            "7.0 texts/s, about 1 min 11 s left",
            id="a resumed one begins where it was, with the rate of the last run",
        ),
        pytest.param(
            IndexCounts(chunks=90),
            IndexCounts(),
            NO_FORECAST,
            {"read": 0.3},
            "30%  documents 3/8  chunks 90/300  18 texts/s, about 12 s left",
            id="unread documents without a forecast are like those that were read",
        ),
        pytest.param(
            IndexCounts(chunks=120),
            IndexCounts(),
            Forecast((1,), 100),
            {"read": 1.0},
            "100%  documents 3/8  chunks 120/120",
            id="more than was estimated is not more than everything",
        ),
    ],
)
def test_the_line_has_the_figures_of_this_run(
    counts: IndexCounts, start: IndexCounts, forecast: Forecast, more: dict[str, float], line: str
) -> None:
    figures = {"documents": 3, "of_documents": 8, "seconds": 10.0, "embedding_seconds": 5.0, **more}
    text, share = progress(counts, start, forecast, **figures)
    assert (text, f"{share:.0%}") == (line, line.split()[0])


def test_documents_that_are_still_to_be_read_are_in_the_total(settings: Settings, side: BrokerSide) -> None:
    waiting = Waiting(settings, side, Forecast((600, 200), 100))
    waiting.mark(OWN, OTHER)
    with waiting:
        wait_until(lambda: [line for line in waiting.line.shown if "documents 0/2  chunks 0/100 " in line])
        waiting.claim(1)
        waiting.finish(OWN)
        wait_until(lambda: [line for line in waiting.line.shown if "documents 1/2  chunks 0/25 " in line])


def test_it_starts_the_queue_again_that_another_command_ended(
    settings: Settings, side: BrokerSide, broker_server: BrokerServer
) -> None:
    side.queue.mark_changed("main", [OWN], lane=Lane.LIVE)
    with running_broker(settings) as server, Waiting(settings, side, server=server) as waiting:
        broker_server.stop()
        wait_until(lambda: server.owned and server.answers())
        waiting.claim(1)
        waiting.finish(OWN)
        wait_until(waiting.came_back)


def test_what_changes_while_it_waits_does_not_keep_it(settings: Settings, side: BrokerSide) -> None:
    waiting = Waiting(settings, side)
    waiting.mark(OWN)
    with waiting:
        wait_until(lambda: waiting.line.shown)
        waiting.mark(OTHER)
        waiting.claim(1)
        waiting.finish(OWN)
        wait_until(waiting.came_back)
        assert side.queue.pending_set.pending("main").documents == 1
    assert waiting.line.shown[0].endswith("  waits for 1 document")
    assert waiting.outcomes[0].condition.code == ConditionCode.NO_DOCUMENTS, "there is nothing else to say"


def test_a_document_that_changes_again_and_again_does_not_keep_it(
    settings: Settings, side: BrokerSide, workspace: Path
) -> None:
    waiting = Waiting(settings, side)
    waiting.mark(OWN)
    with waiting:
        wait_until(lambda: waiting.line.shown)
        waiting.claim(1)
        waiting.mark(OWN)
        note = workspace / "MEMORY.md"
        note.write_text("A version that came while it waited.\n", "utf-8")
        os.utime(note, (2e9, 2e9))
        write_index(settings)
        waiting.finish(OWN)
        wait_until(waiting.came_back)
        assert side.queue.pending_set.pending("main").documents == 1


def test_vectors_of_what_came_later_do_not_keep_it(settings: Settings, side: BrokerSide, workspace: Path) -> None:
    (workspace / "MEMORY.md").write_text("The first one.\n", "utf-8")
    store = write_index(settings, vectors=False)
    with Waiting(settings, side) as waiting:
        wait_until(lambda: [one for one in waiting.line.shown if one.endswith("waits for 1 vector of stub")])
        (workspace / "memory" / "later.md").write_text("The second one.\n", "utf-8")
        write_index(settings, vectors=False)
        [(first, text_hash)] = store.pending_hashes(1).items()
        text = store.chunk_rows([first])[first].text
        vector = provider_of(settings, settings.agents[0]).provider.embed_documents([text]).vectors[0]
        store.write_vectors({first: (text_hash, vector)})
        wait_until(waiting.came_back)
        assert store.counts().vectors_pending == 1


def test_sentences_keep_it_last_and_are_no_reason_to_fail(
    settings: Settings, side: BrokerSide, workspace: Path
) -> None:
    (workspace / "MEMORY.md").write_text("The first one.\n", "utf-8")
    write_index(settings)
    settings = with_agent(settings, query={"sentences": "auto"})
    workers = settings.workers.model_copy(update={"stalled_after_seconds": 0.2})
    with Waiting(settings.model_copy(update={"workers": workers}), side) as waiting:
        wait_until(waiting.came_back)
    assert waiting.line.shown[0].endswith("  waits for the sentences of 1 chunk")
    assert waiting.outcomes[0].condition is None


def test_it_comes_back_with_a_code_when_nothing_gets_on(settings: Settings, side: BrokerSide) -> None:
    workers = settings.workers.model_copy(update={"stalled_after_seconds": 0.2})
    waiting = Waiting(settings.model_copy(update={"workers": workers}), side)
    waiting.mark(OWN)
    with waiting:
        wait_until(waiting.came_back)
    [outcome] = waiting.outcomes
    assert outcome.condition is not None
    assert (outcome.condition.code, outcome.condition.params["what"]) == (ConditionCode.INDEXING_STILL, "1 document")


# What an earlier run met ------------------------------------------------------------------------------


@pytest.fixture
def old(tmp_path: Path) -> Path:
    file = tmp_path / "old.jsonl"
    file.write_bytes(transcript("plain", turns=10))
    return file


@pytest.fixture
def backfill(commands: CommandLine, server: EmbeddingServer, old: Path) -> Callable[[], tuple[int, dict[str, object]]]:
    """A command that embeds; before it, the same was indexed and refused."""
    server.fail_next(Failure(status=401), times=1_000)
    assert commands.run("backfill", str(old))[0] == 1
    server.recover()

    def ran() -> tuple[int, dict[str, object]]:
        code, out, _ = commands.run("backfill", str(old), "--json")
        return code, json.loads(out)

    return ran


def endure_an_outage(home: Path) -> None:
    """Leave in the broker what an outage leaves there: a long pause, a job that waits for hours, and the trouble."""
    settings = Invocation(home=str(home)).settings
    provider = provider_of(settings, settings.agents[0]).provider
    assert provider is not None
    with running_broker(settings):
        side = open_broker(settings)
        now = [time.time()]
        limiter = shared_limiter(side.client, provider, clock=lambda: now[0])
        for _ in range(10):
            limiter.report(Transient("Connection refused"))
            hold = limiter.hold()
            now[0] += hold.seconds if hold is not None else 0.1
        limiter.report(Transient("Connection refused"))
        side.queue.may_retry(EMBED_PENDING, "main", VECTORS_QUEUE, job="of an earlier run", seconds=9_000)
        side.health.report(ConditionCode.PROVIDER_FAILS, agent="main", subject="openai", error="Connection refused")
        side.client.close()


@pytest.mark.parametrize("outage", [False, True])
def test_a_refusal_or_an_outage_that_is_over_is_asked_about_at_once(
    backfill: Callable[[], tuple[int, dict[str, object]]], server: EmbeddingServer, home: Path, *, outage: bool
) -> None:
    if outage:
        endure_an_outage(home)
    code, _ = backfill()
    assert (code, server.inputs) == (0, server.distinct)
    assert server.distinct > 0


def test_a_run_tells_what_it_met_itself(
    backfill: Callable[[], tuple[int, dict[str, object]]], server: EmbeddingServer, home: Path
) -> None:
    endure_an_outage(home)
    server.fail_next(Failure(status=402, message="no credit"), times=1_000)
    code, body = backfill()
    result = body["result"]
    assert isinstance(result, dict)
    assert (code, result["code"]) == (1, "vectors_wait")
    assert "HTTP 402" in str(result["stopped"])
    assert "Connection refused" not in str(result["stopped"])
