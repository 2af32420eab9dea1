from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from producers.dispatcher import CALL_DOCUMENTS, NOTE_BOUND, Debouncer, mark_in_calls
from schemas.documents import DocumentKey, Lane
from schemas.settings import AgentSettings, Sync
from tests.recording import RecordingQueue

QUIET = {"hasty": 0.0, "main": 1.5, "slow": 60.0}

AGENTS = {
    agent: AgentSettings(id=agent, workspace=Path("/nowhere"), sync=Sync(watch_debounce_ms=int(1000 * seconds)))
    for agent, seconds in QUIET.items()
}


def note(name: str) -> DocumentKey:
    return DocumentKey("memory", f"memory/{name}.md")


A, B = note("a"), note("b")


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


def test_a_call_of_the_queue_has_a_bounded_size() -> None:
    queue = RecordingQueue()
    keys = [note(f"{number:05}") for number in range(2 * CALL_DOCUMENTS + 1)]
    mark_in_calls(queue, "main", keys, lane=Lane.BACKFILL)
    assert [len(documents) for _, documents, _ in queue.calls] == [CALL_DOCUMENTS, CALL_DOCUMENTS, 1]
    assert queue.marked("main") == [key.path for key in keys]
