from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producers.dispatcher import CALL_DOCUMENTS, NOTE_BOUND, Debouncer, Dispatcher, mark_in_calls
from producers.tailer import Tailer
from schemas.conditions import ConditionCode
from schemas.documents import DocumentKey, Lane
from schemas.settings import AgentSettings, Sync
from tests.recording import RecordingConditions, RecordingQueue
from tests.waiting import wait_until

QUIET = {"hasty": 0.0, "main": 1.5, "slow": 60.0}

AGENTS = {
    agent: AgentSettings(id=agent, workspace=Path("/nowhere"), sync=Sync(watch_debounce_ms=int(1000 * seconds)))
    for agent, seconds in QUIET.items()
}


def note(name: str) -> DocumentKey:
    return DocumentKey("memory", f"memory/{name}.md")


A, B = note("a"), note("b")


def test_a_file_that_is_written_all_the_time_is_handed_over_all_the_same() -> None:
    core, handed_over = Debouncer(AGENTS), []
    for tenth in range(1000):
        now = tenth / 10
        core.touch("main", A, now=now)
        if core.take_due(now=now):
            handed_over.append(now)
    bound = NOTE_BOUND * QUIET["main"]
    assert [round(at / bound) for at in handed_over] == list(range(1, int(100 / bound) + 1))


events = st.lists(
    st.tuples(
        st.sampled_from(["touch", "touch", "touch", "tick", "flush"]),
        st.sampled_from(sorted(QUIET)),
        st.sampled_from([A, B]),
        st.floats(0.0, 3.0, allow_nan=False),
    ),
    max_size=60,
)


@given(events)
def test_every_window_is_handed_over_exactly_once_and_only_when_due(
    steps: list[tuple[str, str, DocumentKey, float]],
) -> None:
    core = Debouncer(AGENTS)
    due_at: dict[tuple[str, DocumentKey], float] = {}
    first_at: dict[tuple[str, DocumentKey], float] = {}
    now = 0.0
    for action, agent, key, passes in [*steps, ("tick", "main", A, 10_000.0)]:
        now += passes
        if action == "touch":
            due = core.touch(agent, key, now=now)
            first = first_at.setdefault((agent, key), now)
            postponed = now + QUIET[agent]
            bound = first + NOTE_BOUND * QUIET[agent]
            assert due == (postponed if postponed <= bound else due_at[agent, key]) <= bound
            due_at[agent, key] = due
        else:
            flushed = [agent] if action == "flush" else []
            taken = core.take_due(now=now, agents=flushed)
            assert sorted(taken) == sorted(one for one in due_at if due_at[one] <= now or one[0] in flushed)
            for one in taken:
                del due_at[one], first_at[one]
        assert len(core) == len(due_at)
        assert core.next_due() == min(due_at.values(), default=float("inf"))
        assert core.agents() == {owner for owner, _ in due_at}


class Bench:
    def __init__(self) -> None:
        self.queue = RecordingQueue()
        self.conditions = RecordingConditions()
        self.now = 100.0
        self.recoveries: list[bool] = []
        self.dispatcher = Dispatcher(
            AGENTS,
            self.queue,
            self.conditions,
            Tailer(AGENTS, {}, lambda _: None),
            on_recovered=lambda: self.recoveries.append(True),
            clock=lambda: self.now,
        )

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.dispatcher.flush()  # wakes the thread, which looks at the clock


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    bench.dispatcher.start()
    yield bench
    bench.dispatcher.stop()


def test_the_queue_knows_whose_changes_are_held_back_until_they_are_marked(bench: Bench) -> None:
    bench.dispatcher.touch("slow", A)
    wait_until(lambda: bench.queue.held_back == {"slow"})
    bench.dispatcher.touch("main", B)
    wait_until(lambda: bench.queue.held_back == {"slow", "main"})
    bench.pass_time(1.4)
    assert bench.dispatcher.waiting() == 2
    bench.pass_time(0.2)
    wait_until(lambda: bench.queue.held_back == {"slow"})
    assert bench.queue.calls == [("main", [B], Lane.LIVE)]
    bench.dispatcher.unseen({"main"})
    wait_until(lambda: bench.queue.held_back == {"slow", "main"})
    bench.queue.held_back = set()
    bench.dispatcher.tell_again()
    wait_until(lambda: bench.queue.held_back == {"slow", "main"})
    bench.dispatcher.unseen(())
    bench.dispatcher.flush("slow")
    wait_until(lambda: not bench.queue.held_back)
    assert bench.queue.marked("slow") == ["memory/a.md"]


def test_documents_due_together_are_one_call_with_the_most_important_first(bench: Bench) -> None:
    for key in (note("z"), A, DocumentKey("memory", "MEMORY.md")):
        bench.dispatcher.touch("main", key)
    bench.pass_time(2)
    wait_until(lambda: bench.queue.calls)
    assert [keys for _, keys, _ in bench.queue.calls] == [[DocumentKey("memory", "MEMORY.md"), A, note("z")]]


def test_an_absent_queue_is_asked_less_and_less_often_and_gets_everything_when_it_is_back(bench: Bench) -> None:
    bench.queue.available = False
    bench.dispatcher.submit("main", [A, B])
    wait_until(lambda: bench.queue.refusals == 1)
    for number in range(2, 6):
        bench.pass_time(0.4 * 2 ** (number - 2))  # less than the pause
        bench.pass_time(0.2 * 2 ** (number - 2))
        wait_until(lambda number=number: bench.queue.refusals == number)  # type: ignore[misc]
    assert (ConditionCode.CHANGES_KEPT, "*") in bench.conditions.open
    bench.dispatcher.submit("main", [B, note("c")])
    bench.dispatcher.submit("slow", [note("d")])
    bench.queue.available = True
    assert bench.queue.calls == []
    bench.pass_time(15)
    wait_until(lambda: bench.recoveries)
    assert sorted(bench.queue.marked("main")) == ["memory/a.md", "memory/b.md", "memory/c.md"]
    assert bench.queue.marked("slow") == ["memory/d.md"]
    assert bench.conditions.open == {}


def test_one_agents_refused_change_does_not_hold_up_the_others(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    real = bench.queue.mark_changed

    def refuse_main(agent: str, documents: list[DocumentKey], *, lane: Lane) -> None:
        if agent == "main":
            raise UnicodeEncodeError("utf-8", "\udcff", 0, 1, "surrogates not allowed")
        real(agent, documents, lane=lane)

    monkeypatch.setattr(bench.queue, "mark_changed", refuse_main)
    bench.dispatcher.submit("main", [A])
    wait_until(lambda: (ConditionCode.CHANGES_KEPT, "*") in bench.conditions.open)
    bench.dispatcher.submit("slow", [B])
    bench.pass_time(1)
    wait_until(lambda: bench.queue.marked("slow") == ["memory/b.md"])


def test_stopping_ends_even_if_the_queue_does_not_answer() -> None:
    bench = Bench()
    bench.queue.available = False
    bench.dispatcher.start()
    bench.dispatcher.submit("main", [A])
    wait_until(lambda: bench.queue.refusals)
    bench.dispatcher.stop()
    assert bench.dispatcher.waiting() == 1


def test_a_call_of_the_queue_has_a_bounded_size() -> None:
    queue = RecordingQueue()
    keys = [note(f"{number:05}") for number in range(2 * CALL_DOCUMENTS + 1)]
    mark_in_calls(queue, "main", keys, lane=Lane.BACKFILL)
    assert [len(documents) for _, documents, _ in queue.calls] == [CALL_DOCUMENTS, CALL_DOCUMENTS, 1]
    assert queue.marked("main") == [key.path for key in keys]
