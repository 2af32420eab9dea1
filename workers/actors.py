"""Actors: the jobs that messages start.

A message only names an agent with work; the pending set and the index hold the work. Actors raise nothing but
`dramatiq.Retry`, so that one middleware decides on retries.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Self

import dramatiq
import redis
import structlog
from dramatiq.middleware import CurrentMessage, Shutdown, TimeLimitExceeded
from opentelemetry.trace import SpanKind

from memory.index import completion as completing
from memory.index.provider_fallback import fallback_problem
from memory.index.vector_fill import MOST, Rounds, fill_vectors
from memory.store.errors import (
    KeywordsUnavailable,
    NoRoom,
    NotOwner,
    StoreBusy,
    StoreCorrupt,
    StoreFull,
    Superseded,
)
from memory.store.reader import PendingChunk
from memory.store.writer import Refusal, Store
from memory.telemetry import tracing
from schemas.conditions import OF_PROVIDER, Condition, ConditionCode
from schemas.documents import Lane
from schemas.errors import BrokerUnavailable, Paced, RecalldError, Terminal, Throttled, Transient, Waiting
from schemas.metrics import COMMITS, JOBS, VECTORS
from workers.batch_jobs import note_batch_jobs, step_batch_jobs
from workers.index_job import TURN_SECONDS, index_turn
from workers.middleware.pulses import got_on
from workers.queue.broker import TRACEPARENT
from workers.queue.broker_errors import in_words
from workers.queue.crash_counter import MOST_DEATHS_ALONE, SMALLER, CrashCounter, Round
from workers.queue.names import (
    COMPLETE_GENERATION,
    EMBED_PENDING,
    INDEX_PENDING,
    POLL_BATCH_JOBS,
    VECTORS_QUEUE,
)
from workers.recovery import resolve_provider_conditions, set_aside_and_mark, take_over_and_mark
from workers.runtime import Runtime

log = structlog.get_logger(__name__)

#: Milliseconds after which a running job is broken; its documents wait again.
TIME_LIMIT_MS = 600_000

#: Seconds between two attempts while a provider refuses requests.
TERMINAL_PAUSE_SECONDS = 60.0

#: Seconds between two attempts in a process that cannot write keywords or vectors; another process may.
UNABLE_PAUSE_SECONDS = 60.0

#: Seconds of passing failures without a success after which a configured fallback provider takes over.
LOST_AFTER_SECONDS = 300.0

#: Seconds after which a process reports documents that it leaves to others: there may be no others.
UNTAKEN_SECONDS = 10.0

#: Passing errors that do not tell if the provider is lost.
_NOT_LOST = (Throttled, Paced, Superseded, StoreFull, StoreBusy, KeywordsUnavailable, BrokerUnavailable)

#: Conditions that end with a successful indexing job.
_ENDED_BY_INDEXING = (
    ConditionCode.KEYWORDS_UNAVAILABLE,
    ConditionCode.NO_SPACE,
    ConditionCode.SETTINGS_OLDER,
    ConditionCode.STORE_FULL,
)

#: Seconds between two attempts after an unexpected error, doubled each time up to the maximum.
UNFORESEEN_PAUSE_SECONDS = 2.0

UNFORESEEN_PAUSE_MAX_SECONDS = 300.0


def declare_actors(broker: dramatiq.Broker, runtime: Runtime) -> None:
    """Declare every actor on the broker, working with `runtime`."""

    # Both lanes share one actor: the message names the queue.
    @dramatiq.actor(broker=broker, queue_name=Lane.BACKFILL.value, time_limit=TIME_LIMIT_MS)
    def index_pending(agent: str, lane: str) -> None:
        _guarded(runtime, INDEX_PENDING, agent, lane, lambda job: index_turn(runtime, agent, Lane(lane), job))

    @dramatiq.actor(broker=broker, queue_name=VECTORS_QUEUE, time_limit=TIME_LIMIT_MS)
    def embed_pending(agent: str) -> None:
        _guarded(runtime, EMBED_PENDING, agent, VECTORS_QUEUE, lambda job: _embed(runtime, agent, job))

    @dramatiq.actor(broker=broker, queue_name=VECTORS_QUEUE, time_limit=TIME_LIMIT_MS)
    def poll_batch_jobs(agent: str) -> None:
        _guarded(runtime, POLL_BATCH_JOBS, agent, VECTORS_QUEUE, lambda _job: _poll(runtime, agent))

    @dramatiq.actor(broker=broker, queue_name=Lane.BACKFILL.value, time_limit=TIME_LIMIT_MS)
    def complete_generation(agent: str) -> None:
        _guarded(runtime, COMPLETE_GENERATION, agent, Lane.BACKFILL.value, lambda _job: _complete(runtime, agent))


def _embed(runtime: Runtime, agent: str, job: str) -> None:
    """Embed an agent's chunks without vectors, for one turn."""
    with runtime.indexer(agent) as indexer:
        target = indexer.target()
        if indexer.supply.available and target.vector_reason is not None:
            # Embedding them would cost money for nothing.
            runtime.board.report(ConditionCode.VECTORS_UNWRITABLE, agent=agent, reason=target.vector_reason)
            raise dramatiq.Retry("vectors cannot be written", delay=int(UNABLE_PAUSE_SECONDS * 1000))
        lacking = indexer.supply.choice.error
        if lacking is not None and not indexer.supply.available and target.pending_chunks(1):
            # A worker with the key may take the message next time.
            runtime.board.report(ConditionCode.PROVIDER_MISSING, agent=agent, reason=lacking)
            raise dramatiq.Retry("the provider is missing", delay=int(UNABLE_PAUSE_SECONDS * 1000))
        runtime.board.resolve(ConditionCode.VECTORS_UNWRITABLE, ConditionCode.PROVIDER_MISSING, agent=agent)
        if indexer.supply.slow and runtime.queue.marks.waiting(agent).backfill:
            # The model would compete with keywords for the processor, and keywords come first.
            raise dramatiq.Retry("keywords first", delay=500)

        wanted = f"the vectors of {indexer.supply.choice.name}"

        def joined(count: int, seconds: float) -> None:
            got_on(waits_for=wanted)
            runtime.board.counters.add(COMMITS, 1, "vectors")
            runtime.board.counters.add(VECTORS, count)
            runtime.board.record_vectors(agent, count=count, seconds=seconds)
            runtime.board.committed(agent)
            runtime.count(indexer)

        turn = note_batch_jobs(runtime, indexer)
        got_on(waits_for=wanted)
        with RecordedRounds(runtime.queue.deaths, agent, job) as rounds:
            rounds.give_up(target)
            report = fill_vectors(
                target,
                indexer.supply,
                agent=agent,
                seconds=TURN_SECONDS,
                held=indexer.held_vectors,
                only=turn.inline,
                stopping=runtime.stopping.is_set,
                rounds=rounds,
                on_ready=joined,
            )
        building = indexer.generations.next() is not None
    if report.error is not None:
        raise report.error
    if report.ready or not report.left:
        resolve_provider_conditions(runtime, agent)
    if report.left:
        runtime.queue.request_vectors(agent)
    elif turn.again_seconds is not None:
        raise _again(runtime, EMBED_PENDING, agent, turn.again_seconds)
    elif building and turn.inline is None:
        runtime.queue.request_completion(agent)


