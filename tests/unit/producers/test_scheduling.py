from __future__ import annotations

from producers.reconciler import COMPARISON_RETRY_SECONDS, ReconcileSchedule


def drain(schedule: ReconcileSchedule, now: float) -> list[tuple[str, str]]:
    taken = []
    while (due := schedule.take(now=now)) is not None:
        taken.append(due)
    return taken


def test_periodic_comparisons_of_many_agents_are_spread_over_the_interval() -> None:
    agents = [f"agent{number}" for number in range(300)]
    schedule = ReconcileSchedule(dict.fromkeys(agents, 900.0), now=0.0)
    for agent, _ in drain(schedule, 0.0):
        schedule.done(agent, now=0.0)
    due = {second: len(drain(schedule, float(second))) for second in range(901)}
    assert sum(due.values()) == 300
    assert max(due.values()) <= 2


def test_after_the_first_one_a_comparison_comes_every_interval() -> None:
    schedule = ReconcileSchedule({"amy": 60.0}, now=0.0)
    for at in (0.0, 60.0, 120.0):
        assert drain(schedule, at - 0.1) == []
        assert [agent for agent, _ in drain(schedule, at)] == ["amy"]
        schedule.done("amy", now=at)


def test_an_agent_without_an_interval_is_compared_on_request_only() -> None:
    schedule = ReconcileSchedule({"amy": None}, now=0.0)
    drain(schedule, 0.0)
    schedule.done("amy", now=0.0)
    assert drain(schedule, 1e9) == []
    schedule.request(["amy"], "session-start", now=7.0)
    assert drain(schedule, 7.0) == [("amy", "session-start")]


def test_an_urgent_request_goes_before_those_that_wait() -> None:
    schedule = ReconcileSchedule({"amy": 60.0, "bob": 60.0, "cid": 60.0}, now=0.0)
    schedule.request(["cid"], "session-start", now=1.0, urgent=True)
    assert [agent for agent, _ in drain(schedule, 1.0)] == ["cid", "amy", "bob"]


def test_requests_for_one_agent_become_one_comparison_at_the_earliest_time() -> None:
    schedule = ReconcileSchedule({"amy": 60.0}, now=0.0)
    drain(schedule, 0.0)
    schedule.request(["amy"], "moved", now=1.0, delay_seconds=2.0)
    schedule.request(["amy"], "moved again", now=2.0, delay_seconds=2.0)
    assert drain(schedule, 2.9) == []
    assert drain(schedule, 3.0) == [("amy", "moved")]
    assert drain(schedule, 9.0) == []


def test_a_request_during_a_comparison_is_not_lost_when_it_is_done() -> None:
    schedule = ReconcileSchedule({"amy": 60.0}, now=0.0)
    drain(schedule, 0.0)
    schedule.request(["amy"], "file events were lost", now=0.5)
    schedule.done("amy", now=1.0)
    assert drain(schedule, 1.0) == [("amy", "file events were lost")]


def test_a_failed_comparison_is_tried_again_later_each_time() -> None:
    schedule = ReconcileSchedule({"amy": None}, now=0.0)
    now, pauses = 0.0, []
    for _ in range(8):
        assert drain(schedule, now)
        pauses.append(schedule.failed("amy", now=now))
        assert drain(schedule, now + pauses[-1] - 0.01) == []
        now += pauses[-1]
    assert pauses[0] == COMPARISON_RETRY_SECONDS[0]
    assert pauses == sorted(pauses)
    assert pauses[-1] == COMPARISON_RETRY_SECONDS[1]
