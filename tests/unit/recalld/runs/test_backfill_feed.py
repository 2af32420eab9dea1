from __future__ import annotations

from collections.abc import Sequence

import pytest

from recalld.runs import backfill
from recalld.runs.backfill import BackfillFeed
from schemas.documents import DocumentKey, Lane
from schemas.ports import Pending
from tests.quiet_board import QuietBoard
from tests.recording import RecordingQueue


class HealthStore(QuietBoard):
    """Says that so many documents wait; None is a broker that does not answer."""

    waiting: int | None = 0

    def pending(self, agent: str) -> Pending | None:
        return None if self.waiting is None else Pending(documents=self.waiting, running=0, oldest_at=None)


class Desk:
    """A feed, its queue and its board. `left` is what the index will say that it lacks."""

    def __init__(self, count: int) -> None:
        self.keys = [DocumentKey("sessions", f"sessions/{number:02}.jsonl") for number in range(count)]
        self.queue, self.board = RecordingQueue(), HealthStore()
        self.left: Sequence[DocumentKey] = ()
        self.feed = BackfillFeed("main", self.keys, queue=self.queue, board=self.board, left=lambda: self.left)

    def marked(self) -> int:
        return len(self.queue.marked("main"))


@pytest.fixture(autouse=True)
def room_for_twelve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backfill, "WAITING_DOCUMENTS", 12)


def test_documents_go_to_the_backfill_lane_in_order_and_once() -> None:
    desk = Desk(5)
    assert desk.feed() == 0
    desk.board.waiting = 2
    assert desk.feed() == 0
    assert desk.queue.calls == [("main", desk.keys, Lane.BACKFILL)]


def test_no_more_wait_in_the_queue_than_there_is_room_for() -> None:
    desk = Desk(30)
    assert desk.feed() == 18
    desk.board.waiting = 11
    assert desk.feed() == 18, "one more would be a call for each document"
    desk.board.waiting = 8
    assert desk.feed() == 14
    desk.board.waiting = 0
    assert desk.feed() == 2
    assert desk.marked() == 28
    desk.board.waiting = 11
    assert desk.feed() == 2
    desk.board.waiting = 10
    assert desk.feed() == 0, "the last ones need no large helping"
    assert desk.queue.marked("main") == [key.path for key in desk.keys]


def test_a_broker_that_is_away_for_a_moment_loses_nothing() -> None:
    desk = Desk(5)
    desk.board.waiting = None
    assert desk.feed() == 5
    desk.board.waiting = 0
    desk.queue.available = False
    assert desk.feed() == 5
    desk.queue.available = True
    assert desk.feed() == 0
    assert desk.marked() == 5


def test_what_the_broker_forgot_is_queued_again_and_not_for_ever() -> None:
    desk = Desk(5)
    desk.feed()
    desk.left = desk.keys[3:]
    assert desk.feed() == 0
    assert desk.queue.marked("main")[5:] == [key.path for key in desk.keys[3:]]
    desk.feed()
    desk.feed()
    assert desk.marked() == 9


def test_nothing_is_asked_again_once_everything_is_indexed() -> None:
    desk = Desk(5)
    desk.feed()
    desk.feed()
    desk.left = desk.keys  # somebody deletes the index
    assert desk.feed() == 0
    assert desk.marked() == 5