def _poll(runtime: Runtime, agent: str) -> None:
    """Take an agent's batch jobs one step further."""
    with runtime.indexer(agent) as indexer:
        seconds = step_batch_jobs(runtime, indexer)
    if seconds is not None:
        raise _again(runtime, POLL_BATCH_JOBS, agent, seconds)


def _again(runtime: Runtime, actor: str, agent: str, seconds: float) -> dramatiq.Retry:
    """Return the retry of a job that did not fail."""
    runtime.board.resolve(ConditionCode.JOB_FAILED, agent=agent, subject=actor)
    return dramatiq.Retry("a batch job is under way", delay=int(seconds * 1000))


def _complete(runtime: Runtime, agent: str) -> None:
    """Check the generation under construction; put it in place, or mark the documents that it lacks."""
    with runtime.indexer(agent) as indexer:
        if indexer.generations.next() is None:
            return
        if completing.complete_generation(indexer):
            runtime.count(indexer)
            return
        lacking = completing.differences(indexer)
        hidden = completing.hidden_notes(indexer)
        pending = runtime.queue.marks.pending(agent)
    if lacking:
        if not pending.documents:
            runtime.queue.mark_changed(agent, lacking, lane=Lane.BACKFILL)
    elif not hidden:
        # It waits while notes cannot be read: housekeeping asks again, and status shows the condition.
        runtime.queue.request_vectors(agent)


