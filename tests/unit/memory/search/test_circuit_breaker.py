"""A queue that is away costs one search, not every search."""

from __future__ import annotations

from memory.search.freshness import OPEN_SECONDS, GuardedPendingReader
from schemas.ports import Pending, VectorProgress
from tests.quiet_board import QuietBoard


class Queue(QuietBoard):
    def __init__(self) -> None:
        self.answer: Pending | None = None
        self.asked = 0

    def pending(self, agent: str) -> Pending | None:
        self.asked += 1
        return self.answer

    def vector_progress(self, agent: str) -> VectorProgress:
        self.asked += 1
        return VectorProgress(rate=1.0)


def test_a_queue_that_is_away_is_asked_again_only_after_a_rest():
    queue, now = Queue(), [0.0]
    reader = GuardedPendingReader(queue, clock=lambda: now[0])

    assert (reader.pending("main"), reader.pending("other")) == (None, None)
    assert reader.vector_progress("main").rate == 0.0
    assert queue.asked == 1

    queue.answer = Pending(documents=2)
    now[0] += OPEN_SECONDS
    assert reader.pending("main") == queue.answer
    assert reader.vector_progress("main").rate == 1.0
    assert queue.asked == 3
