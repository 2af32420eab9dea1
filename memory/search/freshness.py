"""Freshness of an agent's index: the documents that wait, and waiting for them."""

from __future__ import annotations

import asyncio
import math
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from memory.search.resources import on_thread
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


@dataclass(frozen=True, slots=True)
class Moment:
    """Conditions of the moment, which no kept answer holds: `pending` is None while the queue does not answer."""

    pending: PendingState | None = field(default_factory=PendingState)
    unwatched: Condition | None = None


class Freshness:
    """Freshness of one agent. `pending` reads the queue, `inbox` takes requests to flush; both may be absent.

    `threads` run what blocks.
    """

    def __init__(
        self,
        settings: Settings,
        agent: AgentSettings,
        *,
        pending: PendingReader | None,
        inbox: EventInbox | None,
        threads: ThreadPoolExecutor,
    ) -> None:
        self._home = settings.home
        self._agent = agent
        self._pending = pending
        self._inbox = inbox
        self._threads = threads
        self._vectors: tuple[object, int] | None = None

    async def wait(self, wait_ms: int | None, at_most_seconds: float) -> Moment:
        """Have earlier changes queued at once, wait until they are indexed, and return what is pending then.

        A search that does not ask for it (`wait_ms` is None) does not wait for a backlog.
        """
        if self._pending is None:
            return Moment()
        wanted = DEFAULT_WAIT_MS if wait_ms is None else wait_ms
        deadline = time.monotonic() + min(wanted / 1000, at_most_seconds)
        if wanted and self._inbox is not None and self._agent.sync.on_search:
            moment = await on_thread(self._threads, lambda: self._flushed(deadline, always=wait_ms is not None))
        else:
            moment = await on_thread(self._threads, self.moment)
        most = _BACKLOG_DOCUMENTS if wait_ms is None else math.inf
        while (
            wanted
            and moment.pending is not None
            and 0 < moment.pending.documents <= most
            and time.monotonic() < deadline
        ):
            await asyncio.sleep(_PENDING_POLL_SECONDS)
            moment = await on_thread(self._threads, self.moment)
        return moment

    def moment(self) -> Moment:
        """Return what is pending now, and the reason why changed files are not noticed."""
        return self._moment(self._pending.pending(self._agent.id)) if self._pending is not None else Moment()

    def _moment(self, pending: Pending | None) -> Moment:
        if pending is None or self._pending is None:
            return Moment(None)
        return Moment(_state(pending), self._unwatched(self._pending))

    def vectors_pending(self, reader: StoreReader, revision: object) -> int:
        """Return the number of chunks without a vector, counted once at each revision (`StoreReader.change_token`)."""
        known = self._vectors
        if known is None or known[0] != revision:
            self._vectors = known = revision, reader.vectors_pending()
        return known[1]

    def _flushed(self, deadline: float, *, always: bool) -> Moment:
        """Have the producers queue what they hold back, and return what is pending then.

        They are asked `always`, or only if they hold back changes, or if documents wait.
        """
        pending = self._pending.pending(self._agent.id) if self._pending is not None else None
        if (
            self._inbox is None
            or pending is None
            or not (always or pending.held_back or pending.documents)
            or read_watch_state(self._home, self._agent.id) is None  # no producer would answer
        ):
            return self._moment(pending)
        self._inbox.ask(Event(kind="flush", agent=self._agent.id), deadline - time.monotonic())
        return self.moment()

    def _unwatched(self, queue: PendingReader) -> Condition | None:
        facts = queue.broker()
        if facts is not None and not facts.writable:
            return Condition(
                ConditionCode.CHANGES_UNSEEN, params={"reason": facts.warning or "the broker is read-only"}
            )
        return not_watched(known_processes(queue, wait=None))


def _state(pending: Pending) -> PendingState:
    oldest = max(0.0, time.time() - pending.oldest_at) if pending.oldest_at is not None else None
    return PendingState(documents=pending.documents, oldest_seconds=round(oldest, 3) if oldest is not None else None)
