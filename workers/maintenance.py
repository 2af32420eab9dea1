"""Keeping indexes and cache small and quick: by itself, bounded, and never in the way of live jobs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial

import structlog

from schemas.errors import RecalldError
from schemas.metrics import MAINTENANCE as MAINTENANCE_ROUNDS
from schemas.metrics import MAINTENANCE_SECONDS
from workers.queue.names import MAINTENANCE
from workers.runtime import Runtime

log = structlog.get_logger(__name__)

#: Seconds of a round, over all agents; those that it did not get to come first in the next one.
ROUND_SECONDS = 30.0

#: Seconds of a round for one agent.
AGENT_SECONDS = 5.0

#: An agent that always has something waiting is looked after all the same when it was not for so many seconds. Even
#: then a live job waits for no more than one step, a transaction of a few milliseconds.
NEGLECTED_SECONDS = 3_600.0


class Maintenance:
    """The rounds of one worker process. `stopping` tells whether the process is to end."""

    def __init__(
        self, runtime: Runtime, *, stopping: Callable[[], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._runtime = runtime
        self._stopping = stopping
        self._clock = clock
        self._begun = clock()
        # Agent -> when it was looked after last.
        self._looked_after: dict[str, float] = {}
        # Parts of seconds that were not counted yet.
        self._rests: dict[str, float] = {}

    def round(self) -> None:
        """Look after every agent, the one that waits longest first, and after the cache. What fails is a trouble."""
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
            self._runtime.board.report(MAINTENANCE, str(error), agent=agent)
        except Exception as error:
            log.exception("maintenance_failed", agent=agent)
            self._runtime.board.report(MAINTENANCE, f"unexpected {type(error).__name__}: {error}", agent=agent)
        else:
            self._runtime.board.resolve(MAINTENANCE, agent=agent)

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
        """Count rounds and seconds for metrics: whole ones, and the rest the next time."""
        for of, took in seconds.items():
            self._rests[of] = self._rests.get(of, 0.0) + took
            whole = int(self._rests[of])
            self._rests[of] -= whole
            self._runtime.board.counters.add(MAINTENANCE_ROUNDS, 1, of)
            self._runtime.board.counters.add(MAINTENANCE_SECONDS, whole, of)

    def _is_quiet(self, agent: str) -> bool:
        waiting = self._runtime.queue.marks.waiting(agent)
        return not (waiting.live or waiting.backfill or waiting.running)
