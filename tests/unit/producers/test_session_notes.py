"""Notes of sessions that ended: whose, when, and under which name."""

from __future__ import annotations

import gzip
import json
import math
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from memory.documents.agent_files import AgentFiles
from producers.session_ends import ENDED, SessionEnd, SessionEnds
from producers.session_notes import SessionNotes
from schemas.conditions import ConditionCode
from schemas.ports import Event
from schemas.settings import Settings
from tests.chat_server import ChatServer
from tests.raw_server import HANG, answer, raw_server
from tests.recording import RecordingConditions
from tests.transcript_files import BEGUN, message_line
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
def notes_of(settings: Settings, conditions: RecordingConditions | None = None) -> Iterator[Any]:
    """A function that handles an event of an agent; at the end of the block no end waits for its note."""
    files = {agent.id: AgentFiles.of(settings, agent) for agent in settings.agents}
    notes = SessionNotes(settings, files, conditions or RecordingConditions())

    def handle(
        kind: str, *paths: Path, agent: str = "main", program: str = "openclaw", at: float | None = None
    ) -> None:
        notes.note(Event(kind, agent, tuple(map(str, paths)), program=program, at=at))

    handle.look = lambda: notes.look(math.inf)  # type: ignore[attr-defined]
    try:
        yield handle
        wait_until(lambda: not waiting(settings))
    finally:
        notes.close()


def waiting(settings: Settings) -> list[SessionEnd]:
    """The ends whose notes are not written yet."""
    file = settings.home / "session-ends"
    return [end for end in SessionEnds(settings.home).all() if end.state == ENDED] if file.exists() else []


def talk(path: Path, *words: str, at: datetime = BEGUN) -> Path:
    lines = [
        message_line("openclaw", ("user", "assistant")[place % 2], text, at=at) for place, text in enumerate(words)
    ]
    path.write_bytes(b"".join(lines))
    return path


def names(tmp_path: Path) -> list[str]:
    return sorted(note.name for note in (tmp_path / "main").glob("memory/*"))


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


END = datetime(2026, 3, 5, 10, 0, tzinfo=UTC).timestamp()


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(END + seconds, UTC)


@pytest.mark.parametrize("begun_anew", [b"", b'{"type":"session","version":3,"id":"a"}\n', b"words"])
def test_a_transcript_that_was_rotated_is_found(tmp_path: Path, sessions: Path, begun_anew: bytes) -> None:
    path = sessions / "a.jsonl"
    talk(sessions / "a.jsonl.reset.2026-03-04T10-00-00.000Z", "older words")
    talk(sessions / "a.jsonl.reset.2026-03-05T10-00-02.000Z", "the last words")
    talk(sessions / "a.jsonl.reset.2026-03-06T10-00-00.000Z", "words of the next day")
    if begun_anew:
        path.write_bytes(message_line("openclaw", "user", "a new session") if begun_anew == b"words" else begun_anew)
    with notes_of(settings_of(tmp_path)) as handle:
        handle("ended", path, at=END)
    [note] = written(tmp_path)
    assert "the last words" in note
    assert note.startswith("# Session of 2026-03-05 18:00 CST\n")


def test_an_archive_older_than_the_end_is_not_the_session_that_ended(tmp_path: Path, sessions: Path) -> None:
    path = talk(sessions / "a.jsonl", "the last words")
    talk(sessions / "a.jsonl.reset.2026-03-04T10-00-00.000Z", "older words")
    with notes_of(settings_of(tmp_path)) as handle:
        handle("ended", path, at=END)
    [note] = written(tmp_path)
    assert "the last words" in note


