"""Hands a backfill's documents to the queue as there is room in it, and again what got lost there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from producers.dispatcher import mark_in_calls
from schemas.documents import DocumentKey, Lane
from schemas.errors import BrokerUnavailable
from schemas.ports import JobQueue, PendingReader

#: Documents that wait in the queue at a time; the rest is held back, so that the broker stays small.
WAITING_DOCUMENTS = 20_000

#: Times that what neither waits nor was indexed is queued again: a broker that crashes may forget its last second.
_AGAIN = 2


class BackfillFeed:
    """`left` says which documents are not indexed and did not fail; it is asked when the queue has run empty.

    `on_marked` is called after documents were queued.
    """

    def __init__(
        self,
        agent: str,
        documents: Iterable[DocumentKey],
        *,
        queue: JobQueue,
        board: PendingReader,
        left: Callable[[], Sequence[DocumentKey]],
        on_marked: Callable[[], None] = lambda: None,
    ) -> None:
        self.held_back = list(documents)
        self._agent = agent
        self._queue = queue
        self._board = board
        self._left = left
        self._on_marked = on_marked
        self._again = _AGAIN if self.held_back else 0

    def __call__(self) -> int:
        """Queue as many as there is room for; returns how many are still held back."""
        pending = self._board.pending(self._agent)
        if pending is None:
            return len(self.held_back)  # the broker is away for a moment
        if not self.held_back and not pending.documents and self._again:
            self._again -= 1
            self.held_back = list(self._left())
            self._again *= bool(self.held_back)
        room = WAITING_DOCUMENTS - pending.documents
        # In large helpings, so that a hundred thousand documents are not a hundred thousand calls.
        if self.held_back and room >= min(len(self.held_back), WAITING_DOCUMENTS // 4):
            try:
                mark_in_calls(self._queue, self._agent, self.held_back[:room], lane=Lane.BACKFILL)
            except BrokerUnavailable:
                return len(self.held_back)  # marking some of them twice does no harm
            del self.held_back[:room]
            self._on_marked()
        return len(self.held_back)
