"""Upkeep by a worker process: sweeps of the queue, housekeeping of generations, maintenance of indexes and cache."""

from __future__ import annotations

import math
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import structlog

from memory.index import completion as completing
from memory.index.provider import embeds_sentences, provider_of
from memory.status.processes import Pulses
from memory.store.errors import NoRoom, Superseded
from schemas.conditions import ConditionCode
from schemas.documents import Lane
from schemas.errors import RecalldError
from schemas.metrics import MAINTENANCE, MAINTENANCE_SECONDS
from schemas.settings import has_agent
from workers.batch_jobs import keep_batch_jobs
from workers.queue.queue_tenancy import QueueTenancy
from workers.runtime import Runtime

log = structlog.get_logger(__name__)

#: Seconds between two sweeps.
SWEEP_SECONDS = 5.0

#: Seconds between two rounds of housekeeping.
HOUSEKEEPING_SECONDS = 300.0

#: Seconds for which a generation that was given up stays on the disk.
OLD_GENERATION_SECONDS = 600.0

#: Seconds of a round over all agents between two sweeps, after which it goes on.
ROUND_SECONDS = 30.0

#: Seconds of maintenance of one agent in a round.
AGENT_SECONDS = 5.0

#: Seconds without maintenance after which a busy agent gets it, too: deleted words are overwritten within an hour. A
#: live job then waits for at most one step, a transaction of a few milliseconds.
NEGLECTED_SECONDS = 1_800.0


def sweep_until(stop: threading.Event, runtime: Runtime, tenancy: QueueTenancy, pulses: Pulses) -> None:
    """Sweep every few seconds, and begin a round over all agents every few minutes, until `stop`."""
    elapsed = HOUSEKEEPING_SECONDS
    pulse = pulses.of("sweeper")
    pulse.belongs_to(threading.current_thread())
    housekeeping = Housekeeping(runtime, stopping=stop.is_set)
    while not stop.wait(SWEEP_SECONDS):
        with _surviving(), pulse.at("puts right what died half-way"):
            _sweep(runtime, tenancy)
        elapsed += SWEEP_SECONDS
        is_due = elapsed >= HOUSEKEEPING_SECONDS
        with _surviving(), pulse.at("keeps house"):
            for agent in housekeeping.agents(begins=is_due):
                pulse.busy(f"keeps the house of {agent}")
        if is_due:
            elapsed = 0.0
            with _surviving(), pulse.at("maintains the cache"):
                housekeeping.maintenance.of_cache()
                runtime.note_usage()


@contextmanager
def _surviving() -> Iterator[None]:
    """Log every error of a step: the sweeper tries it again in its next round."""
    try:
        yield
    except (RecalldError, OSError) as error:
        log.warning("sweep_failed", error=str(error))
    except Exception:
        log.exception("sweep_failed")


@contextmanager
def _reporting(runtime: Runtime, code: ConditionCode, agent: str) -> Iterator[None]:
    """Report an error of a step as a condition, until the step goes well."""
    try:
        yield
    except Exception as error:
        is_expected = isinstance(error, (RecalldError, OSError))
        if not is_expected:
            log.exception(code.value, agent=agent)
        text = str(error) if is_expected else f"unexpected {type(error).__name__}: {error}"
        runtime.health.report(code, agent=agent, error=text)
    else:
        runtime.health.resolve(code, agent=agent)


def _sweep(runtime: Runtime, tenancy: QueueTenancy) -> None:
    runtime.health.counters.flush()
    runtime.flush_caches()
    if tenancy.renew():
        runtime.health.resolve(ConditionCode.OTHER_HOME)
    else:
        runtime.health.report(ConditionCode.OTHER_HOME)
    repairs = runtime.queue.sweep(every_seconds=SWEEP_SECONDS)
    if repairs:
        log.info("swept", put_right=repairs)


