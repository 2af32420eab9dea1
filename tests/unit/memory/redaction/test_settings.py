"""Patterns and switches of the settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from memory.redaction import query_redactor, redaction_facts, redactor_for
from schemas.settings import AgentSettings
from tests.secret_samples import PASSWORD

SECRET = "password: " + PASSWORD


def agent(**redaction: object) -> AgentSettings:
    return AgentSettings.model_validate({"id": "main", "workspace": Path("/nowhere"), "redaction": redaction})


def test_both_sources_are_redacted_unless_switched_off() -> None:
    for source in ("memory", "sessions"):
        assert redactor_for(agent(), source)(SECRET) == "password: [redacted:password]"
        assert redactor_for(agent(**{source: False}), source)(SECRET) == SECRET
    assert redactor_for(agent(sessions=False), "memory")(SECRET) != SECRET


def test_a_query_is_redacted_while_either_source_is() -> None:
    for switches in ({}, {"memory": False}, {"sessions": False}):
        assert PASSWORD not in query_redactor(agent(**switches))(SECRET)
    assert query_redactor(agent(memory=False, sessions=False))(SECRET) == SECRET


@pytest.mark.parametrize(
    ("pattern", "text", "redacted"),
    [
        (r"FP-\d+", "see FP-131 and FP-7", "see [redacted:pattern] and [redacted:pattern]"),
        (r"room (\d+), bed (\d)", "room 12, bed 3", "room [redacted:pattern], bed [redacted:pattern]"),
        (r"(a)|b+", "xaxbb", "x[redacted:pattern]x[redacted:pattern]"),
        (r"(?s)begin.*end", "begin\r\n x \n\nend", "[redacted:pattern]\r\n [redacted:pattern] \n\n[redacted:pattern]"),
        (r"x*", "abc", "abc"),
        (r"x*", "axxb", "a[redacted:pattern]b"),
        (r"", "abc", "abc"),
        (r"redacted|pass\w+", SECRET, "[redacted:pattern]: [redacted:password]"),
        (r"王\w", "王五的密码：" + PASSWORD, "[redacted:pattern]的密码：[redacted:password]"),
        (r"\ud83d\S+|!", "a \ud83dx !", "a [redacted:pattern] [redacted:pattern]"),
    ],
)
def test_a_pattern_masks_its_groups_or_its_match(pattern: str, text: str, redacted: str) -> None:
    redact = redactor_for(agent(patterns=[pattern]), "memory")
    assert redact(text) == redacted
    assert redact(redacted) == redacted


def test_the_facts_change_with_what_changes_an_index_and_tell_no_pattern() -> None:
    kinds = [agent(), agent(memory=False), agent(sessions=False), agent(patterns=["a"]), agent(patterns=["b"])]
    facts = [redaction_facts(one) for one in kinds]
    assert len({repr(one) for one in facts}) == len(kinds)
    assert "bluebird" not in repr(redaction_facts(agent(patterns=["bluebird"])))
    assert redaction_facts(agent()) == redaction_facts(agent())
