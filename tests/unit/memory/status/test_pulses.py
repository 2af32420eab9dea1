"""Threads that do not get on are known by name."""

from __future__ import annotations

import threading

from memory.status.processes import Pulses


def test_a_step_is_shown_once_it_takes_long_and_stuck_until_its_thread_gets_on():
    now = [100.0]
    pulses = Pulses(stalled_after_seconds=30, clock=lambda: now[0])
    pulse = pulses.of("tail")
    pulse.busy("reads")
    for seconds, long_steps, problems in ((10, 0, 0), (11, 1, 0), (30, 1, 0), (31, 1, 1)):
        now[0] = 100.0 + seconds
        assert (len(pulses.long_steps()), len(pulses.problems())) == (long_steps, problems)
    assert pulses.long_steps() == ["reads for 31 s"]
    assert all(word in pulses.problems()[0] for word in ("tail", "(reads)", "31 s"))
    pulse.busy("reads")
    assert pulses.problems() == []
    now[0] += 10
    pulse.idle()
    assert pulses.long_steps() == []


def test_a_thread_that_ended_is_missed_until_the_process_ends():
    pulses = Pulses()
    thread = threading.Thread(target=lambda: None)
    pulses.of("inbox").belongs_to(thread)
    assert pulses.problems() == [], "it was not started yet"
    thread.start()
    thread.join()
    [problem] = pulses.problems()
    assert "inbox" in problem
    pulses.close()
    assert pulses.problems() == []
