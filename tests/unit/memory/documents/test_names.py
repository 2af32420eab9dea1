"""Names and bytes of documents: what counts as one, in which order, and as which text."""

from __future__ import annotations

import codecs
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory.documents.content import decode
from memory.documents.roots import is_note_name, is_transcript_name, priority, session_id
from memory.documents.scan import printable
from schemas.documents import DocumentKey

TIME = "2026-02-03T09-00-00.000Z"
NOTES = ["2026-11-20.md", "a.md", "UPPER.MD", "今天.md"]
NO_NOTES = [".hidden.md", ".#a.md", "#a.md#", "a.md~", "4913", ".a.md.swp", "~$a.md", ".~lock.a.md#", "a.tmp", ".md"]
SESSIONS = ["a.jsonl", "a-topic-7.jsonl", "rollout-2026-02-03T09-00-00-uuid.jsonl", "会话.jsonl", "a.jsonl.zst"]
ARCHIVES = [f"a.jsonl.reset.{TIME}", f"a.jsonl.deleted.{TIME}", f"a.jsonl.deleted.{TIME}.zst", "a.jsonl.reset.17701092"]
COPIES = ["a.jsonl.bak", f"a.jsonl.bak.{TIME}", "a.jsonl.bak-7-1770109200", f"a.jsonl.reset.{TIME}.bak"]
TRACES = [
    "a.checkpoint.1b2c.jsonl",
    "a.trajectory.jsonl.zst",
    "a.trajectory.jsonl",
    f"a.trajectory.jsonl.deleted.{TIME}",
]
DRAFTS = ["a.jsonl.tmp", "a.jsonl~", "a.jsonl.lock", "a.jsonl.reset.", "a.jsonl.zst.zst", "a.jsonl.gz"]
HIDDEN = [".a.jsonl", ".jsonl", "caf\udce9.jsonl", "a.json", "sessions.json"]


def test_notes_and_transcripts_are_known_by_name_and_drafts_and_copies_are_neither() -> None:
    assert all(map(is_note_name, NOTES))
    assert not any(map(is_note_name, NO_NOTES))
    assert all(map(is_transcript_name, [*SESSIONS, *ARCHIVES]))
    assert not any(map(is_transcript_name, [*COPIES, *TRACES, *DRAFTS, *HIDDEN, *NOTES]))


@pytest.mark.parametrize(
    "path",
    [
        "sessions/one.jsonl",
        f"sessions/one.jsonl.reset.{TIME}",
        "sessions/one-topic-7.jsonl",
        "sessions/2026/02/03/rollout-2026-02-03T09-00-00-one.jsonl",
        "sessions/one/subagents/agent-2.jsonl",
        "sessions/one/events.jsonl",
        "/far/session-state/one/events.jsonl",
    ],
)
def test_a_transcripts_path_names_its_session(path: str) -> None:
    assert session_id(path) == "one"


def test_long_term_memory_comes_first_then_today_yesterday_and_notes_newest_first() -> None:
    ordered = [
        *(
            "MEMORY.md",
            "USER.md",
            "users/ada/USER.md",
            "memory/standup-2026-11-21.md",
            "memory/deep/2026-11-20-plan.md",
        ),
        *("memory/2026-11-22.md", "memory/2026-11-19.md", "memory/2025-01-01.md"),
        *("/elsewhere/z.md", "memory/2026-11-21/a.md", "memory/2026-13-45.md", "memory/a.md"),
    ]
    today = date(2026, 11, 21)
    assert sorted(sorted(ordered), key=lambda path: priority(DocumentKey("memory", path), today=today)) == ordered


@given(st.binary())
def test_any_bytes_become_text_without_nul_that_utf8_can_hold(data: bytes) -> None:
    text, _ = decode(data)
    assert "\0" not in text
    text.encode()


@pytest.mark.parametrize(
    ("data", "text", "notes"),
    [
        (codecs.BOM_UTF8 + b"# Day\n", "# Day\n", ()),
        (codecs.BOM_UTF16_LE + "# 今天\r\n".encode("utf-16-le"), "# 今天\r\n", ()),
        (codecs.BOM_UTF16_BE + "# 今天\r\n".encode("utf-16-be"), "# 今天\r\n", ()),
        (b"before \xff after", "before \ufffd after", ("invalid UTF-8 was replaced",)),
        (codecs.BOM_UTF16_LE + b"a\0b", "a\ufffd", ("invalid UTF-16 was replaced",)),
        (b"a\0b\n", "a\ufffdb\n", ("NUL characters were replaced",)),
        (b"a\r\nb\rc\n", "a\r\nb\rc\n", ()),
        ("\ufffd".encode(), "\ufffd", ()),
    ],
)
def test_marks_go_line_ends_stay_and_replacements_are_noted(data: bytes, text: str, notes: tuple[str, ...]) -> None:
    assert decode(data) == (text, notes)


@given(st.text() | st.sampled_from(["\ud800", "a\nb", "\x1b[2J", "\u202e", "\udcff"]))
def test_any_name_can_be_shown_in_one_line_of_bounded_length(name: str) -> None:
    shown = printable(name * 3)
    shown.encode("utf-8")
    assert shown.isprintable()
    assert len(shown) <= 403
