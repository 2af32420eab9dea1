"""Middleware that carries out the decisions of `workers.failure_policy`, recovery included."""

from __future__ import annotations

import mmap
import resource
import threading
import time
from datetime import date
from typing import Any

import dramatiq
import structlog

from memory.documents.roots import priority
from memory.index.provider import fallback_problem
from memory.status.vectors import useless_answers
from memory.store.errors import StoreCorrupt
from schemas.conditions import OF_PROVIDER, Condition, ConditionCode
from schemas.documents import Lane
from schemas.errors import RecalldError
from schemas.metrics import JOBS
from workers.failure_policy import BACKOFF_MAX_SECONDS, Decision, Postponed, decide
from workers.middleware import ENDED, OUTCOME
from workers.queue.broker import DoorbellBroker
from workers.queue.names import INDEX_PENDING
from workers.runtime import Runtime

log = structlog.get_logger(__name__)

#: Conditions that end with a successful indexing job.
_ENDED_BY_INDEXING = (
    ConditionCode.KEYWORDS_UNAVAILABLE,
    ConditionCode.NO_SPACE,
    ConditionCode.SETTINGS_OLDER,
    ConditionCode.STORE_FULL,
)

#: Bytes of address space, none of them in use, that a process at its memory limit has for its orderly end: it starts
#: threads.
RESERVE_BYTES = 64 * 1024 * 1024


