from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from producers.debouncer import BOUND_FACTOR, Debouncer
from schemas.documents import DocumentKey

QUIET = {"hasty": 0.0, "usual": 1.5, "calm": 4.0}

A = DocumentKey("memory", "memory/a.md")
B = DocumentKey("memory", "memory/b.md")


def debouncer() -> Debouncer:
    return Debouncer(lambda agent: QUIET[agent])


def test_a_file_that_is_written_all_the_time_is_handed_over_all_the_same() -> None:
    core = debouncer()
    handed_over = []
    for tenth in range(1000):
        now = tenth / 10
        core.touch("usual", A, now=now)
        if core.take_due(now=now):
            handed_over.append(now)
    bound = BOUND_FACTOR * QUIET["usual"]
    assert [round(at / bound) for at in handed_over] == list(range(1, len(handed_over) + 1))
    assert len(handed_over) == int(100 / bound)


def test_the_next_due_time_is_never_later_than_a_due_document() -> None:
    core = debouncer()
    assert core.next_due() is None
    core.touch("calm", A, now=0.0)
    core.touch("usual", A, now=1.0)
    assert core.next_due() == 2.5


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
    core = debouncer()
    open_windows: dict[tuple[str, DocumentKey], tuple[float, float]] = {}
    now = 0.0

    def due_at(agent: str, window: tuple[float, float]) -> float:
        first, last = window
        return min(last + QUIET[agent], first + BOUND_FACTOR * QUIET[agent])

    def check(taken: dict[str, list[DocumentKey]]) -> None:
        keys = [(agent, key) for agent, keys in taken.items() for key in keys]
        expected = {window for window, times in open_windows.items() if due_at(window[0], times) <= now}
        assert len(keys) == len(set(keys))
        assert set(keys) == expected
        for key in expected:
            del open_windows[key]

    for action, agent, key, passes in steps:
        now += passes
        if action == "touch":
            core.touch(agent, key, now=now)
            first, _ = open_windows.get((agent, key), (now, now))
            open_windows[agent, key] = (first, now)
        elif action == "tick":
            check(core.take_due(now=now))
        else:
            flushed = core.flush(agent)
            assert set(flushed.get(agent, [])) == {owned for owner, owned in open_windows if owner == agent}
            assert set(flushed) <= {agent}
            open_windows = {window: times for window, times in open_windows.items() if window[0] != agent}
        assert len(core) == len(open_windows)
    now += 1000.0
    check(core.take_due(now=now))
    assert not open_windows
    assert core.next_due() is None