def test_a_session_that_begins_anew_under_its_name_has_a_note_of_its_own(tmp_path: Path, sessions: Path) -> None:
    path = talk(sessions / "a.jsonl", "the vault is blue")
    with notes_of(settings_of(tmp_path)) as handle:
        handle("ended", path, at=END)
    path.rename(sessions / "a.jsonl.reset.2026-03-05T10-00-02.000Z")
    talk(path, "the door is red")
    with notes_of(settings_of(tmp_path)) as handle:
        handle("ended", path, at=END + 3600)
    assert [re.findall("blue|red", note) for note in written(tmp_path)] == [["blue"], ["red"]]


def test_each_conversation_of_a_session_that_is_reset_in_place_has_a_note_of_its_own(
    tmp_path: Path, sessions: Path
) -> None:
    path, settings = talk(sessions / "a.jsonl", "the vault is blue", "yes", at=at(0)), settings_of(tmp_path)
    reset = b'{"type":"reset","id":"r","parentId":null,"reason":"new"}\n'
    with notes_of(settings) as handle:
        handle("ended", path, at=END)
    words = [("user", "the door is red"), ("user", "the key is red"), ("assistant", "yes")]
    later = [message_line("openclaw", role, text, at=at(60)) for role, text in words]
    with path.open("ab") as file:
        file.writelines([reset, *later, reset, message_line("openclaw", "user", "the lock is green", at=at(7200))])
    for _ in range(2):
        with notes_of(settings) as handle:
            handle("ended", path, at=END + 3600)
    colours = [re.findall("blue|red|green|yes", note) for note in written(tmp_path)]
    assert colours == [["blue", "yes"], ["red", "red", "yes"]]


@pytest.mark.parametrize("name", ["2026-03-05-1800.md", "the vault.md"])
@pytest.mark.parametrize("again", [False, True])
def test_a_note_of_a_session_that_ends_twice_only_grows(tmp_path: Path, sessions: Path, name: str, again: bool) -> None:
    path, settings = talk(sessions / "a.jsonl", "the vault is blue", "yes", "no more words"), settings_of(tmp_path)
    with notes_of(settings) as handle:
        handle("ended", path, at=END)
    [note] = (tmp_path / "main" / "memory").iterdir()
    edited = note.read_text("utf-8").replace("blue", "green").replace("no more words", "") + "by hand"
    note.write_text(edited, "utf-8")
    note = note.rename(note.with_name(name))
    if again:
        talk(path, "the vault is blue", "yes", "no more words", "the door is red", "yes")
    with notes_of(settings) as handle:
        handle("ended", path, at=END + 60)
        handle("ended", path, at=END + 120)
    more = "\n\n## Until 2026-03-05 18:01 CST\n\n**Assistant**: the door is red\n\n**User**: yes\n"
    assert list((tmp_path / "main" / "memory").iterdir()) == [note]
    assert note.read_text("utf-8") == edited + (more if again else "")


def test_a_note_that_a_person_deleted_is_not_made_again(tmp_path: Path, sessions: Path) -> None:
    path, settings = talk(sessions / "a.jsonl", "the vault is blue"), settings_of(tmp_path)
    with notes_of(settings) as handle:
        handle("ended", path)
    [note] = (tmp_path / "main" / "memory").iterdir()
    note.unlink()
    talk(path, "the vault is blue", *(f"word {number}" for number in range(30)))
    with notes_of(settings) as handle:
        handle("ended", path)
    assert written(tmp_path) == []


def test_ends_that_a_killed_process_kept_get_their_notes_at_the_next_start(tmp_path: Path, sessions: Path) -> None:
    settings, ends = settings_of(tmp_path), SessionEnds(tmp_path / "home")
    ends.reserve()
    for number in range(3):
        path = talk(sessions / f"{number}.jsonl", f"question {number}")
        ends.put(SessionEnd(END, "main", str(path), "openclaw"))
    with notes_of(settings) as handle:
        handle.look()
    assert sorted(re.findall(r"question \d", "".join(written(tmp_path)))) == [f"question {one}" for one in range(3)]
    # Killed behind the note: its end is there once more, and so is the draft, another name of the note.
    ends.put(SessionEnd(END, "main", str(sessions / "0.jsonl"), "openclaw"))
    memory, before = tmp_path / "main" / "memory", written(tmp_path)
    (memory / ".recalld-note").hardlink_to(memory / "2026-03-05-1800.md")
    with notes_of(settings) as handle:
        handle.look()
    assert written(tmp_path) == before
    assert len(list(memory.iterdir())) == 3


