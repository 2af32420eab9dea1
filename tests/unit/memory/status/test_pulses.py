"""Threads that do not get on are known by name."""

from __future__ import annotations

import threading

from memory.status.processes import Pulses


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_thread_that_is_at_the_same_step_for_too_long_is_stuck_until_it_gets_on():
    clock = Clock()
    pulses = Pulses(stalled_after_seconds=10, clock=clock)
    pulse = pulses.of("tail")
    pulse.busy("looks at transcripts")
    clock.now += 10
    assert pulses.problems() == []
    clock.now += 1
    assert pulses.problems() == ["its tail thread has been at the same step (looks at transcripts) for 11 s"]
    pulse.busy("looks at transcripts")
    assert pulses.problems() == []


def test_what_takes_long_is_told_before_it_is_a_problem():
    clock = Clock()
    pulses = Pulses(stalled_after_seconds=120, clock=clock)
    pulse = pulses.of("job")
    pulse.busy("index_pending of main")
    clock.now += 9
    assert pulses.long_steps() == []
    clock.now += 25
    assert (pulses.long_steps(), pulses.problems()) == (["index_pending of main for 34 s"], [])
    pulse.idle()
    assert pulses.long_steps() == []


def test_a_thread_that_ended_is_missed_until_the_process_ends():
    pulses = Pulses()
    thread = threading.Thread(target=lambda: None)
    pulses.of("inbox").belongs_to(thread)
    assert pulses.problems() == [], "it was not started yet"
    thread.start()
    thread.join()
    assert pulses.problems() == ["its inbox thread has ended"]
    pulses.close()
    assert pulses.problems() == []
