"""Note of a session that ended."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from memory.context.session_notes import (
    TAIL_BYTES,
    LastWords,
    last_words,
    note_name,
    session_note,
    slug_of,
    slug_prompt,
    unnoted,
)
from memory.documents.note_facts import NoteFacts
from memory.transcripts.lines import RawLine
from memory.transcripts.transcript_format import Message

AT = datetime(2026, 11, 22, 9, 5, tzinfo=UTC)
FACTS = NoteFacts("agent:main:main", "openclaw", "sessions/a.jsonl")


def lines(*messages: tuple[str, str]) -> Iterator[RawLine]:
    entries: list[dict[str, Any]] = [{"role": role, "content": text} for role, text in messages]
    for entry in entries:
        data = json.dumps(entry).encode()
        yield RawLine(data, len(data) + 1, b"", 0, len(data) + 1, has_line_end=True)


def texts(*messages: tuple[str, str], count: int = 15) -> list[str]:
    words = last_words(lines(*messages), redact=lambda text: text.replace("s3cret", "***"))
    return [said.text for said in words.messages[-count:]]


def test_the_last_messages_of_both_are_kept_without_commands_tools_and_secrets() -> None:
    found = texts(
        *[("user", f"question {number}") for number in range(20)],
        ("tool", "a result"),
        ("assistant", "the password is s3cret"),
        ("user", "/new"),
        ("system", "be kind"),
        count=3,
    )
    assert found == ["question 18", "question 19", "the password is ***"]


def test_only_the_end_of_a_long_transcript_is_read() -> None:
    long = "x" * (TAIL_BYTES // 2)
    assert texts(("user", "early"), ("user", long), ("assistant", long), ("user", "late"))[-1] == "late"
    assert "early" not in texts(("user", "early"), ("user", long), ("assistant", long), ("user", "late"))


def test_a_session_of_commands_and_tools_has_no_words() -> None:
    assert texts(("user", "/reset"), ("tool", "x")) == []


def test_the_note_names_its_session_and_quotes_its_last_words() -> None:
    note = session_note([Message("User", "Where is the key?"), Message("Assistant", "x" * 9_000)], at=AT, facts=FACTS)
    assert note.startswith("# Session of 2026-11-22 09:05 UTC\n\n- Session: agent:main:main\n- Program: openclaw\n")
    assert "- Transcript: sessions/a.jsonl\n" in note
    assert "\n\n**User**: Where is the key?\n\n**Assistant**: xxx" in note
    assert note.endswith("x [... 9000 characters in all]\n")


@pytest.mark.parametrize(
    ("answer", "slug"),
    [
        ("deploy-vault", "deploy-vault"),
        (' "The Deploy Vault."\n', "the-deploy-vault"),
        ("one-two-three-four-five-six-seven-eight", "one-two-three-four-five-six"),
        ("x" * 40, "x" * 30),
        ("../../etc/passwd", "etc-passwd"),
        ("部署", ""),
        ("", ""),
    ],
)
def test_a_models_name_becomes_part_of_a_file_name(answer: str, slug: str) -> None:
    assert slug_of(answer) == slug


def test_the_name_of_a_note_has_day_time_and_slug() -> None:
    assert (note_name(AT), note_name(AT, "vault")) == ("2026-11-22-0905", "2026-11-22-0905-vault")


def test_the_prompt_for_a_name_holds_the_beginning_of_the_conversation() -> None:
    prompt = slug_prompt([Message("User", "deploy " * 1_000)])
    assert "deploy" in prompt
    assert len(prompt) < 2_500


@pytest.mark.parametrize(
    ("transcript", "is_of_it"),
    [("sessions/a.jsonl.reset.2026-03-05T10-00-02.000Z", True), ("sessions/a.jsonl", True), ("others/a.jsonl", False)],
)
def test_a_note_is_of_its_transcript_and_of_the_archive_made_of_it(transcript: str, is_of_it: bool) -> None:
    said = [Message("User", "the vault is blue"), Message("Assistant", "yes")]
    notes = {"memory/a.md": session_note(said[:1], at=AT, facts=FACTS)}
    path, words = unnoted(LastWords(said, follows_another=False), NoteFacts("a", "openclaw", transcript), notes, "")
    assert (path, list(words)) == (("memory/a.md", said[1:]) if is_of_it else (None, said))
