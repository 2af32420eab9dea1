from __future__ import annotations

from collections.abc import Iterator

import pytest

from producers import dispatcher as handing_over
from producers.dispatcher import CALL_DOCUMENTS, Dispatcher, mark_in_calls
from schemas.conditions import ConditionCode
from schemas.documents import DocumentKey, Lane
from tests.recording import RecordingConditions, RecordingQueue
from tests.waiting import wait_until


def note(name: str) -> DocumentKey:
    return DocumentKey("memory", f"memory/{name}.md")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Bench:
    def __init__(self) -> None:
        self.queue = RecordingQueue()
        self.troubles = RecordingConditions()
        self.clock = Clock()
        self.recoveries: list[bool] = []
        self.hand_over = Dispatcher(
            self.queue,
            self.troubles,
            quiet_seconds=lambda agent: {"main": 1.5, "slow": 60.0}[agent],
            on_recovered=lambda: self.recoveries.append(True),
            clock=self.clock,
        )

    def pass_time(self, seconds: float) -> None:
        self.clock.now += seconds
        self.hand_over.submit("main", [])  # wakes the thread, which looks at the clock


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(handing_over, "GATHER_SECONDS", 0.001)
    bench = Bench()
    bench.hand_over.start()
    yield bench
    bench.hand_over.stop()


def test_a_touched_document_reaches_the_queue_after_its_quiet_time(bench: Bench) -> None:
    bench.hand_over.touch("main", note("a"))
    bench.hand_over.touch("main", note("a"))
    bench.pass_time(1.4)
    assert bench.hand_over.waiting() == 1
    bench.pass_time(0.2)
    wait_until(lambda: bench.queue.marked("main") == ["memory/a.md"])
    assert bench.queue.calls[0][2] is Lane.LIVE


def test_the_queue_knows_whose_changes_are_held_back_until_they_are_marked(bench: Bench) -> None:
    bench.hand_over.touch("slow", note("a"))
    wait_until(lambda: bench.queue.held_back == {"slow"})
    bench.hand_over.touch("main", note("b"))
    wait_until(lambda: bench.queue.held_back == {"slow", "main"})
    bench.pass_time(2)
    wait_until(lambda: bench.queue.held_back == {"slow"})
    assert bench.queue.marked("main") == ["memory/b.md"]
    bench.hand_over.flush("slow")
    wait_until(lambda: not bench.queue.held_back)
    assert bench.queue.marked("slow") == ["memory/a.md"]


def test_documents_due_together_are_one_call_with_the_most_important_first(bench: Bench) -> None:
    for key in (note("z"), note("a"), DocumentKey("memory", "MEMORY.md")):
        bench.hand_over.touch("main", key)
    bench.pass_time(2)
    wait_until(lambda: bench.queue.calls)
    assert bench.queue.marked("main") == ["MEMORY.md", "memory/a.md", "memory/z.md"]
    assert len(bench.queue.calls) == 1


def test_nothing_is_lost_while_the_queue_does_not_answer(bench: Bench) -> None:
    bench.queue.available = False
    bench.hand_over.submit("main", [note("a"), note("b")])
    wait_until(lambda: (ConditionCode.CHANGES_KEPT, "*") in bench.troubles.open)
    bench.hand_over.submit("main", [note("b"), note("c")])
    bench.hand_over.submit("slow", [note("d")])
    bench.queue.available = True
    assert bench.queue.calls == []
    bench.pass_time(1)
    wait_until(lambda: bench.recoveries)
    assert sorted(bench.queue.marked("main")) == ["memory/a.md", "memory/b.md", "memory/c.md"]
    assert bench.queue.marked("slow") == ["memory/d.md"]
    assert bench.troubles.open == {}
    assert bench.recoveries == [True]


def test_an_absent_queue_is_asked_less_and_less_often(bench: Bench) -> None:
    bench.queue.available = False
    bench.hand_over.submit("main", [note("a")])
    wait_until(lambda: bench.queue.refusals == 1)
    for number in range(2, 6):
        bench.pass_time(0.4 * 2 ** (number - 2))  # less than the pause
        bench.pass_time(0.2 * 2 ** (number - 2))
        wait_until(lambda number=number: bench.queue.refusals == number)  # type: ignore[misc]
    assert bench.queue.refusals == 5


def test_one_agents_refused_change_does_not_hold_up_the_others(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    real = bench.queue.mark_changed

    def refuse_main(agent: str, documents: list[DocumentKey], *, lane: Lane) -> None:
        if agent == "main":
            raise UnicodeEncodeError("utf-8", "\udcff", 0, 1, "surrogates not allowed")
        real(agent, documents, lane=lane)

    monkeypatch.setattr(bench.queue, "mark_changed", refuse_main)
    bench.hand_over.submit("main", [note("a")])
    bench.hand_over.submit("slow", [note("b")])
    bench.pass_time(1)
    wait_until(lambda: bench.queue.marked("slow") == ["memory/b.md"])
    wait_until(lambda: (ConditionCode.CHANGES_KEPT, "*") in bench.troubles.open)


def test_stopping_ends_even_if_the_queue_does_not_answer() -> None:
    bench = Bench()
    bench.queue.available = False
    bench.hand_over.start()
    bench.hand_over.submit("main", [note("a")])
    wait_until(lambda: bench.queue.refusals)
    bench.hand_over.stop()
    assert bench.hand_over.waiting() == 1


def test_a_call_of_the_queue_has_a_bounded_size() -> None:
    queue = RecordingQueue()
    keys = [note(f"{number:05}") for number in range(2 * CALL_DOCUMENTS + 1)]
    mark_in_calls(queue, "main", keys, lane=Lane.BACKFILL)
    assert [len(documents) for _, documents, _ in queue.calls] == [CALL_DOCUMENTS, CALL_DOCUMENTS, 1]
    assert queue.marked("main") == [key.path for key in keys]