def test_notes_that_cannot_be_written_wait_and_status_is_told(tmp_path: Path, sessions: Path) -> None:
    paths = [talk(sessions / f"{number}.jsonl", f"question {number}") for number in range(3)]
    settings, conditions, blocked = settings_of(tmp_path), RecordingConditions(), tmp_path / "main" / "memory"
    blocked.write_text("no folder", "utf-8")
    code = ConditionCode.SESSION_NOTES_WAIT
    with notes_of(settings, conditions) as handle:
        for path in paths:
            handle("ended", path)
        handle("ended", talk(sessions / "b.jsonl", "of another agent"), agent="other")
        wait_until(lambda: len(waiting(settings)) == 3 and written(tmp_path, "other"))
        wait_until(lambda: (code, "main") in conditions.open and conditions.open[code, "main"].params["notes"] == 3)
        assert (code, "other") not in conditions.open
        blocked.unlink()
        handle.look()
        wait_until(lambda: not waiting(settings))
        wait_until(lambda: (code, "main") not in conditions.open)
    assert len(written(tmp_path)) == 3


def test_a_transcript_that_comes_after_the_end_of_its_session_gets_a_note(tmp_path: Path, sessions: Path) -> None:
    with notes_of(settings_of(tmp_path)) as handle:
        handle("ended", sessions / "a.jsonl")
        handle("ended", talk(sessions / "b.jsonl", "words"))
        wait_until(lambda: written(tmp_path))
        talk(sessions / "a.jsonl", "the vault is blue")
        handle("ended", sessions / "b.jsonl")
    assert "the vault is blue" in "".join(written(tmp_path))


def test_no_note_is_written_of_nothing_of_strangers_and_when_switched_off(tmp_path: Path, sessions: Path) -> None:
    with notes_of(settings_of(tmp_path)) as handle:
        handle("ended", talk(sessions / "a.jsonl", "/reset"), at=END)
        handle("ended", sessions / "absent.jsonl", at=END)
        handle("ended", talk(tmp_path / "stranger.jsonl", "words"), at=END)
        handle("grew", talk(sessions / "b.jsonl", "words"))
    with notes_of(settings_of(tmp_path, enabled=False)) as handle:
        handle("ended", talk(sessions / "c.jsonl", "words"))
    assert written(tmp_path) == []


def test_a_session_of_codex_ends_where_another_begins(tmp_path: Path, sessions: Path) -> None:
    one, two = talk(sessions / "one.jsonl", "first"), talk(sessions / "two.jsonl", "second")
    with notes_of(settings_of(tmp_path)) as handle:
        handle("grew", one, program="codex")
        handle("session-start", one, program="codex")  # resumed
        handle("grew", one, program="codex", at=END)
    with notes_of(settings_of(tmp_path)) as handle:
        handle("session-start", two, program="codex")
        handle("grew", two, program="codex")
    [note] = written(tmp_path)
    assert "first" in note
    assert "- Program: codex" in note
    assert note.startswith("# Session of 2026-03-05 18:00 CST\n")


