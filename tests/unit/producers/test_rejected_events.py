from __future__ import annotations

from producers.rejected_events import KEPT_SECONDS, PART, Refusals
from tests.recording import RecordingTroubles


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_refused_paths_are_one_trouble_an_agent_with_their_number_and_the_last_one() -> None:
    troubles, clock = RecordingTroubles(), Clock()
    refusals = Refusals(troubles, clock=clock)
    refusals.refuse("main", "compaction", "/etc/passwd", reason="not a transcript")
    assert troubles.open[PART, "main"].startswith("a path in events was refused")
    assert "/etc/passwd is not a transcript" in troubles.open[PART, "main"]
    clock.now += 2
    refusals.refuse("main", "grew", "/etc/shadow", reason="not a transcript")
    assert "2 paths" in troubles.open[PART, "main"]
    assert "/etc/shadow" in troubles.open[PART, "main"]
    assert list(troubles.open) == [(PART, "main")]


def test_a_storm_of_refusals_is_told_once_a_second() -> None:
    troubles, clock = RecordingTroubles(), Clock()
    refusals = Refusals(troubles, clock=clock)
    for number in range(1000):
        refusals.refuse("main", "grew", f"/tmp/{number}.jsonl", reason="not a transcript")
    assert len(troubles.told) == 1
    clock.now += 1.5
    refusals.publish()
    refusals.publish()
    assert len(troubles.told) == 2
    assert "1000 paths" in troubles.open[PART, "main"]


def test_a_refusal_is_taken_back_after_a_while() -> None:
    troubles, clock = RecordingTroubles(), Clock()
    refusals = Refusals(troubles, clock=clock)
    refusals.refuse("main", "grew", "/a.jsonl", reason="not a transcript")
    clock.now += KEPT_SECONDS - 1
    refusals.publish()
    assert (PART, "main") in troubles.open
    clock.now += 2
    refusals.publish()
    assert troubles.open == {}


def test_what_the_broker_forgot_is_told_again() -> None:
    troubles = RecordingTroubles()
    refusals = Refusals(troubles, clock=Clock())
    refusals.refuse("main", "grew", "/a.jsonl", reason="not a transcript")
    troubles.open.clear()
    refusals.publish()
    assert troubles.open == {}
    refusals.tell_again()
    refusals.publish()
    assert (PART, "main") in troubles.open


def test_a_path_is_shown_short_and_printable() -> None:
    troubles = RecordingTroubles()
    Refusals(troubles, clock=Clock()).refuse("main", "grew", "/x\n\x1b[31m\udce9" + "y" * 10_000, reason="no")
    message = troubles.open[PART, "main"]
    message.encode()
    assert message.isprintable()
    assert len(message) < 400


def test_whatever_is_no_path_can_be_told() -> None:
    troubles = RecordingTroubles()
    refusals = Refusals(troubles, clock=Clock())
    refusals.refuse("main", "grew", "/half of a pair \ud800 \x1b[2J\n.jsonl", reason="not a transcript")
    assert troubles.open[PART, "main"].isprintable()
