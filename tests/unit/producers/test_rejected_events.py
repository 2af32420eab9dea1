from __future__ import annotations

from memory.status.condition_texts import text_of
from producers.rejected_events import KEPT_SECONDS, RejectedEvents
from schemas.conditions import ConditionCode
from tests.recording import RecordingConditions

CODE = ConditionCode.EVENT_PATHS_REFUSED


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_refused_paths_are_one_trouble_an_agent_with_their_number_and_the_last_one() -> None:
    troubles, clock = RecordingConditions(), Clock()
    refusals = RejectedEvents(troubles, clock=clock)
    refusals.refuse("main", "compaction", "/etc/passwd", reason="not a transcript")
    assert troubles.open[CODE, "main"].params["paths"] == 1
    assert troubles.open[CODE, "main"].params["path"] == "/etc/passwd"
    clock.now += 2
    refusals.refuse("main", "grew", "/etc/shadow", reason="not a transcript")
    assert troubles.open[CODE, "main"].params["paths"] == 2
    assert troubles.open[CODE, "main"].params["path"] == "/etc/shadow"
    assert list(troubles.open) == [(CODE, "main")]


def test_a_storm_of_refusals_is_told_once_a_second() -> None:
    troubles, clock = RecordingConditions(), Clock()
    refusals = RejectedEvents(troubles, clock=clock)
    for number in range(1000):
        refusals.refuse("main", "grew", f"/tmp/{number}.jsonl", reason="not a transcript")
    assert len(troubles.told) == 1
    clock.now += 1.5
    refusals.publish()
    refusals.publish()
    assert len(troubles.told) == 2
    assert troubles.open[CODE, "main"].params["paths"] == 1000


def test_a_refusal_is_taken_back_after_a_while() -> None:
    troubles, clock = RecordingConditions(), Clock()
    refusals = RejectedEvents(troubles, clock=clock)
    refusals.refuse("main", "grew", "/a.jsonl", reason="not a transcript")
    clock.now += KEPT_SECONDS - 1
    refusals.publish()
    assert (CODE, "main") in troubles.open
    clock.now += 2
    refusals.publish()
    assert troubles.open == {}


def test_what_the_broker_forgot_is_told_again() -> None:
    troubles = RecordingConditions()
    refusals = RejectedEvents(troubles, clock=Clock())
    refusals.refuse("main", "grew", "/a.jsonl", reason="not a transcript")
    troubles.open.clear()
    refusals.publish()
    assert troubles.open == {}
    refusals.tell_again()
    refusals.publish()
    assert (CODE, "main") in troubles.open


def test_a_path_is_shown_short_and_printable() -> None:
    troubles = RecordingConditions()
    RejectedEvents(troubles, clock=Clock()).refuse("main", "grew", "/x\n\x1b[31m\udce9" + "y" * 10_000, reason="no")
    message = text_of(troubles.open[CODE, "main"])
    message.encode()
    assert message.isprintable()
    assert len(message) < 400


def test_whatever_is_no_path_can_be_told() -> None:
    troubles = RecordingConditions()
    refusals = RejectedEvents(troubles, clock=Clock())
    refusals.refuse("main", "grew", "/half of a pair \ud800 \x1b[2J\n.jsonl", reason="not a transcript")
    assert text_of(troubles.open[CODE, "main"]).isprintable()
