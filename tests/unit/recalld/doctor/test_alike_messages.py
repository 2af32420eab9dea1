"""Messages that look alike are a sign of a program that a format does not know yet."""

from __future__ import annotations

from memory.transcripts.packing import beginnings
from recalld.doctor.home import alike_condition
from schemas.conditions import ConditionCode


def test_more_than_a_quarter_of_messages_that_begin_alike_is_told_with_its_beginning() -> None:
    said = [f"User: question {'abcdefghij'[number % 10]} of {number}" for number in range(75)]
    machine = [f"User: [Job {number} of a program that nobody knows] run {number}" for number in range(26)]
    condition = alike_condition("main", said + machine)
    assert condition is not None
    assert condition.code is ConditionCode.MESSAGES_ALIKE
    assert condition.subject == "main"
    assert condition.params == {"beginning": "User: [Job 0 of a program that nobody kn", "percent": 26, "messages": 101}
    assert alike_condition("main", said + machine[:25]) is None


def test_a_few_messages_are_not_judged() -> None:
    assert alike_condition("main", ["User: hi"] * 39) is None
    assert alike_condition("main", ["User: hi"] * 40) is not None


def test_the_beginnings_of_messages_are_taken_from_chunks_and_what_chunks_repeat_counts_once() -> None:
    first = "[2026-02-03 09:00] User: one\n[2026-02-03 09:01] Assistant: two\nand more: of it"
    second = "[2026-02-03 09:01] Assistant: two\nand more: of it\n[2026-02-03 09:02] User: one"
    assert list(beginnings([first, second])) == ["User: one", "Assistant: two", "User: one"]
