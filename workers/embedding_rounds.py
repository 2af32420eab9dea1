"""Rounds of embedding, told to the broker so that the next process knows what the last one died of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import dramatiq
import structlog

from memory.index.vector_fill import MOST, Rounds
from memory.store.reader import PendingChunk
from memory.store.writer import Refusal, Store
from workers.queue.crash_counter import MOST_DEATHS_ALONE, SMALLER, Deaths, Round

log = structlog.get_logger(__name__)


class ToldRounds(Rounds):
    """One job's. A round that a process died of is tried again in parts; a text that it died of alone, again and again,
    is refused."""

    def __init__(self, deaths: Deaths, agent: str, job: str) -> None:
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
                raise dramatiq.Retry("something else that was there when a worker died is tried", delay=1000)

    def begins(self, chunks: Sequence[PendingChunk]) -> None:
        """Say it before; what is small grows again as long as nobody dies."""
        before = self._before
        first = chunks[0].text_hash
        again = before is not None and before.size == 1 and before.first == first
        deaths = before.deaths + 1 if before is not None and again else 0
        if self._told:
            self.most, deaths = min(MOST, self.most * SMALLER), 0
        self._told = True
        self._deaths.begin_round(self._agent, Round(self._job, len(chunks), first, deaths))

    def give_up(self, store: Store) -> None:
        """Refuse the text that killed a process each time it was embedded alone."""
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
        """The job ends, and its process lives."""
        self._deaths.end_rounds(self._agent, self._job)
        self._deaths.end_turn(self._job)
