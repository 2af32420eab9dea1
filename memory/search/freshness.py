"""How far an agent's index is behind its files, and waiting until it is not."""

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

#: How often a search that waits for pending documents looks.
_PENDING_POLL_SECONDS = 0.01

#: Milliseconds that a search waits for what was written before it, where it does not say.
DEFAULT_WAIT_MS = 500

#: More documents than this behind are a backlog.
_BACKLOG_DOCUMENTS = 20


class Freshness:
    """One agent's. `pending` says how far the index is behind, `inbox` takes the wish to flush; both may be absent."""

    def __init__(
        self, settings: Settings, agent: AgentSettings, *, pending: PendingReader | None, inbox: EventInbox | None
    ) -> None:
        self._home = settings.home
        self._agent = agent
        self._pending = pending
        self._inbox = inbox
        self._closing = threading.Event()

    def state(self, *, vectors: int) -> PendingState | None:
        """How far an answer is behind, `vectors` chunks without theirs included; None when the queue was asked and
        does not answer."""
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

    def blind(self) -> Condition | None:
        """Return why files that were changed just now are not noticed; None when they are, or when it is not known."""
        if self._pending is None:
            return None
        facts = self._pending.broker()
        if facts is not None and not facts.writable:
            return Condition(
                ConditionCode.CHANGES_UNSEEN, params={"reason": facts.warning or "the broker is read-only"}
            )
        return not_watched(glanced_states(self._pending.processes()))

    def wait(self, wait_ms: int | None, at_most_seconds: float) -> None:
        """Let what was written before this search be queued at once, and wait until it is indexed.

        Nobody who did not ask for it (`wait_ms` is None) waits for a backlog.
        """
        wanted = DEFAULT_WAIT_MS if wait_ms is None else wait_ms
        if self._pending is None or not wanted:
            return
        deadline = time.monotonic() + min(wanted / 1000, at_most_seconds)
        if self._pending.pending(self._agent.id) is None:
            return  # the queue is away
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
        """Let nobody wait any longer."""
        self._closing.set()

    def _is_watched(self) -> bool:
        """Whether somebody would answer who watches the files."""
        return read_watch_state(self._home, self._agent.id) is not None
