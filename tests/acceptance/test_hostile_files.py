"""One bad file is one clear line; everything else is indexed, found and read, and no terminal is commanded."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

import pytest

from recalld.client import Client
from recalld.terminal_text import printable_name
from tests.daemon import Daemon
from tests.waiting import wait_until

if sys.version_info >= (3, 14):
    from compression.zstd import compress
else:
    from backports.zstd import compress

#: Names of notes that are files like any other.
ODD_NAMES = (
    "new\nline.md",
    "tab\there.md",
    "bell\x07escape\x1b[31m\x1b]0;owned\x07.md",
    "turned\u202earound.md",
    "a" * 252 + ".md",
    "é" * 126 + ".md",
    "case.md",
    "CASE.md",
    "caf\u00e9.md",
    "cafe\u0301.md",
    "--help.md",
    "-rf.md",
    "'; DROP TABLE files;--.md",
    '"OR NEAR(*) AND.md',
    "*.md",
    "[a-z]?.md",
    "%s%n{0}.md",
    "back\\slash.md",
    " .md",
    "<img src=x onerror=alert(1)>.md",
)

#: Names of transcripts and what they hold; each says "quokka" in its last readable line.
TRANSCRIPTS = {
    "nested.jsonl": b'{"role":"user","content":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n",
    "digits.jsonl": b'{"role":"user","content":"x","n":' + b"9" * 10_000 + b"}\n",
    "numbers.jsonl": b'{"role":"user","content":"x","timestamp":NaN}\n{"role":"user","content":"y","x":[-1e999]}\n',
    "surrogate.jsonl": b'{"role":"user","content":"lone \\ud800","name":"\\udfff\\u001b[2J"}\n',
    "zeros.jsonl": b"\0" * 5000 + b"\n",
    "rubbish.jsonl": bytes(range(256)) * 20 + b"\n",
    "bell\x07\nline.jsonl": b'{"type":"evil\\u001b[31m","x":1}\n',
}


def said(text: str) -> bytes:
    """A line of a plain transcript."""
    return json.dumps({"role": "user", "content": text}).encode() + b"\n"


def make_hostile_files(workspace: Path, sessions: Path) -> None:
    """Write all of it. What is no document is named odd*, what can be read only in part is named partly*."""
    memory = workspace / "memory"
    memory.mkdir(parents=True)
    sessions.mkdir(parents=True)
    (workspace / "MEMORY.md").mkdir()
    for number, name in enumerate(ODD_NAMES):
        (memory / name).write_text(f"note{number}x of the zebra\n")
    Path(os.fsdecode(os.fsencode(memory) + b"/odd\xff\x1b[32m.md")).write_text("x")
    (memory / "folder.md").mkdir()
    (memory / "folder.md" / "inside.md").write_text("zebra inside")
    for folder, suffix in ((memory, ".md"), (sessions, ".jsonl")):
        os.mkfifo(folder / f"odd-pipe{suffix}")
        # By its descriptor: the whole path may be longer than an address can be.
        descriptor = os.open(folder, os.O_RDONLY)
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(f"/proc/self/fd/{descriptor}/odd-socket{suffix}")
        os.close(descriptor)
        (folder / f"odd-link{suffix}").symlink_to("/proc/self/environ")
        (folder / f"odd-loop{suffix}").symlink_to(f"odd-loop{suffix}")
        with (folder / f"sparse{suffix}").open("wb") as file:
            file.write(said("before the hole quokka"))
            file.truncate(100 << 30)
    (memory / "rubbish.md").write_bytes(bytes(range(256)) * 100)
    (memory / "empty.md").touch()
    (memory / "utf16.md").write_text("zebra in sixteen bits", encoding="utf-16")
    (memory / "line.md").write_bytes(b"zebra " * 200_000)
    for name, content in TRANSCRIPTS.items():
        (sessions / name).write_bytes(said("hello okapi") + content + said("after it the quokka"))
    (sessions / "bomb.jsonl.zst").write_bytes(compress(said("before the bomb quokka") + b"\0" * 100_000_000))
    (sessions / "broken.jsonl.zst").write_bytes(compress(said("quokka") * 5000)[:-9])


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
    moving = disk["growing"] + disk["settling"] + state["queue"]["pending"]
    return disk["missing"] + disk["stale"] == len(letters) and not moving
