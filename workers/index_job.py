"""One turn of indexing: the documents of one agent that wait in one lane."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import fields
from functools import partial

import structlog
from dramatiq.middleware import TimeLimitExceeded

from memory.documents.roots import archived_path
from memory.index import completion as completing
from memory.index.changes import IndexReport
from memory.index.indexer import Indexer
from memory.index.provider import embeds_sentences
from memory.telemetry import tracing
from schemas.conditions import OF_PROVIDER, ConditionCode
from schemas.documents import SESSIONS_SOURCE, DocumentKey, Lane
from schemas.metrics import COMMITS, DOCUMENTS, EMBEDDING_CACHE
from schemas.version import recalld_version
from workers.background import Background
from workers.failure_policy import Postponed
from workers.middleware import got_on
from workers.queue.pending import Claim
from workers.queue.quarantine import WORKER_DIED, Verdict, reason
from workers.runtime import Runtime

log = structlog.get_logger(__name__)

#: Documents that a job claims at a time, and as long as it is gentle. After a crash they wait again.
CLAIM, GENTLE_CLAIM = 64, 8

#: Seconds until a job asks again to try a document alone.
ALONE_PAUSE_SECONDS = 1.0


def index_turn(runtime: Runtime, agent: str, lane: Lane, job: str, first: Claim) -> Collection[ConditionCode]:
    """Index for one turn, the documents of the `first` claim first. Return the conditions that are over.

    The remaining documents wait for the next turn.

    Raises:
        Transient: some documents must be read again later.
        Postponed: another job tries a document alone.
    """
    queue, failed = runtime.queue, True
    turn = _Turn(runtime, agent, lane, job, first)
    lacking: list[DocumentKey] = []
    try:
        with runtime.indexer(agent) as indexer:
            try:
                report = turn.index(indexer)
            except TimeLimitExceeded:
                # A document that takes for ever counts like a crash.
                queue.pending_set.recover_crashed(agent, job=job)
                raise
            finally:
                turn.give_back()
            # Also those of a job that died between its commit and its request.
            available = indexer.supply.provider is not None
            unfilled = available and bool(indexer.target().pending_hashes(1))
            held_chunks = available and bool(indexer.target().held_hashes(1))
            sentences = report.added and embeds_sentences(indexer.agent, indexer.supply.provider)
            building = indexer.generations.next() is not None
            # A new index (the old one was deleted) lacks more documents than the marked ones.
            if completing.is_unasked(indexer) and not queue.pending_set.waiting(agent).backfill:
                lacking = completing.lacking_documents(indexer)
                queue.mark_changed(agent, lacking, lane=Lane.BACKFILL)
                completing.note_asked(indexer)
        failed = turn.busy or report.again is not None
    finally:
        turn.give_back()  # also when the index could not be opened
        if lane is Lane.LIVE:
            queue.ended(agent, job=job, seconds=turn.seconds, failed=failed)
    turn.tell(report)
    if unfilled or held_chunks or sentences:
        queue.request_vectors(agent)
    elif building:
        queue.request_completion(agent)
    if report.again is not None:
        raise report.again
    if turn.busy:
        raise Postponed("another job tries a document alone", retry_in=ALONE_PAUSE_SECONDS)
    left = turn.more and queue.continue_indexing(agent)
    # If no text waits for the provider any more, this worker or another one embedded them.
    over = OF_PROVIDER if available and not unfilled else ()
    # A new index gets its documents in the backfill lane.
    return over if left or lacking or lane is Lane.LIVE else (*over, ConditionCode.INDEX_SET_ASIDE)


class _Turn:
    """Documents that one job holds, and their outcomes. `busy` is True if only documents for another job wait."""

    def __init__(self, runtime: Runtime, agent: str, lane: Lane, job: str, first: Claim) -> None:
        self._runtime = runtime
        self._agent = agent
        self._lane = lane
        self._halt = runtime.halt(agent)
        self._job = job
        self._pending_set = runtime.queue.pending_set
        self._quarantine = self._pending_set.quarantine
        self._first: Claim | None = first
        self._taken = dict.fromkeys(first.documents)
        self._claimed = False  # a turn in which nothing was claimed would come again and again
        self._suspect: Claim | None = None
        self._pace = Background(runtime.courtesy)
        self._in_steps = False  # the next claim is a run of its own
        self._begun = time.monotonic()
        self._weight = 1.0
        self._drained = False  # the last claim left nothing
        self._again = False  # some documents wait again
        self.busy = False

    @property
    def seconds(self) -> float:
        """Seconds since the begin of the turn."""
        return time.monotonic() - self._begun

    @property
    def more(self) -> bool:
        """Return True if documents may wait without a message of their own."""
        return self._again or not self._drained

    @property
    def _is_gentle(self) -> bool:
        return self._lane is Lane.BACKFILL and self._pace.gentle

    def over(self) -> bool:
        """Return True if the remaining documents must wait for the next turn; old ones let live ones pass before."""
        if self._lane is Lane.BACKFILL:
            self._pace.rest()
        timing = self._runtime.timing
        is_halted = self._lane is Lane.BACKFILL and self._runtime.halt(self._agent) != self._halt
        if is_halted or self._runtime.stopping.is_set() or self.seconds >= timing.turn:
            return True
        shared_turn = timing.shared_turn * self._weight
        return self._claimed and self.seconds >= shared_turn and self._runtime.queue.others_wait(self._lane)

    def index(self, indexer: Indexer) -> IndexReport:
        """Index until the turn is over. A document that was there at several crashes is a run of its own."""
        self._weight = self._runtime.directory.share(self._agent).weight
        with self._pace:
            report = self._run(indexer, self._claims(indexer))
            while self._suspect is not None or self._in_steps:
                claim, self._suspect = self._suspect, None
                if claim is not None:
                    try:
                        _add(report, self._try_alone(indexer, claim))
                    finally:
                        self._quarantine.end_trial(self._job)
                _add(report, self._run(indexer, self._claims(indexer)))
        return report

    def done(self, indexer: Indexer, keys: Sequence[DocumentKey]) -> None:
        """Remove the marks of documents that were committed, or became dead letters."""
        got_on()
        now = time.time()
        # A vanished session whose own job came before its archive's may be forgotten now.
        archived = {path for key in keys if (path := archived_path(key.path)) is not None}
        sessions = [DocumentKey(SESSIONS_SOURCE, path) for path in sorted(archived)]
        left = [key for key in sessions if indexer.target().file(key) is not None]
        self._runtime.queue.mark_changed(self._agent, left, lane=self._lane)
        tracing.link(self._pending_set.take_traces(self._agent, keys))
        if self._lane is Lane.BACKFILL:
            self._runtime.health.counters.flush()  # a run that waits for these marks reports the usage after them
        over = self._pending_set.finish(self._agent, keys, job=self._job, now=now)
        # Some were marked meanwhile, maybe in the other lane.
        self._again |= len(over) < len(keys)
        for key in keys:
            self._taken.pop(key, None)
        self._runtime.health.counters.record_freshness([now - since for since in over])

    def give_back(self) -> None:
        """Let the claimed documents that are not done wait again."""
        if self._first is not None and self._first.rest == "alone":
            self._quarantine.end_trial(self._job)
        if self._taken:
            self._again = True
            self._pending_set.give_back(self._agent, list(self._taken), job=self._job, now=time.time())
            self._taken.clear()

    def tell(self, report: IndexReport) -> None:
        """Count and log the result of the turn."""
        counts = {field.name: getattr(report, field.name) for field in fields(report) if field.name != "again"}
        seconds = round(self.seconds, 3)
        log.info("documents_indexed", agent=self._agent, lane=self._lane.value, seconds=seconds, **counts)
        counters = self._runtime.health.counters
        for outcome, number in (
            ("indexed", "documents"),
            *((name, name) for name in ("unchanged", "deleted", "failed")),
        ):
            counters.add(DOCUMENTS, counts[number], outcome)
        counters.add(COMMITS, report.commits, "documents")
        counters.add(EMBEDDING_CACHE, report.cache_hits, "hit")
        counters.add(EMBEDDING_CACHE, report.cache_misses, "miss")

    def _run(self, indexer: Indexer, keys: Iterator[DocumentKey]) -> IndexReport:
        return indexer.index(keys, lane=self._lane, on_done=partial(self.done, indexer), out_of_time=self.over)

    def _claims(self, indexer: Indexer) -> Iterator[DocumentKey]:
        """Yield documents until the turn is over, one has to be tried alone, or a step is done."""
        self._in_steps = False
        while not self.over():
            claim, self._first = self._first, None
            if claim is None:
                limit = GENTLE_CLAIM if self._is_gentle else CLAIM
                claim = self._pending_set.claim(self._agent, lane=self._lane, job=self._job, limit=limit)
                indexer.generations.look_again()  # the documents are as new as their marks
            self._claimed = True
            self._taken.update(dict.fromkeys(claim.documents))
            self.busy, self._drained = claim.rest == "busy", claim.rest == ""
            if claim.rest == "alone":
                self._suspect = claim
                return
            indexer.look_up(claim.documents)
            for key in claim.documents:
                if self._runtime.stopping.is_set():
                    return  # the rest waits again
                yield key
            if self.busy or self._drained:
                return  # a later mark has a message of its own
            if self._is_gentle:
                self._in_steps = True
                return

    def _try_alone(self, indexer: Indexer, claim: Claim) -> IndexReport:
        """Index a document that was there at several crashes, or give it up; leave an unchanged dead letter alone."""
        [key] = claim.documents
        state = _look(indexer, key)
        is_dead = indexer.has_letter(key, error_class=WORKER_DIED)
        verdict = self._quarantine.verdict(self._agent, key, crashes=claim.crashes, state=state, is_dead=is_dead)
        if verdict is Verdict.TRY:
            return self._run(indexer, iter([key]))
        if verdict is Verdict.GIVE_UP:
            crashes = int(claim.crashes)
            indexer.give_up(key, reason=reason(crashes), error_class=WORKER_DIED, attempts=crashes)
            log.error("document_given_up", agent=self._agent, path=key.path, crashes=crashes)
        self.done(indexer, [key])
        self._quarantine.leave(self._agent, key, state=state)
        return IndexReport(failed=1) if verdict is Verdict.GIVE_UP else IndexReport(unchanged=1)


def _add(report: IndexReport, other: IndexReport) -> None:
    """Add the counts of another run to a report."""
    for field in fields(IndexReport):
        if field.name == "again":
            report.again = report.again or other.again
        else:
            setattr(report, field.name, getattr(report, field.name) + getattr(other, field.name))


def _look(indexer: Indexer, key: DocumentKey) -> str:
    """Return the state of the document's file, the settings and the program, on which its outcome depends.

    The change time is left out: it often moves while the content stays (links, permissions, some file systems), and
    each trial may crash workers. A user may ask for one (`recalld dead retry`).
    """
    stat = indexer.files.stat(key)
    file = f"{stat.size} {stat.mtime_ns} {stat.inode}" if stat is not None else "gone"
    return f"look {file} {indexer.fingerprint().digest} {recalld_version()}"
