"""Freshness of an agent's index: the documents that wait, and waiting for them."""

from __future__ import annotations

import math
import threading
import time

from memory.status.processes import glanced_states, not_watched
from memory.status.run_files import read_watch_state
from schemas.conditions import Condition, ConditionCode
from schemas.ports import Event, EventInbox, PendingReader
from schemas.search import PendingState
from schemas.settings import AgentSettings, Settings

#: Seconds between two looks of a search that waits for pending documents.
_PENDING_POLL_SECONDS = 0.01

#: Milliseconds that a search without `waitMs` waits for documents that were written before it.
DEFAULT_WAIT_MS = 500

#: More pending documents are a backlog.
_BACKLOG_DOCUMENTS = 20


class Freshness:
    """Freshness of one agent. `pending` reads the queue, `inbox` takes requests to flush; both may be absent."""

    def __init__(
        self, settings: Settings, agent: AgentSettings, *, pending: PendingReader | None, inbox: EventInbox | None
    ) -> None:
        self._home = settings.home
        self._agent = agent
        self._pending = pending
        self._inbox = inbox
        self._closing = threading.Event()

    def state(self, *, vectors: int) -> PendingState | None:
        """Return the pending work, with `vectors` chunks without a vector; None if the queue does not answer."""
        if self._pending is None:
            return PendingState(vectors=vectors)
        pending = self._pending.pending(self._agent.id)
        if pending is None:
            return None
        oldest = max(0.0, time.time() - pending.oldest_at) if pending.oldest_at is not None else None
        return PendingState(
            documents=pending.documents,
            oldest_seconds=round(oldest, 3) if oldest is not None else None,
            vectors=vectors,
        )

    def unwatched(self) -> Condition | None:
        """Return the reason for which changed files are not noticed; None if they are, or if that is unknown."""
        if self._pending is None:
            return None
        facts = self._pending.broker()
        if facts is not None and not facts.writable:
            return Condition(
                ConditionCode.CHANGES_UNSEEN, params={"reason": facts.warning or "the broker is read-only"}
            )
        return not_watched(glanced_states(self._pending.processes()))

    def wait(self, wait_ms: int | None, at_most_seconds: float) -> None:
        """Have earlier changes queued at once, and wait until they are indexed.

        A search that does not ask for it (`wait_ms` is None) does not wait for a backlog.
        """
        wanted = DEFAULT_WAIT_MS if wait_ms is None else wait_ms
        if self._pending is None or not wanted:
            return
        deadline = time.monotonic() + min(wanted / 1000, at_most_seconds)
        if self._pending.pending(self._agent.id) is None:
            return  # the queue does not answer
        if self._inbox is not None and self._agent.sync.on_search and self._is_watched():
            self._inbox.ask(Event(kind="flush", agent=self._agent.id), deadline - time.monotonic())
        most = _BACKLOG_DOCUMENTS if wait_ms is None else math.inf
        while True:
            pending = self._pending.pending(self._agent.id)
            if pending is None or not 0 < pending.documents <= most or time.monotonic() >= deadline:
                return
            if self._closing.wait(_PENDING_POLL_SECONDS):
                return

    def close(self) -> None:
        """End all waiting."""
        self._closing.set()

    def _is_watched(self) -> bool:
        """Return True if a producer watches the files, and would answer."""
        return read_watch_state(self._home, self._agent.id) is not None
