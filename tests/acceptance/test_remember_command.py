"""`recalld remember`: a text is in today's note, and found when the command returns."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from memory.status.run_files import was_unfinished
from tests.daemon import Daemon, processes_of, recalld
from tests.embedding_server import EmbeddingServer, Failure
from tests.waiting import wait_until


class User:
    """A user with a workspace and a settings file, who runs no daemon."""

    def __init__(self, home: Path, workspace: Path) -> None:
        self.home, self.workspace = home, workspace
        self.config = home.parent / "settings.toml"
        self.configure("")

    def configure(self, lines: str, *, head: str = "") -> None:
        self.config.write_text(
            f'provider = "stub"\n{head}[[agents]]\nid = "main"\nworkspace = "{self.workspace}"\n{lines}\n'
        )

    def run(self, *arguments: str, payload: str = "", code: int = 0) -> tuple[str, str]:
        """Return standard output and standard error of a command."""
        answer = recalld("--config", str(self.config), *arguments, home=self.home, payload=payload)
        assert answer.returncode == code, answer.stdout + answer.stderr
        return answer.stdout, answer.stderr

    def remember(self, *arguments: str, payload: str = "") -> dict[str, Any]:
        return dict(json.loads(self.run("remember", "--json", *arguments, payload=payload)[0]))

    def refused(self, *arguments: str, code: int = 2, payload: str = "") -> str:
        """Return the one sentence of a refusal, after which nothing was written."""
        [sentence] = self.run("remember", *arguments, payload=payload, code=code)[1].splitlines()
        assert not list(self.workspace.rglob("*.md"))
        return sentence

    def found(self, query: str) -> list[str]:
        """Return the paths with their lines."""
        return self.run("search", "--short", query)[0].split()


@pytest.fixture
def user(home: Path, workspace: Path) -> User:
    return User(home, workspace)


def test_without_a_daemon_a_text_is_found_at_once_and_nothing_runs_on(user: User) -> None:
    said, _ = user.run("remember", "The", "heron", "stands", "in", "the", "reeds.")  # the first index of this home
    [note] = (user.workspace / "memory").iterdir()
    assert said == f"written to {note}:1\n"
    path = str(note.relative_to(user.workspace))
    assert user.found("heron") == [f"{path}:1-1"]

    answer = user.remember("-", payload="The lynx hides.\n\n* password: hunter2xyz99\n")
    where = {"agent": "main", "path": path, "line": 3, "file": str(note)}
    assert answer == {**where, "written": True, "found": True}
    assert user.found("lynx")
    assert note.read_text() == ("The heron stands in the reeds.\n\nThe lynx hides.\n* password: [redacted:password]\n")
    before = note.read_bytes()
    assert user.remember("The lynx hides.") == {**where, "written": False, "found": True}
    assert note.read_bytes() == before
    assert (processes_of(user.home), was_unfinished(user.home)) == ([], False)


def test_beside_a_daemon_the_text_is_found_when_the_command_returns(home: Path, workspace: Path) -> None:
    with Daemon(home, workspace, environment={"RECALLD_SYNC__WATCH": "false"}) as daemon:
        for word in ("heron", "lynx"):
            answer = json.loads(daemon.run("remember", "--json", payload=f"The {word} hides.").stdout)
            assert (answer["written"], answer["found"]) == (True, True)
            assert daemon.found(word, answer["path"])


@pytest.mark.long
def test_the_wait_has_an_end_after_which_the_daemon_finds_the_text(home: Path, workspace: Path) -> None:
    with Daemon(home, workspace) as daemon:
        workers = daemon.children("work")
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)
        answer = daemon.run("remember", "--json", "The heron hides.")
        for pid in workers:
            os.kill(pid, signal.SIGCONT)
        assert (answer.returncode, json.loads(answer.stdout)["found"]) == (0, False)
        assert "searches find it later" in answer.stderr
        wait_until(lambda: daemon.found("heron", json.loads(answer.stdout)["path"]))


@pytest.mark.long
def test_a_provider_that_does_not_answer_holds_up_no_text_that_keywords_find(user: User) -> None:
    held = threading.Event()
    with EmbeddingServer() as server:
        user.configure(f'provider = "openai"\nremote.base_url = "{server.url}"\nremote.api_key = "a-key"')
        user.remember("The heron stands.")
        server.fail_next(Failure(held_until=held), times=99)
        assert user.remember("The lynx hides.")["found"] is True
        held.set()
    status = json.loads(recalld("--config", str(user.config), "status", "--json", home=user.home).stdout)
    assert status["agents"][0]["index"]["vectorsPending"] == 1


def test_the_day_is_that_of_the_agents_time_zone_and_several_agents_need_a_name(user: User) -> None:
    other = user.workspace.parent / "other"
    other.mkdir()
    user.configure(
        'context.timezone = "Pacific/Kiritimati"\n'
        f'[[agents]]\nid = "other"\nworkspace = "{other}"\ncontext.timezone = "Pacific/Pago_Pago"',
        head='fleet.url = "https://fleet.example"\n',  # nothing is indexed here
    )
    assert "say which with --agent (one of main, other)" in user.refused("A text.")
    notes = [user.remember("A text.", "--agent", agent) for agent in ("main", "other")]
    assert notes[0]["path"] > notes[1]["path"], "they are 25 hours apart"
    assert Path(notes[1]["file"]).is_relative_to(other)


def test_refusals_are_one_sentence_and_write_nothing(user: User) -> None:
    assert "the text is empty" in user.refused(payload=" \n")
    assert "more than 20,000 characters" in user.refused(payload="x" * 20_001)
    user.configure('exclude = ["memory/*"]')
    assert "leave out memory/" in user.refused("A text.")
    user.configure("enabled = false")
    assert "its memory is off" in user.refused("A text.")


def test_a_note_that_cannot_be_written_is_one_sentence(user: User, tmp_path: Path) -> None:
    (user.workspace / "memory").rmdir()
    (user.workspace / "memory").symlink_to(tmp_path)
    assert "is not a folder of the workspace" in user.refused("A text.", code=1)


def test_a_machine_that_sends_to_a_fleet_writes_the_note_and_indexes_nothing(user: User) -> None:
    user.configure("", head='fleet.url = "https://fleet.example"\n')
    answer = user.remember("A text.")
    assert (answer["written"], answer["found"]) == (True, False)
    assert Path(answer["file"]).read_text() == "A text.\n"
    assert not (user.home / "indexes").exists()