class Housekeeping:
    """Rounds of one worker process over all agents, which may take several calls.

    Each agent gets its housekeeping, then the maintenance of its indexes, but PostgreSQL maintains those of a fleet.
    In a fleet the owner of the indexes keeps house for all workers. Every `sync.interval_minutes`, and after a loss of
    the broker's data, it also compares the documents that machines sent with their indexes.
    """

    def __init__(
        self, runtime: Runtime, *, stopping: Callable[[], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._runtime = runtime
        self._stopping = stopping
        self._clock = clock
        self._is_fleet = runtime.settings.store.url is not None
        self.maintenance = Maintenance(runtime, stopping=stopping, clock=clock)
        self._round: Iterator[str] = iter(())
        self._compared_at = -math.inf
        self._epoch: str | None = None

    def agents(self, *, begins: bool) -> Iterator[str]:
        """Yield each agent before its housekeeping, for `ROUND_SECONDS`; a later call goes on with the others.

        `begins`: a new round is due. It waits for the end of the one before.
        """
        deadline = self._clock() + ROUND_SECONDS
        if self._is_fleet:
            if not self._runtime.owns():
                self._round, self._epoch = iter(()), None
                return
            epoch, before = self._runtime.queue.epoch(), self._epoch
            self._epoch = epoch or before
            if before is not None and epoch not in (None, before):
                self._round, self._compared_at, begins = iter(()), -math.inf, True
        while True:
            for agent in self._round:
                yield agent
                if self._stopping() or self._clock() >= deadline:
                    return
            if not begins:
                return
            self._round, begins = self._new_round(), False

    def _new_round(self) -> Iterator[str]:
        interval = self._runtime.settings.sync.interval_minutes * 60
        compares = self._is_fleet and 0 < interval <= self._clock() - self._compared_at
        if compares:
            self._compared_at = self._clock()
        for agent in self._runtime.directory.agent_ids():
            yield agent
            keep_house(self._runtime, agent, compares=compares and not has_agent(self._runtime.settings, agent))
            if not self._is_fleet:
                self.maintenance.of_agent(agent, now=time.time())


def keep_house(runtime: Runtime, agent: str, *, compares: bool = False) -> None:
    """Remove old generations and jobs of an agent, and request jobs for work that lost its own. Report failures.

    With `compares`, documents that its index lacks are marked, also those that lost their marks.
    """
    with _reporting(runtime, ConditionCode.HOUSEKEEPING_FAILED, agent):
        try:
            _keep_house(runtime, agent, compares=compares)
        except NoRoom as error:
            runtime.health.report(ConditionCode.NO_SPACE, agent=agent, error=str(error))  # as jobs report it, once
        except Superseded:
            return  # a build began or ended meanwhile, or another process owns the indexes


def _keep_house(runtime: Runtime, agent: str, *, compares: bool) -> None:
    with runtime.indexer(agent) as indexer:
        if runtime.owns():
            indexer.generations.sweep(older_than_seconds=OLD_GENERATION_SECONDS)
            if indexer.generations.current() is not None:
                indexer.target()  # begins the generation that other settings or another provider need
                runtime.health.resolve(ConditionCode.NO_SPACE, agent=agent)
        if released := completing.release_refused(indexer):
            log.info("refused_again_asked", agent=agent, chunks=released)
        target, provider = indexer.target(), indexer.supply.provider
        sentences = embeds_sentences(indexer.agent, provider) and target.lacking_sentences(1)
        is_unsettled = provider_of(runtime.settings, indexer.agent).unsettled is not None
        if is_unsettled or (provider is not None and (sentences or target.pending_hashes(1) or target.held_hashes(1))):
            runtime.queue.request_vectors(agent)
        if indexer.generations.next() is not None:
            runtime.queue.request_completion(agent)
        keep_batch_jobs(runtime, indexer)
        if compares:
            lost_marks = runtime.queue.pending_set.unmarked(agent, completing.lacking_documents(indexer))
            runtime.queue.mark_changed(agent, lost_marks, lane=Lane.BACKFILL)
    if runtime.directory.agent(agent).backend != "qmd":
        # No update removes deleted text from its index and exports any more.
        shutil.rmtree(runtime.settings.home / "qmd" / agent, ignore_errors=True)


class Maintenance:
    """Maintenance by one worker process, in short steps. `stopping` returns True once the process is to end.

    Failures are reported.
    """

    def __init__(
        self, runtime: Runtime, *, stopping: Callable[[], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._runtime = runtime
        self._stopping = stopping
        self._clock = clock
        self._begun = clock()
        # Agent -> time of its last maintenance.
        self._looked_after: dict[str, float] = {}
        # Fractions of seconds that are not counted yet.
        self._rests: dict[str, float] = {}

    def of_agent(self, agent: str, *, now: float) -> None:
        """Maintain the indexes of an agent. `now` is Unix time."""
        with _reporting(self._runtime, ConditionCode.MAINTENANCE_FAILED, agent):
            self._maintain(agent, now)

    def of_cache(self) -> None:
        """Maintain the cache."""
        with _reporting(self._runtime, ConditionCode.MAINTENANCE_FAILED, "*"):
            begin = time.monotonic()
            if self._runtime.maintain_cache():
                self._count({"cache": time.monotonic() - begin})

    def _maintain(self, agent: str, now: float) -> None:
        neglected = self._clock() - self._looked_after.get(agent, self._begun) > NEGLECTED_SECONDS
        if not neglected and not self._is_quiet(agent):
            return
        until = self._clock() + AGENT_SECONDS

        def go_on() -> bool:
            return not self._stopping() and self._clock() < until and (neglected or self._is_quiet(agent))

        with self._runtime.indexer(agent) as indexer:
            for store in indexer.generations.open_existing():
                done = store.maintain(go_on=go_on, now=now)
                self._count(done.seconds)
                if done.anything:
                    log.info(
                        "maintained",
                        agent=agent,
                        vector_steps=done.vector_steps,
                        keyword_steps=done.keyword_steps,
                        log_bytes=done.log_bytes,
                    )
            if go_on():  # else the next round goes on here
                self._looked_after[agent] = self._clock()

    def _count(self, seconds: Mapping[str, float]) -> None:
        """Count rounds and whole seconds for metrics; fractions are carried over."""
        for of, took in seconds.items():
            self._rests[of] = self._rests.get(of, 0.0) + took
            whole_seconds = int(self._rests[of])
            self._rests[of] -= whole_seconds
            self._runtime.health.counters.add(MAINTENANCE, 1, of)
            self._runtime.health.counters.add(MAINTENANCE_SECONDS, whole_seconds, of)

    def _is_quiet(self, agent: str) -> bool:
        return not self._runtime.queue.pending_set.waiting(agent).anything