@pytest.mark.parametrize(
    ("script", "ending"), [([lambda _: "Blue Vault"], "-blue-vault.md"), ([], ".md"), ([lambda _: "蓝"], ".md")]
)
def test_a_chat_model_may_name_the_note(tmp_path: Path, sessions: Path, script: Sequence[Any], ending: str) -> None:
    path = talk(sessions / "a.jsonl", "the vault is blue")
    with ChatServer(script) as server:
        slug = {"base_url": server.base_url, "model": "small"}
        with notes_of(settings_of(tmp_path, slug=slug)) as handle:
            handle("ended", path)
            wait_until(lambda: [one for one in names(tmp_path) if one.endswith(ending)] and server.requests)
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
        ChatServer([slow]) as server,
        notes_of(settings_of(tmp_path, slug={"base_url": server.base_url, "model": "small"})) as handle,
    ):
        handle("ended", one)
        handle("ended", two)
        wait_until(lambda: server.requests and len(written(tmp_path)) == 2)
        answered.set()
        wait_until(lambda: [name for name in names(tmp_path) if name.endswith("-vault.md")])
    assert sorted(re.findall("blue|red", "".join(written(tmp_path)))) == ["blue", "red"]


GOOD = json.dumps({"choices": [{"message": {"content": "red door"}}]}).encode()
BLUE = GOOD.replace(b"red door", b"blue vault")

#: Answers that give no name. A good one follows, so that the wait for its name is a wait for the end of these.
REFUSED = {
    "a larger one": answer(BLUE + b" " * 70_000),
    "a compressed one": answer(gzip.compress(BLUE), "Content-Encoding: gzip"),
    "a trickle": [answer(BLUE + b" " * 5_000)[:-5_000], *[b" "] * 5_000],
    "no success": answer(BLUE, status="404 Not Found"),
    "no answer of a chat model": answer(b"[" * 20_000),
    "no words": answer(b'{"choices": [{"message": {"content": null}}]}'),
}


@pytest.mark.parametrize("refused", REFUSED.values(), ids=REFUSED)
def test_only_a_small_plain_answer_in_time_names_a_note(tmp_path: Path, sessions: Path, refused: Any) -> None:
    one, two = talk(sessions / "a.jsonl", "the vault is blue"), talk(sessions / "b.jsonl", "the door is red")
    # The trickle takes minutes. The good answer has as much time as the refused one.
    seconds = 60 if isinstance(refused, bytes) else 5
    with raw_server([refused], [answer(GOOD)]) as server:
        slug = {"base_url": f"{server.url}/v1", "model": "small", "timeout_seconds": seconds}
        with notes_of(settings_of(tmp_path, slug=slug)) as handle:
            handle("ended", one, at=END)
            handle("ended", two, at=END + 60)
            wait_until(lambda: "2026-03-05-1801-red-door.md" in names(tmp_path))
    assert names(tmp_path) == ["2026-03-05-1800.md", "2026-03-05-1801-red-door.md"]


def test_the_words_of_a_conversation_follow_no_redirect(tmp_path: Path, sessions: Path) -> None:
    one, two = talk(sessions / "a.jsonl", "the vault is blue"), talk(sessions / "b.jsonl", "the door is red")
    with raw_server([answer(BLUE)]) as other:
        moved = answer(b"", f"Location: {other.url}/v1/chat/completions", status="307 Temporary Redirect")
        with raw_server([moved], [answer(GOOD)]) as server:
            slug = {"base_url": f"{server.url}/v1", "model": "small"}
            with notes_of(settings_of(tmp_path, slug=slug)) as handle:
                handle("ended", one, at=END)
                handle("ended", two, at=END + 60)
                wait_until(lambda: "2026-03-05-1801-red-door.md" in names(tmp_path))
        assert len(server.requests) == 2
        assert other.requests == []


def test_stopping_does_not_wait_for_a_name(tmp_path: Path, sessions: Path) -> None:
    path = talk(sessions / "a.jsonl", "the vault is blue")
    with raw_server([HANG]) as server:
        slug = {"base_url": f"{server.url}/v1", "model": "small", "timeout_seconds": 5}
        with notes_of(settings_of(tmp_path, slug=slug)) as handle:
            handle("ended", path)
            wait_until(lambda: server.requests)
        assert not server.gone.is_set()
        assert len(written(tmp_path)) == 1
