from __future__ import annotations

import pytest

from memory.documents.note_facts import NoteFacts, note_facts

FACTS = NoteFacts("s1", "claude-code", "-home-me/s1.jsonl")


@pytest.mark.parametrize("text", ["{}", "# Session\n\n{}\n\n## Last messages\n", "edited above\n{}\nand below\r\n"])
def test_facts_are_read_wherever_they_stand_in_a_note(text: str) -> None:
    assert note_facts(text.format(FACTS)) == FACTS


@pytest.mark.parametrize("text", ["", "- Session: s1", "see - Transcript: a.jsonl", "- Transcript:  "])
def test_a_note_without_a_line_for_a_transcript_states_no_facts(text: str) -> None:
    assert note_facts(text) is None
