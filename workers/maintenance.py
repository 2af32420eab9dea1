"""Maintenance of indexes and cache in short rounds that do not delay live jobs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial

import structlog

from schemas.conditions import ConditionCode
from schemas.errors import RecalldError
from schemas.metrics import MAINTENANCE, MAINTENANCE_SECONDS
from workers.runtime import Runtime

log = structlog.get_logger(__name__)

#: Seconds of a round over all agents. Agents that it did not reach come first in the next round.
ROUND_SECONDS = 30.0

#: Seconds of a round for one agent.
AGENT_SECONDS = 5.0

#: Seconds without maintenance after which a busy agent gets it, too. A live job then waits for at most one step, a
#: transaction of a few milliseconds.
NEGLECTED_SECONDS = 3_600.0


class Maintenance:
    """Rounds of one worker process. `stopping` returns True once the process is to end."""

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

    def round(self) -> None:
        """Maintain the indexes of all agents, the longest neglected one first, and the cache. Report failures."""
        deadline = self._clock() + ROUND_SECONDS
        for agent in sorted((agent.id for agent in self._runtime.settings.agents), key=self._since):
            if self._stopping() or self._clock() >= deadline:
                return
            self._guarded(agent, partial(self._maintain, agent, deadline))
        self._guarded("*", self._maintain_cache)

    def _since(self, agent: str) -> float:
        return self._looked_after.get(agent, self._begun)

    def _guarded(self, agent: str, work: Callable[[], None]) -> None:
        try:
            work()
        except (RecalldError, OSError) as error:
            self._runtime.board.report(ConditionCode.MAINTENANCE_FAILED, agent=agent, error=str(error))
        except Exception as error:
            log.exception("maintenance_failed", agent=agent)
            unforeseen = f"unexpected {type(error).__name__}: {error}"
            self._runtime.board.report(ConditionCode.MAINTENANCE_FAILED, agent=agent, error=unforeseen)
        else:
            self._runtime.board.resolve(ConditionCode.MAINTENANCE_FAILED, agent=agent)

    def _maintain(self, agent: str, deadline: float) -> None:
        neglected = self._clock() - self._since(agent) > NEGLECTED_SECONDS
        if not neglected and not self._is_quiet(agent):
            return
        until = min(deadline, self._clock() + AGENT_SECONDS)

        def go_on() -> bool:
            return not self._stopping() and self._clock() < until and (neglected or self._is_quiet(agent))

        with self._runtime.indexer(agent) as indexer:
            for store in indexer.generations.open_existing():
                done = store.maintain(go_on=go_on)
                self._count(done.seconds)
                if done.anything:
                    log.info(
                        "maintained",
                        agent=agent,
                        vector_steps=done.vector_steps,
                        keyword_steps=done.keyword_steps,
                        log_bytes=done.log_bytes,
                    )
        self._looked_after[agent] = self._clock()

    def _maintain_cache(self) -> None:
        begun = time.monotonic()
        if self._runtime.maintain_cache():
            self._count({"cache": time.monotonic() - begun})

    def _count(self, seconds: Mapping[str, float]) -> None:
        """Count rounds and whole seconds for metrics; fractions are carried over."""
        for of, took in seconds.items():
            self._rests[of] = self._rests.get(of, 0.0) + took
            whole = int(self._rests[of])
            self._rests[of] -= whole
            self._runtime.board.counters.add(MAINTENANCE, 1, of)
            self._runtime.board.counters.add(MAINTENANCE_SECONDS, whole, of)

    def _is_quiet(self, agent: str) -> bool:
        waiting = self._runtime.queue.marks.waiting(agent)
        return not (waiting.live or waiting.backfill or waiting.running)
