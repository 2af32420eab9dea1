"""Freshness of an agent's index: the documents that wait, waiting for them, and the processes that watch."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

from memory.status.processes import known_processes, not_watched
from memory.status.run_files import read_watch_state
from memory.store.reader import StoreReader
from schemas.conditions import Condition, ConditionCode
from schemas.ports import Event, EventInbox, Pending, PendingReader
from schemas.search import PendingState
from schemas.settings import AgentSettings, Settings

#: Seconds between two looks of a search that waits for pending documents.
_PENDING_POLL_SECONDS = 0.01

#: Milliseconds that a search without `waitMs` waits for documents that were written before it.
DEFAULT_WAIT_MS = 500

#: More pending documents are a backlog.
_BACKLOG_DOCUMENTS = 20

#: Seconds for which searches keep the state of the watching processes: heartbeats come every three.
_WATCH_STATE_SECONDS = 3.0

P = ParamSpec("P")
T = TypeVar("T")


async def on_thread(threads: ThreadPoolExecutor, work: Callable[P, T], *arguments: P.args, **_: P.kwargs) -> T:
    """Run blocking work. A cancelled caller abandons it.

    Raises:
        RuntimeError: the threads are being closed.
    """
    try:
        return await asyncio.get_running_loop().run_in_executor(threads, work, *arguments)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise RuntimeError("the service is ending") from None


@dataclass(frozen=True, slots=True)
class Moment:
    """Conditions of the moment, which no cached answer holds: `pending` is None while the queue does not answer."""

    pending: Pending | None = field(default_factory=Pending)
    unwatched: Condition | None = None

    def waits(self, wait_ms: int | None, until: float) -> bool:
        """Return True if a search should wait for pending documents before `until` (monotonic time).

        A search that does not ask for it (`wait_ms` is None) does not wait for a backlog.
        """
        most = _BACKLOG_DOCUMENTS if wait_ms is None else math.inf
        return self.pending is not None and 0 < self.pending.documents <= most and time.monotonic() < until


def pending_state(pending: Pending, *, vectors: int) -> PendingState:
    """Return the backlog as answers show it; `vectors` is the number of chunks without a vector."""
    oldest_seconds = pending.oldest_seconds(time.time())
    return PendingState(documents=pending.documents, oldest_seconds=oldest_seconds, vectors=vectors)


class Freshness:
    """Freshness of one agent. `pending` reads the queue, `inbox` takes requests to flush; both may be absent."""

    def __init__(
        self,
        settings: Settings,
        agent: AgentSettings,
        *,
        pending: PendingReader | None,
        inbox: EventInbox | None,
    ) -> None:
        self._home = settings.home
        self._agent = agent
        self._pending = pending
        self._inbox = inbox
        self._vectors: tuple[object, int] | None = None
        self._unwatched: tuple[float, Condition | None] = (0.0, None)

    def look(self, wait_ms: int | None, deadline: float) -> Moment:
        """Have earlier changes queued by the deadline (monotonic time), and return the backlog of that time.

        Producers are asked if the search says how long it waits, if they hold back changes, or if documents wait.
        """
        moment = self.moment()
        if self._inbox is None or not self._agent.sync.on_search or time.monotonic() >= deadline:
            return moment
        if (
            (pending := moment.pending) is None
            or not (wait_ms is not None or pending.held_back or pending.documents)
            or read_watch_state(self._home, self._agent.id) is None  # no producer would answer
        ):
            return moment
        self._inbox.ask(Event(kind="flush", agent=self._agent.id), deadline - time.monotonic())
        return self.moment()

    async def settled(self, moment: Moment, wait_ms: int | None, until: float, threads: ThreadPoolExecutor) -> Moment:
        """Wait until the documents that were pending at a moment are indexed; return the backlog of that time."""
        while moment.waits(wait_ms, until):
            await asyncio.sleep(_PENDING_POLL_SECONDS)
            moment = await on_thread(threads, self.moment)
        return moment

    def moment(self) -> Moment:
        """Return the backlog, and the reason why changes of files are missed."""
        if self._pending is None:
            return Moment()
        pending = self._pending.pending(self._agent.id)
        return Moment(pending, self._unwatched_reason(self._pending) if pending is not None else None)

    def _unwatched_reason(self, queue: PendingReader) -> Condition | None:
        """Return the reason why changes of files are missed, cached for some seconds."""
        if time.monotonic() >= self._unwatched[0]:
            if (refusal := queue.broker().refusal) is not None:
                reason: Condition | None = Condition(ConditionCode.CHANGES_UNSEEN, params={"reason": refusal})
            else:
                reason = not_watched(known_processes(queue, wait=None))
            self._unwatched = time.monotonic() + _WATCH_STATE_SECONDS, reason
        return self._unwatched[1]

    def vectors_pending(self, reader: StoreReader, revision: object) -> int:
        """Return the number of chunks whose vectors are to come, counted once at each revision.

        A revision is a `StoreReader.change_token`.
        """
        if self._agent.provider == "none":
            return 0
        counted = self._vectors
        if counted is None or counted[0] != revision:
            self._vectors = counted = revision, reader.vectors_pending()
        return counted[1]