class Failures(dramatiq.Middleware):
    """Turn every failure into a delay and a condition for status.

    While one message of a kind is delayed, other failed ones are dropped: they would do the same work. `stop` is set
    where the process has to end.
    """

    def __init__(self, runtime: Runtime, stop: threading.Event) -> None:
        self._runtime = runtime
        self._stop = stop
        self._reserve = mmap.mmap(-1, RESERVE_BYTES)
        #: True after a failure for which this process has to end.
        self.ends = False

    @property
    def actor_options(self) -> set[str]:
        """Options of actors: errors that Dramatiq logs without a traceback, which may quote a note."""
        return {"throws"}

    def after_process_message(
        self,
        broker: Any,
        message: dramatiq.MessageProxy,
        *,
        result: Any = None,  # noqa: ARG002 - Dramatiq's signature
        exception: BaseException | None = None,
    ) -> None:
        """Report the end of a job, and let a failed one come again."""
        outcome = "done"
        try:
            if exception is None:
                self._over(message)
            else:
                outcome = self._failed(broker, message, exception)
        except Exception:
            # Dramatiq would ignore it and drop the message.
            log.exception("failure_not_handled", actor=message.actor_name)
            broker.retry(message, seconds=BACKOFF_MAX_SECONDS)
        message.options[OUTCOME] = outcome
        self._runtime.health.counters.add(JOBS, 1, message.actor_name, outcome)

    def _over(self, message: dramatiq.MessageProxy) -> None:
        """End the conditions that a successful job disproves."""
        codes = _ENDED_BY_INDEXING if message.actor_name == INDEX_PENDING else (ConditionCode.STORE_FULL,)
        failed = f"{ConditionCode.JOB_FAILED} {_subject(message)}"
        self._runtime.health.replace([*codes, *(message.options.get(ENDED) or ()), failed], (), agent=message.args[0])

    def _failed(self, broker: DoorbellBroker, message: dramatiq.MessageProxy, error: BaseException) -> str:
        """Carry out the decision on an error; return the outcome of the job."""
        agent, attempts = message.args[0], int(message.options.get("retries", 0))
        decision = self._decide(error, attempts)
        if not isinstance(error, RecalldError) and decision.condition is ConditionCode.JOB_FAILED:
            log.exception("job_failed", actor=message.actor_name)
        try:
            if self._recovered(agent, decision, error):
                return "done"
        except Exception as later:
            if not isinstance(later, RecalldError):
                log.exception("recovery_failed", agent=agent)
            error, decision = later, self._decide(later, attempts)
        if decision.ends and not self.ends:
            self.ends = True
            self._reserve.close()
            self._stop.set()
            log.error("out_of_memory", limit=memory_limit(), error=str(error))
            self._runtime.health.note_out_of_memory(memory_limit())
        if isinstance(error, Postponed):
            self._runtime.health.resolve(ConditionCode.JOB_FAILED, agent=agent, subject=_subject(message))
        self._report(message, decision, error)
        pause = decision.retry_in if decision.retry_in is not None else BACKOFF_MAX_SECONDS
        job, lane = str(message.message_id), message.queue_name
        if not self._runtime.queue.may_retry(message.actor_name, agent, lane, job=job, seconds=pause):
            return "dropped"
        broker.retry(message, seconds=pause)
        return "again"

    def _decide(self, error: BaseException, attempts: int) -> Decision:
        return decide(error, attempts, lost_after_seconds=self._runtime.timing.lost_provider)

    def _recovered(self, agent: str, decision: Decision, error: BaseException) -> bool:
        """Set a damaged index aside, or let the fallback take over from a lost provider; return True if either did."""
        if decision.rebuild and isinstance(error, StoreCorrupt):
            self._set_aside(agent, error)
            return True
        if decision.fallback_after is None or self._runtime.directory.agent(agent).fallback == "none":
            return False
        since = self._fails_since(agent) if decision.fallback_after else 0.0
        if since is None or time.time() - since <= decision.fallback_after:
            return False
        return self._runtime.take_over(agent, reason=str(error))

    def _set_aside(self, agent: str, error: StoreCorrupt) -> None:
        """Move the damaged generation out of the way and mark every document of the agent.

        Nothing is lost: the documents are on disk, and the embeddings are in the cache.
        """
        with self._runtime.indexer(agent) as indexer:
            moved = indexer.generations.set_aside_damaged(suspect=error.generation)
            files = ", ".join(moved)
            self._runtime.health.report(ConditionCode.INDEX_SET_ASIDE, agent=agent, error=str(error), files=files)
            log.error("index_set_aside", agent=agent, moved=moved, at=time.time())
        self._runtime.forget(agent)
        with self._runtime.indexer(agent) as indexer:
            scan = indexer.files.scan(imported=True)
        today = date.today()
        keys = sorted(scan.documents, key=lambda key: priority(key, today=today, stat=scan.documents[key]))
        self._runtime.queue.mark_changed(agent, keys, lane=Lane.BACKFILL)

    def _report(self, message: dramatiq.MessageProxy, decision: Decision, error: BaseException) -> None:
        health, agent, code = self._runtime.health, message.args[0], decision.condition
        if code is None or (code is ConditionCode.SETTINGS_OLDER and not self._waits_for_long(agent)):
            return
        if code in OF_PROVIDER:
            if decision.news or self._fails_since(agent) is None:
                health.replace(OF_PROVIDER, self._of_provider(agent, code, error), agent=agent)
        elif isinstance(error, Postponed):
            health.report(code, agent=agent, reason=str(error))
        else:
            is_expected = isinstance(error, RecalldError)
            text = str(error) if is_expected else f"unexpected {type(error).__name__}: {error}"
            subject = _subject(message) if code is ConditionCode.JOB_FAILED else ""
            health.report(code, agent=agent, subject=subject, error=text)

    def _of_provider(self, agent: str, code: ConditionCode, error: BaseException) -> list[Condition]:
        settings, provider = self._runtime.settings, self._provider(agent)
        of_agent = self._runtime.directory.agent(agent)
        if code is ConditionCode.PROVIDER_USELESS:
            with self._runtime.indexer(agent) as indexer:
                embedder, chunks = indexer.supply.provider, indexer.target().counts().chunks
            useless = useless_answers(settings.home, of_agent, embedder, chunks=chunks)
            return [useless] if useless is not None else []
        conditions = [Condition(code, provider, params={"error": str(error)})]
        problem = fallback_problem(settings, of_agent)
        if code is ConditionCode.PROVIDER_REFUSES and problem is not None:
            conditions.append(Condition(ConditionCode.FALLBACK_UNUSABLE, provider, params={"reason": problem}))
        return conditions

    def _provider(self, agent: str) -> str:
        with self._runtime.indexer(agent) as indexer:
            return indexer.supply.name

    def _fails_since(self, agent: str) -> float | None:
        """Return the Unix time of the provider's first failure since its last success; None without one.

        Useless answers are no reason for a takeover, also when other failures follow them.
        """
        provider, useless = self._provider(agent), (ConditionCode.PROVIDER_USELESS, ConditionCode.DIMENSIONS_CHANGED)
        codes = [code for code in OF_PROVIDER if code not in useless]
        failures = [condition for condition in self._runtime.health.conditions(agent) if condition.code in codes]
        return min(
            (
                condition.since
                for condition in failures
                if condition.subject == provider and condition.since is not None
            ),
            default=None,
        )

    def _waits_for_long(self, agent: str) -> bool:
        """Return True if no other process has taken the documents that this one leaves to others."""
        pending = self._runtime.health.pending(agent)
        oldest_at = pending.oldest_at if pending is not None else None
        return oldest_at is not None and time.time() - oldest_at > self._runtime.timing.untaken


def memory_limit() -> str:
    """Return the name and size of the limit of this process's memory."""
    for name, option in (("RLIMIT_AS", "v"), ("RLIMIT_DATA", "d")):
        limit = resource.getrlimit(getattr(resource, name))[0]
        if limit != resource.RLIM_INFINITY:
            return f"{name} (ulimit -{option}), {limit // 1024:,} kB"
    return "the memory of this machine"


def _subject(message: dramatiq.MessageProxy) -> str:
    """Return the subject of the condition that a job failed."""
    of_lane = message.actor_name == INDEX_PENDING
    return f"{message.actor_name} {message.queue_name}" if of_lane else str(message.actor_name)
