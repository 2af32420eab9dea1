"""One turn of indexing: the documents of one agent that wait in one lane.

Suspects, the documents of crashed jobs, are tried first and alone (`workers.queue.crash_counter`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import dramatiq
import structlog
from dramatiq.middleware import TimeLimitExceeded

from memory.index import completion as completing
from memory.index.changes import IndexReport
from memory.index.indexer import Indexer
from memory.telemetry import tracing
from schemas.conditions import ConditionCode
from schemas.documents import DocumentKey, Lane
from schemas.metrics import COMMITS, DOCUMENTS
from schemas.version import recalld_version
from workers.middleware.pulses import got_on
from workers.queue.counters import FleetCounters
from workers.queue.crash_counter import ALONE_FROM, MOST_DEATHS, WORKER_DIED
from workers.queue.pending import FIRST_IN_LINE
from workers.recovery import resolve_provider_conditions
from workers.runtime import Runtime

log = structlog.get_logger(__name__)

#: Seconds after which a job leaves the rest to the end of the queue: agents take turns.
TURN_SECONDS = 10.0

#: Seconds of a turn while messages of other agents wait in the lane.
SHARED_TURN_SECONDS = 1.0

#: Seconds between two counts of the index in one turn: status shows the progress.
COUNT_SECONDS = 2.0

#: Documents that a job claims at a time. After a crash they wait again.
CLAIM = 64

#: Seconds until a job asks again for its turn to try suspects.
SUSPECTS_PAUSE_SECONDS = 1.0


def index_turn(runtime: Runtime, agent: str, lane: Lane, job: str) -> None:
    """Index for one turn. The remaining documents wait for the next one.

    Raises:
        Transient: some documents must be read again later.
        dramatiq.Retry: another job tries a suspect; try again later.
    """
    turn = _Turn(runtime, agent, lane, job)
    queue = runtime.queue
    marks = queue.marks
    try:
        with runtime.indexer(agent) as indexer:
            turn.try_suspects(indexer)
            report = indexer.index(turn.claims(indexer), lane=lane, on_done=turn.done, out_of_time=turn.over)
            runtime.count(indexer)
            # Also those of a job that died between its commit and its request.
            available = indexer.supply.available
            unfilled = available and bool(indexer.target().pending_chunks(1))
            building = indexer.generations.next() is not None
            # A new index (the old one was deleted) lacks more documents than the marked ones.
            lacking = None if marks.waiting(agent).backfill else completing.unasked_differences(indexer)
            if lacking is not None:
                queue.mark_changed(agent, lacking, lane=Lane.BACKFILL)
                completing.note_asked(indexer)
    except TimeLimitExceeded:
        turn.killed()
        raise
    finally:
        turn.give_back()
        queue.ended(agent, lane, job=job)
    turn.tell(report)
    if unfilled:
        queue.request_vectors(agent)
    elif building:
        queue.request_completion(agent)
    if available and not unfilled:
        # No text waits for the provider any more: this worker or another one embedded them.
        resolve_provider_conditions(runtime, agent)
    if report.again is not None:
        raise report.again
    queue.continue_indexing(agent)
    waiting = marks.waiting(agent)
    if not waiting.live and not waiting.backfill:
        runtime.board.resolve(ConditionCode.INDEX_SET_ASIDE, agent=agent)


class _Turn:
    """Documents that one job holds, and their outcomes."""

    def __init__(self, runtime: Runtime, agent: str, lane: Lane, job: str) -> None:
        self._runtime = runtime
        self._agent = agent
        self._lane = lane
        self._job = job
        self._marks = runtime.queue.marks
        self._deaths = runtime.queue.deaths
        self._taken: dict[DocumentKey, None] = {}
        self._claimed = False  # a turn in which nothing was claimed would come again and again
        self._begun = time.monotonic()
        self._counts = self._deaths.counts(agent)
        self._suspects = {key: deaths for key, deaths in self._counts.items() if deaths >= ALONE_FROM}
        self._given_up = self._deaths.given_up(agent)

    def over(self) -> bool:
        """Return True if the remaining documents must wait for the next turn."""
        seconds = time.monotonic() - self._begun
        if self._runtime.stopping.is_set() or seconds >= TURN_SECONDS:
            return True
        return self._claimed and seconds >= SHARED_TURN_SECONDS and self._runtime.queue.others_wait(self._lane)

    def claims(self, indexer: Indexer) -> Iterator[DocumentKey]:
        """Yield documents, without suspects, until the turn is over."""
        counted_at = self._begun
        while not self.over():
            if time.monotonic() - counted_at > COUNT_SECONDS:
                self._runtime.count(indexer)
                counted_at = time.monotonic()
            claimed = self._claim(CLAIM)
            if not claimed:
                return
            suspects = [key for key in claimed if key in self._suspects]
            for key in claimed:
                if self._runtime.stopping.is_set():
                    return  # the rest waits again
                if key not in self._suspects and not self._is_left_alone(indexer, key):
                    yield key
            if suspects:
                return  # they wait again, and the next job begins with them

    def try_suspects(self, indexer: Indexer) -> None:
        """Try suspects one after the other, each in a commit of its own.

        Raises like `index_turn`.
        """
        while self._suspects and not self.over():
            for key in self._claim(1):
                if key in self._suspects:
                    self._try(indexer, key)
                    break
                self._return([key])
                return
            else:
                return

    def done(self, keys: Sequence[DocumentKey]) -> None:
        """Remove the marks of documents that were committed, or became dead letters."""
        got_on()
        # First: without its mark, a document would be missing in figures that look complete.
        self._runtime.board.committed(self._agent)
        now = time.time()
        tracing.link(self._marks.take_traces(self._agent, keys))
        over = self._marks.finish(self._agent, keys, job=self._job, now=now)
        for key in keys:
            self._taken.pop(key, None)
            if self._counts.pop(key, None) is not None:
                self._deaths.survived(self._agent, key)
        self._runtime.board.moved()
        self._runtime.board.record_freshness([now - since for since in over])

    def killed(self) -> None:
        """Count a job that exceeded its time limit like a crash."""
        self._deaths.record(self._agent, list(self._taken))

    def give_back(self) -> None:
        """Let the claimed documents that are not done wait again, suspects first."""
        self._return([key for key in self._taken if key in self._suspects])
        if self._taken:
            self._marks.give_back(self._agent, list(self._taken), job=self._job, now=time.time())

    def tell(self, report: IndexReport) -> None:
        """Count and log the result of the turn."""
        log.info(
            "documents_indexed",
            agent=self._agent,
            lane=self._lane.value,
            documents=report.documents,
            unchanged=report.unchanged,
            deleted=report.deleted,
            failed=report.failed,
            left=report.left,
            chunks_added=report.added,
            chunks_removed=report.removed,
            vectors_missing=report.vectors_missing,
            seconds=round(time.monotonic() - self._begun, 3),
        )
        _count(self._runtime.board.counters, report)

    def _claim(self, limit: int) -> list[DocumentKey]:
        claimed = self._marks.claim(self._agent, lane=self._lane, job=self._job, limit=limit)
        self._taken.update(dict.fromkeys(claimed))
        self._claimed = True
        return claimed

    def _return(self, keys: Sequence[DocumentKey]) -> None:
        if keys:
            self._marks.give_back(self._agent, keys, job=self._job, now=FIRST_IN_LINE)
            for key in keys:
                self._taken.pop(key, None)

    def _try(self, indexer: Indexer, key: DocumentKey) -> None:
        if self._suspects[key] >= MOST_DEATHS:
            self._give_up(indexer, key)
            return
        if not self._deaths.take_turn(self._job):
            raise dramatiq.Retry("another job tries a suspect", delay=int(SUSPECTS_PAUSE_SECONDS * 1000))
        try:
            report = indexer.index([key], lane=self._lane, on_done=self.done, out_of_time=self.over)
        except TimeLimitExceeded:
            raise  # `killed` counts it like a crash
        except BaseException:
            self._clear(key)
            raise
        self._clear(key)
        _count(self._runtime.board.counters, report)
        if report.again is not None:
            raise report.again

    def _clear(self, key: DocumentKey) -> None:
        """Clear a suspect that was tried without a crash."""
        self._suspects.pop(key, None)
        self._deaths.survived(self._agent, key)
        self._deaths.end_turn(self._job)

    def _give_up(self, indexer: Indexer, key: DocumentKey) -> None:
        deaths = self._suspects.pop(key)
        indexer.give_up(
            key,
            reason=f"the worker died {deaths} times while it worked on this document, as when memory runs out or a "
            "library crashes; it is tried again when the file, the settings or recalld change",
            error_class=WORKER_DIED,
            attempts=deaths,
        )
        log.error("document_given_up", agent=self._agent, path=key.path, deaths=deaths)
        self._deaths.give_up(self._agent, key, _look(indexer, key))
        self._deaths.end_turn(self._job)
        self._runtime.board.counters.add(DOCUMENTS, 1, "failed")
        self.done([key])

    def _is_left_alone(self, indexer: Indexer, key: DocumentKey) -> bool:
        """Return True for a quarantined document, unchanged or a suspect again."""
        was = self._given_up.get(key)
        if was is None:
            return False
        if was == _look(indexer, key) and indexer.has_letter(key, error_class=WORKER_DIED):
            self.done([key])
            return True
        # It changed and becomes a suspect: it waits again, and the next job tries it alone.
        self._deaths.suspect_again(self._agent, key)
        del self._given_up[key]
        self._suspects[key] = ALONE_FROM
        return True


def _look(indexer: Indexer, key: DocumentKey) -> str:
    """Return the state of the document's file, the settings and the program, on which its outcome depends.

    The change time is left out: it often moves while the content stays (links, permissions, some file systems), and
    each trial may crash workers. A user may ask for one (`recalld dead retry`).
    """
    stat = indexer.files.stat(key)
    file = f"{stat.size} {stat.mtime_ns} {stat.inode}" if stat is not None else "gone"
    return f"{file} {indexer.fingerprint().digest} {recalld_version()}"


def _count(counters: FleetCounters, report: IndexReport) -> None:
    for outcome in ("indexed", "unchanged", "deleted", "failed"):
        number = report.documents if outcome == "indexed" else getattr(report, outcome)
        counters.add(DOCUMENTS, number, outcome)
    counters.add(COMMITS, report.commits, "documents")
