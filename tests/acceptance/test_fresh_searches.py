"""Searches find a note that was written before them, with any quiet times."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from recalld.client import Client
from tests.daemon import Daemon
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon that waits for quiet very long."""
    folder = tmp_path_factory.mktemp("fresh")
    workspace, sessions = folder / "workspace", folder / "sessions"
    (workspace / "memory").mkdir(parents=True)
    sessions.mkdir()
    (workspace / "MEMORY.md").write_text("The first note.\n", encoding="utf-8")
    config = (
        f'[[agents]]\nid = "main"\nworkspace = "{workspace}"\nsessions = ["{sessions}"]\n'
        "sync.watch_debounce_ms = 600000\nsync.sessions.quiet_seconds = 3600\n"
    )
    with Daemon(folder / "home", workspace, config=config) as running:
        wait_until(lambda: running.status()["ok"])
        yield running


def paths(daemon: Daemon, query: str, *, wait_ms: int | None) -> list[str]:
    client = Client.at_home(daemon.home)
    assert client is not None
    return [result["path"] for result in client.search(query, wait_ms=wait_ms)["results"]]


def test_a_note_and_a_transcript_written_a_moment_ago_are_found(daemon: Daemon) -> None:
    for number in range(5):
        daemon.write(f"memory/note-{number}.md", f"The wombat{number} digs.\n")
        assert f"memory/note-{number}.md" in paths(daemon, f"wombat{number}", wait_ms=20_000)
    talk = daemon.workspace.parent / "sessions" / "talk.jsonl"
    for number in range(5):
        with talk.open("a") as file:
            file.write(json.dumps({"role": "user", "content": f"the quokka{number} smiles"}) + "\n")
        assert "sessions/talk.jsonl" in paths(daemon, f"quokka{number}", wait_ms=20_000)


def test_a_search_that_asks_for_nothing_finds_what_producers_hold_back(daemon: Daemon) -> None:
    daemon.write("memory/late.md", "The bandicoot sleeps.\n")
    wait_until(lambda: "memory/late.md" in paths(daemon, "bandicoot", wait_ms=None))


@pytest.mark.long
def test_who_waits_for_nothing_is_answered_from_what_is_there(daemon: Daemon) -> None:
    daemon.write("memory/later.md", "The numbat sleeps.\n")
    assert "memory/later.md" not in paths(daemon, "numbat", wait_ms=0)
    assert "memory/later.md" in paths(daemon, "numbat", wait_ms=20_000)