def _guarded(runtime: Runtime, actor: str, agent: str, lane: str, work: Callable[[str], None]) -> None:
    """Run a job; turn every failure into a delay and a condition for status.

    While one message of a kind is delayed, other failed ones are dropped: they would do the same work.
    """
    current: Any = CurrentMessage.get_current_message()
    job = str(current.message_id) if current is not None else "direct"
    attempts = int(current.options.get("retries", 0)) if current is not None else 0
    traced = current.options.get(TRACEPARENT) if current is not None else None
    outcome = "done"
    try:
        with (
            runtime.metrics.job(actor) as ended,
            tracing.span(actor, kind=SpanKind.CONSUMER, parent=traced, agent=agent, lane=lane, job=job) as span,
        ):
            try:
                _attempt(runtime, actor, agent, lane, work, job=job, attempts=attempts)
            except dramatiq.Retry as retry:
                pause = (retry.delay or 0) / 1000
                again = runtime.queue.may_retry(actor, agent, lane, job=job, seconds=pause)
                outcome = "again" if again else "dropped"
                if again:
                    # The traceback travels with the message: keep the text of a provider or a note out of the queue.
                    raise dramatiq.Retry("see `recalld status`", delay=retry.delay) from None
            finally:
                ended(outcome)
                span.set_attribute("recalld.outcome", outcome)
    finally:
        runtime.board.counters.add(JOBS, 1, actor, outcome)
        runtime.publish_counts()


def _attempt(
    runtime: Runtime,
    actor: str,
    agent: str,
    lane: str,
    work: Callable[[str], None],
    *,
    job: str,
    attempts: int,
) -> None:
    subject = f"{actor} {lane}" if actor == INDEX_PENDING else actor
    board = runtime.board
    structlog.contextvars.bind_contextvars(agent=agent, job_id=job)
    try:
        if agent not in {known.id for known in runtime.settings.agents}:
            log.warning("unknown_agent", agent=agent)
            return
        if actor == INDEX_PENDING:
            # A redelivered message finds the documents that its first delivery held when its process died.
            runtime.queue.deaths.record(agent, runtime.queue.marks.release(agent, job=job))
        if not runtime.queue.started(actor, agent, lane, job=job):
            return
        if not _work_or_heal(runtime, actor, agent, lambda: work(job)):
            return
        board.resolve(ConditionCode.JOB_FAILED, agent=agent, subject=subject)
        board.resolve(*(_ENDED_BY_INDEXING if actor == INDEX_PENDING else [ConditionCode.STORE_FULL]), agent=agent)
    except dramatiq.Retry:
        raise
    except (Shutdown, TimeLimitExceeded) as error:
        raise dramatiq.Retry(f"interrupted: {type(error).__name__}", delay=1000) from error
    except KeywordsUnavailable as error:
        board.report(ConditionCode.KEYWORDS_UNAVAILABLE, agent=agent, error=str(error))
        raise dramatiq.Retry(str(error), delay=int(UNABLE_PAUSE_SECONDS * 1000)) from error
    except NoRoom as error:
        board.report(ConditionCode.NO_SPACE, agent=agent, error=str(error))
        raise dramatiq.Retry(str(error), delay=int(UNABLE_PAUSE_SECONDS * 1000)) from error
    except StoreFull as error:
        board.report(ConditionCode.STORE_FULL, agent=agent, error=str(error))
        raise dramatiq.Retry(str(error), delay=10_000) from error
    except (redis.RedisError, BrokerUnavailable) as error:
        raise dramatiq.Retry(in_words(error), delay=1000) from error
    except Terminal as error:
        problem, provider = fallback_problem(runtime.settings, runtime.settings.agent(agent)), _provider(runtime, agent)
        found = [Condition(ConditionCode.PROVIDER_REFUSES, provider, params={"error": str(error)})]
        if problem is not None:
            found.append(Condition(ConditionCode.FALLBACK_UNUSABLE, provider, params={"reason": problem}))
        board.replace(OF_PROVIDER, found, agent=agent)
        raise dramatiq.Retry(str(error), delay=int(TERMINAL_PAUSE_SECONDS * 1000)) from error
    except (Paced, Superseded) as error:
        if isinstance(error, NotOwner) and _waits_for_long(runtime, agent):
            board.report(ConditionCode.SETTINGS_OLDER, agent=agent, error=str(error))
        raise dramatiq.Retry(str(error), delay=int((error.retry_after or 1.0) * 1000)) from error
    except Transient as error:
        if actor == EMBED_PENDING:
            _report_provider(runtime, agent, error)
        else:
            board.report(ConditionCode.JOB_FAILED, agent=agent, subject=subject, error=str(error))
        pause = error.retry_after if error.retry_after is not None else _pause(attempts)
        raise dramatiq.Retry(str(error), delay=int(max(pause, 0.5) * 1000)) from error
    except RecalldError as error:
        board.report(ConditionCode.JOB_FAILED, agent=agent, subject=subject, error=str(error))
        raise dramatiq.Retry(str(error), delay=int(_pause(attempts) * 1000)) from error
    except Exception as error:
        # Unexpected: logged with its traceback, shown in status, and retried with backoff.
        log.exception("job_failed", actor=actor)
        unforeseen = f"unexpected {type(error).__name__}: {error}"
        board.report(ConditionCode.JOB_FAILED, agent=agent, subject=subject, error=unforeseen)
        raise dramatiq.Retry(str(error), delay=int(_pause(attempts) * 1000)) from error
    finally:
        structlog.contextvars.unbind_contextvars("agent", "job_id")


