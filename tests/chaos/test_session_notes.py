"""Sessions that end while processes are killed and disks are full: each gets its note, and no note is empty."""

from __future__ import annotations

import json
import math
import os
import random
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from memory.documents.agent_files import AgentFiles
from memory.status.run_files import read_hooks_state
from producers.hook_events import Hook
from producers.session_ends import ENDED, EndUnkept, SessionEnds
from producers.session_notes import SessionNotes
from producers.spool import write_hook
from schemas.conditions import ConditionCode
from schemas.ports import Event
from schemas.settings import Settings
from tests.chaos.disks import fill, read_only, small_disk
from tests.daemon import Daemon, recalld, started
from tests.recording import RecordingConditions
from tests.transcript_files import message_line
from tests.waiting import wait_until

WAITS = ConditionCode.SESSION_NOTES_WAIT


def session(folder: Path, number: int) -> Path:
    """A session that can end."""
    folder.mkdir(exist_ok=True)
    path = folder / f"s-{number}.jsonl"
    path.write_bytes(message_line("claude-code", "user", f"question {number}."))
    return path


def told(workspace: Path) -> list[int]:
    """The questions in all notes, each note with one."""
    texts = [note.read_text("utf-8") for note in (workspace / "memory").glob("*.md")]
    assert all(texts), "an empty note"
    return sorted(int(number) for text in texts for number in re.findall(r"question (\d+)\.", text))


