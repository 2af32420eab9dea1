"""Notes of sessions that ended: whose, when, and under which name."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from memory.documents.agent_files import AgentFiles
from producers.session_notes import SessionNotes
from schemas.ports import Event
from schemas.settings import Settings
from tests.chat_server import chat_server
from tests.transcript_files import message_line
from tests.waiting import wait_until


@pytest.fixture
def sessions(tmp_path: Path) -> Path:
    folder = tmp_path / "sessions"
    folder.mkdir()
    return folder


def settings_of(tmp_path: Path, **session_notes: Any) -> Settings:
    agents = []
    for name in ("main", "other"):
        (tmp_path / name).mkdir(exist_ok=True)
        context = {"session_notes": {"enabled": True, **session_notes}, "timezone": "Asia/Shanghai"}
        agents.append(
            {"id": name, "workspace": tmp_path / name, "sessions": [str(tmp_path / "sessions")], "context": context}
        )
    return Settings.model_validate({"home": tmp_path / "home", "agents": agents})


@contextmanager
def notes_of(settings: Settings) -> Iterator[Any]:
    """A function that handles an event of an agent; at the end of the block all notes are there."""
    notes = SessionNotes({agent.id: AgentFiles.of(settings, agent) for agent in settings.agents})

    def handle(kind: str, *paths: Path, agent: str = "main", program: str = "openclaw") -> None:
        notes.note(settings.agent(agent), Event(kind, agent, tuple(map(str, paths)), program=program))

    yield handle
    notes.close()


def talk(path: Path, *words: str) -> Path:
    lines = [message_line("openclaw", ("user", "assistant")[place % 2], text) for place, text in enumerate(words)]
    path.write_bytes(b"".join(lines))
    return path


def written(tmp_path: Path, agent: str = "main") -> list[str]:
    return [note.read_text("utf-8") for note in sorted((tmp_path / agent).glob("memory/*.md"))]


def test_a_session_that_ends_leaves_a_note_in_its_agents_workspace(tmp_path: Path, sessions: Path) -> None:
    path = talk(sessions / "a.jsonl", "The key is ghp_0123456789abcdefghijABCDEFGHIJ012345", "I keep it", "/new")
    with notes_of(settings_of(tmp_path)) as handle:
        handle("ended", path, agent="other")
    [note] = written(tmp_path, "other")
    assert "**Assistant**: I keep it" in note
    assert "- Transcript: sessions/a.jsonl" in note
    assert "CST" in note.splitlines()[0]
    assert "ghp_" not in note
    assert "/new" not in note
    assert written(tmp_path, "main") == []
    names = [one.name for one in (tmp_path / "other" / "memory").iterdir()]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d-\d{4}\.md", names[0])


def test_sessions_that_end_in_one_minute_have_notes_of_their_own(tmp_path: Path, sessions: Path) -> None:
    paths = [talk(sessions / f"{number}.jsonl", f"question {number}") for number in range(5)]
    with notes_of(settings_of(tmp_path)) as handle:
        for path in paths:
            handle("ended", path)
    assert sorted(re.findall(r"question \d", "".join(written(tmp_path)))) == [
        f"question {number}" for number in range(5)
    ]
    assert len(written(tmp_path)) == 5


@pytest.mark.parametrize("begun_anew", [True, False])
def test_a_transcript_that_was_rotated_is_found(tmp_path: Path, sessions: Path, begun_anew: bool) -> None:
    path = sessions / "a.jsonl"
    talk(sessions / "a.jsonl.reset.2026-03-04T10-00-00.000Z", "older words")
    talk(sessions / "a.jsonl.reset.2026-03-05T10-00-00.000Z", "the last words")
    if begun_anew:
        path.write_bytes(b'{"type":"session","version":3,"id":"a"}\n')
    with notes_of(settings_of(tmp_path)) as handle:
        handle("ended", path)
    [note] = written(tmp_path)
    assert "the last words" in note


def test_no_note_is_written_of_nothing_of_strangers_and_when_switched_off(tmp_path: Path, sessions: Path) -> None:
    with notes_of(settings_of(tmp_path)) as handle:
        handle("ended", talk(sessions / "a.jsonl", "/reset"))
        handle("ended", sessions / "absent.jsonl")
        handle("ended", talk(tmp_path / "stranger.jsonl", "words"))
        handle("grew", talk(sessions / "b.jsonl", "words"))
    with notes_of(settings_of(tmp_path, enabled=False)) as handle:
        handle("ended", talk(sessions / "c.jsonl", "words"))
    assert written(tmp_path) == []


def test_a_session_of_codex_ends_where_another_begins(tmp_path: Path, sessions: Path) -> None:
    one, two = talk(sessions / "one.jsonl", "first"), talk(sessions / "two.jsonl", "second")
    with notes_of(settings_of(tmp_path)) as handle:
        handle("grew", one, program="codex")
        handle("session-start", one, program="codex")  # resumed
        handle("grew", one, program="codex")
        handle("session-start", two, program="codex")
        handle("grew", two, program="codex")
    [note] = written(tmp_path)
    assert "first" in note
    assert "- Program: codex" in note


@pytest.mark.parametrize(
    ("script", "ending"), [([lambda _: "Blue Vault"], "-blue-vault.md"), ([], ".md"), ([lambda _: "蓝"], ".md")]
)
def test_a_chat_model_may_name_the_note(tmp_path: Path, sessions: Path, script: Sequence[Any], ending: str) -> None:
    path = talk(sessions / "a.jsonl", "the vault is blue")
    with chat_server(script) as server:
        slug = {"base_url": server.base_url, "model": "small"}
        with notes_of(settings_of(tmp_path, slug=slug)) as handle:
            handle("ended", path)
            wait_until(lambda: server.requests)
        assert "the vault is blue" in str(server.requests[0]["messages"])
    [name] = [one.name for one in (tmp_path / "main" / "memory").iterdir()]
    assert re.fullmatch(rf"\d{{4}}-\d\d-\d\d-\d{{4}}{re.escape(ending)}", name)


def test_notes_are_there_while_a_chat_model_is_asked_for_a_name(tmp_path: Path, sessions: Path) -> None:
    one, two = talk(sessions / "a.jsonl", "the vault is blue"), talk(sessions / "b.jsonl", "the door is red")
    answered = threading.Event()

    def slow(_: Any) -> str:
        answered.wait(60)
        return "vault"

    with (
        chat_server([slow]) as server,
        notes_of(settings_of(tmp_path, slug={"base_url": server.base_url, "model": "small"})) as handle,
    ):
        handle("ended", one)
        handle("ended", two)
        wait_until(lambda: server.requests and len(written(tmp_path)) == 2)
        answered.set()
    assert sorted(re.findall("blue|red", "".join(written(tmp_path)))) == ["blue", "red"]
    assert "-vault.md" in [one.name[15:] for one in (tmp_path / "main" / "memory").iterdir()]