def _work_or_heal(runtime: Runtime, actor: str, agent: str, work: Callable[[], None]) -> bool:
    """Return True if the work was done. Else recover from a damaged index or a lost provider and return False."""
    try:
        work()
    except StoreCorrupt as error:
        set_aside_and_mark(runtime, agent, error)
        return False
    except Terminal as error:
        if not take_over_and_mark(runtime, agent, reason=str(error)):
            raise
        return False
    except Transient as error:
        lost = actor == EMBED_PENDING and _is_lost(runtime, agent, error)
        if not (lost and take_over_and_mark(runtime, agent, reason=str(error))):
            raise
        return False
    return True


def _report_provider(runtime: Runtime, agent: str, error: Transient) -> None:
    """Report that the provider fails. A request that only waits does not replace an earlier report."""
    provider = _provider(runtime, agent)
    if not (isinstance(error, Waiting) and _provider_fails_since(runtime, agent, provider)):
        failed = Condition(ConditionCode.PROVIDER_FAILS, provider, params={"error": str(error)})
        runtime.board.replace(OF_PROVIDER, [failed], agent=agent)


def _provider_fails_since(runtime: Runtime, agent: str, provider: str) -> float | None:
    """Return the Unix time of a provider's first failure since its last success; None without one."""
    failures = [one for one in runtime.board.conditions(agent) if one.code in OF_PROVIDER and one.subject == provider]
    return min((one.since for one in failures if one.since is not None), default=None)


def _pause(attempts: int) -> float:
    return float(min(UNFORESEEN_PAUSE_SECONDS * 2 ** min(attempts, 10), UNFORESEEN_PAUSE_MAX_SECONDS))


def _waits_for_long(runtime: Runtime, agent: str) -> bool:
    """Return True if no other process has taken the documents that this one leaves to others."""
    pending = runtime.board.pending(agent)  # None without the broker: nothing but a retry may leave an actor
    oldest_at = pending.oldest_at if pending is not None else None
    return oldest_at is not None and time.time() - oldest_at > UNTAKEN_SECONDS


def _is_lost(runtime: Runtime, agent: str, error: Transient) -> bool:
    """Return True if the provider has failed for `LOST_AFTER_SECONDS` and a fallback is configured."""
    if isinstance(error, _NOT_LOST) or runtime.settings.agent(agent).fallback == "none":
        return False
    since = _provider_fails_since(runtime, agent, _provider(runtime, agent))
    return since is not None and time.time() - since > LOST_AFTER_SECONDS


def _provider(runtime: Runtime, agent: str) -> str:
    with runtime.indexer(agent) as indexer:
        return indexer.supply.choice.name


class RecordedRounds(Rounds):
    """Rounds of embedding of one job, recorded in the broker.

    A round that crashed is tried again in parts. A text that crashes repeatedly, embedded alone, is refused.
    """

    def __init__(self, deaths: CrashCounter, agent: str, job: str) -> None:
        self._deaths = deaths
        self._agent = agent
        self._job = job
        self._before: Round | None = None
        self._told = False
        last = deaths.last_round(agent, job)
        if last is not None:
            self.most = max(1, last.size // SMALLER)
            self._before = last
            if not deaths.take_turn(job):
                raise dramatiq.Retry("another job tries a suspect", delay=1000)

    def begins(self, chunks: Sequence[PendingChunk]) -> None:
        """Record a round before it begins. Reduced rounds grow again after each success."""
        before = self._before
        first = chunks[0].text_hash
        again = before is not None and before.size == 1 and before.first == first
        deaths = before.deaths + 1 if before is not None and again else 0
        if self._told:
            self.most, deaths = min(MOST, self.most * SMALLER), 0
        self._told = True
        self._deaths.begin_round(self._agent, Round(self._job, len(chunks), first, deaths))

    def give_up(self, store: Store) -> None:
        """Refuse a text that crashed `MOST_DEATHS_ALONE` workers, each time embedded alone."""
        before = self._before
        if before is None or before.size > 1 or before.deaths + 1 < MOST_DEATHS_ALONE:
            return
        for chunk in store.pending_chunks(1, among=[before.first]):
            deaths = before.deaths + 1
            reason = f"the worker died {deaths} times while it embedded this alone"
            store.write_vectors({chunk.id: (chunk.text_hash, Refusal(reason))})
            log.error("text_given_up", agent=self._agent, chunk=chunk.id, deaths=deaths)
        self._before = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Clear the record: the job ends without a crash."""
        self._deaths.end_rounds(self._agent, self._job)
        self._deaths.end_turn(self._job)
