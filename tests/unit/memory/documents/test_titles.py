"""Titles of notes and conversations, and the commands that resume conversations."""

from __future__ import annotations

from pathlib import Path

import pytest

from memory.documents.titles import SessionHead, head_of, note_title, resume_command, session_title
from memory.redaction import redact
from schemas.documents import DocumentKey
from schemas.search import SearchRequest, SearchResult
from schemas.settings import Settings
from tests.storing import document
from tests.transcript_files import UNSAID, message_line, transcript
from tests.written_index import searching, with_agent, write_index

TALK = "[2026-02-03 09:00] User: Why does the **gateway**\nrestart?\n[2026-02-03 09:01] Assistant: It is full."
WORDS = "2026-02-03 · Why does the gateway restart?"


@pytest.mark.parametrize(
    ("text", "title", "words"),
    [
        (
            "# The `move` to [Oslo](https://example.org)\n\n- Boxes are **labelled**.",
            "The move to Oslo",
            "Boxes are labelled.",
        ),
        ("Above.\n\n## Second ##\nBelow.", "Second", "Below."),
        ("```sh\n# no heading\n```\nWords of the note", "no heading Words of the note", None),
        ("---\ntitle: 'A page'\ntags: x\n---\nIts words", "A page", "Its words"),
        ("#tag is no heading\n\nMore", "tag is no heading More", None),
        ("我们决定周五迁移数据库。" * 20, "我们决定周五迁移数据库。" * 6 + "我们决定周五迁…", None),
        ("<!-- always -->\n\n---\n", "2026-03-01.md", None),
    ],
)
def test_a_notes_title_is_its_heading_its_first_words_or_its_name(text: str, title: str, words: str | None) -> None:
    made = note_title("memory/2026-03-01.md", text)
    assert (made.text, made.words) == (title, words)


def test_a_conversations_title_is_its_project_its_day_and_its_first_words() -> None:
    head = SessionHead("claude-code", "/srv/my shop")
    assert session_title("sessions/a.jsonl", TALK, head, agent="main").text == f"my shop · {WORDS}"
    assert session_title("sessions/a.jsonl", "User: hello", None, agent="main").text == "main · hello"


@pytest.mark.parametrize(
    ("format", "path", "command"),
    [
        ("claude-code", "sessions/0a-1.jsonl", "cd '/srv/my shop' && claude --resume 0a-1"),
        ("claude-code", "sessions/0a-1/subagents/agent-x.jsonl", "cd '/srv/my shop' && claude --resume 0a-1"),
        ("codex", "sessions/2026/02/03/rollout-2026-02-03T09-00-00-0a-1.jsonl", "codex resume 0a-1"),
        ("gemini-cli", "sessions/p/chats/session-2026-02-03T09-00-0a.jsonl", "gemini --resume 0a-whole"),
        ("qwen-code", "sessions/p/chats/0a-1.jsonl", "cd '/srv/my shop' && qwen --resume 0a-1"),
        ("copilot", "sessions/0a-1/events.jsonl", "copilot --resume 0a-1"),
        ("cursor", "sessions/p/agent-transcripts/0a-1/0a-1.jsonl", "cursor-agent --resume 0a-1"),
        ("opencode", "sessions/ses_1.jsonl", "opencode --session ses_1"),
        ("openclaw", "sessions/0a-1.jsonl", None),
        ("plain", "sessions/0a-1.jsonl", None),
        ("codex", "sessions/--yolo.jsonl", None),
        ("codex", "sessions/a; rm x.jsonl", None),
    ],
)
def test_each_program_resumes_its_sessions_with_its_own_command(format: str, path: str, command: str | None) -> None:  # noqa: A002
    assert resume_command(path, SessionHead(format, "/srv/my shop", "0a-whole")) == command


def test_a_sub_agents_own_transcript_is_not_resumed() -> None:
    text = "[2026-02-03 09:00] Agent: Count the files."
    assert session_title("sessions/a.jsonl", text, SessionHead("codex"), agent="main").resume is None


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("claude-code", "/srv/u/unsaidword"),
        ("codex", "/srv/u/unsaidword"),
        ("qwen-code", None),
        ("gemini-cli", None),
        ("copilot", None),
        ("openclaw", None),
    ],
)
def test_the_beginning_of_a_transcript_names_program_and_folder(name: str, folder: str | None) -> None:
    head = head_of(iter(transcript(name, 2).split(b"\n")), None, redact)
    assert (head.format, head.folder) == (name, folder)
    start = b'{"type": "session.start", "data": {"context": {"cwd": "/srv/u"}}, "id": "1", "timestamp": "x"}'
    assert head_of(iter([start]), None, redact) == SessionHead("copilot", "/srv/u")


def test_a_folder_whose_name_holds_a_secret_is_left_out() -> None:
    line = b'{"type": "session_meta", "payload": {"id": "a", "cwd": "/srv/ghp_' + b"a1B2" * 9 + b'"}}'
    assert head_of(iter([line]), None, redact) == SessionHead("codex")


def test_results_carry_titles_and_only_the_owner_gets_folder_and_command(settings: Settings, tmp_path: Path) -> None:
    sessions = tmp_path / "sessions"
    sessions.mkdir()
    talk = sessions / "0a-1.jsonl"
    talk.write_bytes(message_line("claude-code", "user", "Why does the gateway restart?"))
    settings = with_agent(
        settings, sessions=[str(sessions)], scope={"private_transcripts": "all"}, sources=["sessions"]
    )
    store = write_index(with_agent(settings, sources=["memory"]))
    store.write([document(DocumentKey("sessions", "sessions/0a-1.jsonl"), TALK)])
    store.close()

    def found(session_key: str | None = None) -> SearchResult:
        with searching(settings) as memory:
            [result] = memory.search(SearchRequest(query="gateway restart", session_key=session_key)).results
            return result

    command = f"cd /srv/u/{UNSAID} && claude --resume 0a-1"
    assert (found().title, found().resume) == (f"{UNSAID} · {WORDS}", command)
    stranger = found("agent:main:telegram:group:42")
    assert (stranger.title, stranger.resume) == (f"main · {WORDS}", None)
    talk.unlink()
    assert (found().title, found().resume) == (f"main · {WORDS}", None)
