"""One bad file is one clear line; everything else is indexed, found and read, and no terminal is commanded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from recalld.client import Client
from recalld.terminal_text import printable_name
from tests.daemon import Daemon
from tests.hostile_files import ODD_NAMES, TRANSCRIPTS, make_hostile_files
from tests.waiting import wait_until


@pytest.mark.long
def test_a_folder_full_of_hostile_files_is_survived_and_told(tmp_path: Path) -> None:
    workspace, sessions = tmp_path / "ws", tmp_path / "sessions"
    make_hostile_files(workspace, sessions)
    config = f'[[agents]]\nid = "main"\nworkspace = "{workspace}"\nsessions = ["{sessions}"]\n'
    with Daemon(tmp_path / "home", workspace, config=config) as daemon:
        wait_until(lambda: _is_settled(daemon), timeout=120, what="everything is indexed or failed")
        letters = json.loads(daemon.run("dead", "list", "--json").stdout)["deadLetters"]
        assert sorted(letter["path"] for letter in letters) == [
            "memory/sparse.md",
            "sessions/bomb.jsonl",
            "sessions/broken.jsonl",
            "sessions/sparse.jsonl",
        ]
        state = daemon.status()
        troubles = [trouble["message"] for trouble in state["troubles"] if trouble["part"] == "files"]
        for odd in ("odd-pipe.md", "odd-socket.md", "odd-link.md", "odd-loop.md", "odd\\xff"):
            assert sum(odd in trouble for trouble in troubles) == 1, (odd, troubles)
        for odd in ("odd-pipe.jsonl", "odd-socket.jsonl", "odd-link.jsonl", "odd-loop.jsonl"):
            assert sum(odd in trouble for trouble in troubles) == 1, (odd, troubles)

        with Client.at_home(daemon.home) as client:
            for number, name in enumerate(ODD_NAMES):
                path = f"memory/{name}"
                results = client.search(f"note{number}x", max_results=3)["results"]
                assert results[0]["path"] == path
                assert f"note{number}x" in client.get(path)["text"]
            answer = client.search("quokka", max_results=50, min_score=0.0, sources=["sessions"])
        copies = [path for result in answer["results"] if "alsoIn" in result for path in result["alsoIn"]["paths"]]
        found = {*copies, *(result["path"] for result in answer["results"])}
        assert {f"sessions/{name}" for name in TRANSCRIPTS} <= found
        assert {"sessions/sparse.jsonl", "sessions/bomb.jsonl"} <= found
        for path in ("memory/--help.md", "memory/turned\u202earound.md"):
            assert "zebra" in daemon.run("get", path).stdout

        for command in ("status", "dead list", "search zebra --max-results 40", "index", "doctor"):
            ran = daemon.run(*command.split())
            for said in (ran.stdout, ran.stderr):
                assert not {"\x07", "\x1b", "\x9b", "\u202e", "\r"} & set(said), command
                assert not any(line.startswith("line") for line in said.splitlines()), command
                assert "Traceback" not in said

        for name in ODD_NAMES:
            assert daemon.run("get", printable_name(f"memory/{name}")).returncode == 0, name

        # A name that comes while somebody looks on.
        daemon.write("memory/live\n\x07.md", "the zebra comes late: lateword")
        wait_until(lambda: daemon.found("lateword", "memory/live\n\x07.md"))


def _is_settled(daemon: Daemon) -> bool:
    state = daemon.status()
    disk, letters = state["disk"], state["deadLetters"]
    return disk["missing"] + disk["stale"] == len(letters) and not disk["growing"] and not state["queue"]["pending"]