@contextmanager
def watching(config: Path, home: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run `recalld watch` until the block ends, then kill it."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with started("--config", str(config), "watch", "--supervised", home=home, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process
        process.kill()


@pytest.mark.parametrize("lives", [2, pytest.param(30, marks=pytest.mark.long)])
def test_no_note_is_lost_when_watch_is_killed_as_sessions_end(tmp_path: Path, lives: int) -> None:
    home, workspace, config = tmp_path / "home", tmp_path / "workspace", tmp_path / "recalld.toml"
    (workspace / "memory").mkdir(parents=True)
    folder, chance, number = tmp_path / "sessions", random.Random(31), 0
    config.write_text(
        f'provider = "none"\n[hooks]\nport = 0\n[[agents]]\nid = "main"\nworkspace = "{workspace}"\n'
        f'sessions = ["{folder}"]\n[agents.context]\nsession_notes.enabled = true\n'
    )
    for _ in range(lives):
        with watching(config, home):
            spooled = [session(folder, number + one) for one in range(7)]
            for path in spooled:
                write_hook(str(home), Hook("ended", (str(path),), program="claude-code", meant="main"))
            number += len(spooled)
            for path in (session(folder, number), session(folder, number + 1), session(folder, number + 2)):
                payload = {"hook_event_name": "SessionEnd", "transcript_path": str(path)}
                url = wait_until(lambda: read_hooks_state(home))
                answer = httpx.post(f"{url}claude-code", json=payload, trust_env=False, timeout=60)
                assert answer.json() == {"accepted": True}
                number += 1
            taken = chance.randrange(len(spooled) + 1)
            wait_until(lambda: len(list((home / "spool").glob("*.json"))) <= len(spooled) - taken)  # noqa: B023
    with watching(config, home):
        wait_until(lambda: told(workspace) == list(range(number)), what=f"the notes of {number} sessions")
        wait_until(lambda: not [end for end in SessionEnds(home).all() if end.state == ENDED])
    assert told(workspace) == list(range(number))
    assert {note.suffix for note in (workspace / "memory").iterdir()} == {".md"}


@contextmanager
def notes_of(tmp_path: Path, conditions: RecordingConditions) -> Iterator[SessionNotes]:
    context = {"session_notes": {"enabled": True}}
    workspace, folder = tmp_path / "workspace", tmp_path / "sessions"
    agent = {"id": "main", "workspace": workspace, "sessions": [str(folder)], "context": context}
    settings = Settings.model_validate({"home": tmp_path / "home", "agents": [agent]})
    notes = SessionNotes(settings, {"main": AgentFiles.of(settings, settings.agents[0])}, conditions)
    try:
        yield notes
    finally:
        notes.close()


def ended(tmp_path: Path, number: int) -> Event:
    return Event("ended", "main", (str(session(tmp_path / "sessions", number)),), program="claude-code")


@pytest.mark.parametrize("refused", ["full", "read-only"])
def test_notes_wait_for_a_workspace_that_takes_none_and_leave_nothing_there(tmp_path: Path, refused: str) -> None:
    workspace, conditions = tmp_path / "workspace", RecordingConditions()
    with ExitStack() as disks:
        if os.geteuid() == 0:
            disks.enter_context(small_disk(workspace, megabytes=1))
        (workspace / "memory").mkdir(parents=True)
        with ExitStack() as trouble:
            if refused == "full":
                trouble.callback(fill(workspace).unlink)
            else:
                trouble.enter_context(read_only(workspace))
            with notes_of(tmp_path, conditions) as notes:
                for number in range(6):
                    notes.note(ended(tmp_path, number))
                wait_until(lambda: (WAITS, "main") in conditions.open)
                wait_until(lambda: conditions.open[WAITS, "main"].params["notes"] == 6)
            assert list((workspace / "memory").iterdir()) == []
        with notes_of(tmp_path, conditions) as notes:
            notes.look(math.inf)
            wait_until(lambda: told(workspace) == list(range(6)))
            wait_until(lambda: (WAITS, "main") not in conditions.open)
        assert len(list((workspace / "memory").iterdir())) == 6


def test_a_full_disk_adds_all_of_the_new_words_to_a_note_or_none(tmp_path: Path) -> None:
    workspace, conditions = tmp_path / "workspace", RecordingConditions()
    with small_disk(workspace, megabytes=1), notes_of(tmp_path, conditions) as notes:
        notes.note(ended(tmp_path, 0))
        wait_until(lambda: not [end for end in SessionEnds(tmp_path / "home").all() if end.state == ENDED])
        [note] = (workspace / "memory").iterdir()
        before, ballast = note.read_text("utf-8"), fill(workspace)
        with (tmp_path / "sessions" / "s-0.jsonl").open("ab") as file:
            file.writelines(message_line("claude-code", "user", f"{'x' * 6_000} {number}") for number in range(3))
        notes.note(Event("ended", "main", (file.name,), program="claude-code"))
        wait_until(lambda: (WAITS, "main") in conditions.open)
        assert note.read_text("utf-8") == before
        ballast.unlink()
        notes.look(math.inf)
        wait_until(lambda: note.read_text("utf-8").count("x" * 6_000) == 3)
        assert note.read_text("utf-8").startswith(before)


def test_a_full_home_loses_no_end_of_a_session(tmp_path: Path) -> None:
    workspace, home, conditions = tmp_path / "workspace", tmp_path / "home", RecordingConditions()
    workspace.mkdir()
    unkept = ConditionCode.SESSION_ENDS_UNKEPT, "*"
    with small_disk(home, megabytes=2), small_disk(workspace, megabytes=1):
        ballast = fill(home)
        with notes_of(tmp_path, conditions) as notes:
            wait_until(lambda: unkept in conditions.open)
            with pytest.raises(EndUnkept):
                notes.note(ended(tmp_path, 0))
            ballast.unlink()
            notes.look(math.inf)
            wait_until(lambda: unkept not in conditions.open)
        with notes_of(tmp_path, conditions) as notes:
            fill(home)
            ballast = fill(workspace)
            for number in range(3):
                notes.note(ended(tmp_path, number))
            wait_until(lambda: (WAITS, "main") in conditions.open)
        # No process runs; the hook's command is refused by the spool.
        for number in range(3, 6):
            path = str(session(tmp_path / "sessions", number))
            payload = json.dumps({"hook_event_name": "SessionEnd", "transcript_path": path})
            assert recalld("hook", "claude-code", home=home, payload=payload).returncode == 0
        assert not list(home.glob("spool/*.json"))
        ballast.unlink()
        with notes_of(tmp_path, conditions) as notes:
            notes.look(math.inf)
            wait_until(lambda: told(workspace) == list(range(6)))


@pytest.mark.long
def test_status_says_that_notes_wait_until_they_are_tried_again(tmp_path: Path) -> None:
    workspace, folder = tmp_path / "workspace", tmp_path / "sessions"
    config = (
        f'[[agents]]\nid = "main"\nworkspace = "{workspace}"\nsessions = ["{folder}"]\n'
        "[agents.context]\nsession_notes.enabled = true\n"
    )

    def codes() -> set[str]:
        return {trouble["code"] for trouble in daemon.status()["troubles"]}

    with small_disk(workspace, megabytes=1), Daemon(tmp_path / "home", workspace, config=config) as daemon:
        ballast = fill(workspace)
        path = str(session(folder, 0))
        write_hook(str(daemon.home), Hook("ended", (path,), program="claude-code", meant="main"))
        wait_until(lambda: WAITS in codes())
        assert daemon.status()["ok"] is False
        ballast.unlink()
        wait_until(lambda: told(workspace) == [0], what="the next try")
        wait_until(lambda: WAITS not in codes())
