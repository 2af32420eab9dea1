"""`recalld backfill` as its user meets it: it can be left, killed and run again, and never stands in anybody's way."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from memory.store.reader import StoreReader
from tests.daemon import Daemon
from tests.embedding_server import EmbeddingServer
from tests.transcript_files import FORMATS, message_line, transcript
from tests.waiting import wait_until
from tests.written_index import reading


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Some 700 chunks of transcripts."""
    folder = tmp_path / "old"
    folder.mkdir()
    for number in range(40):
        (folder / f"{number}.jsonl").write_bytes(transcript(FORMATS[number % 4], turns=40, seed=number))
    return folder


@pytest.fixture
def server() -> Iterator[EmbeddingServer]:
    """Answers after a moment, so that there is something to interrupt."""
    with EmbeddingServer(latency=0.05) as running:
        yield running


@pytest.fixture
def daemon(home: Path, workspace: Path, server: EmbeddingServer) -> Daemon:
    """Not started yet."""
    config = f'[remote]\nbase_url = "{server.url}"\napi_key = "a-key"\n'
    return Daemon(home, workspace, provider="openai", config=config)


def started(daemon: Daemon, folder: Path) -> subprocess.Popen[str]:
    """Start a backfill that no signal of the terminal reaches."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return daemon.started("backfill", str(folder), **pipes, start_new_session=True)


def read(home: Path, what: Callable[[StoreReader], int]) -> int:
    """A figure of the index that answers; 0 without one."""
    with reading(home) as reader:
        return what(reader) if reader is not None else 0


@pytest.mark.long
def test_ctrl_c_leaves_the_daemon_at_work_and_the_same_command_finds_nothing_left(
    daemon: Daemon, server: EmbeddingServer, old: Path, home: Path
) -> None:
    with daemon:
        server.open.clear()
        command = started(daemon, old)
        wait_until(lambda: server.requests, what="the daemon's workers send something")
        command.send_signal(signal.SIGINT)
        out, err = command.communicate(timeout=120)
        assert command.returncode == 130, out + err
        assert "recalld up" in err
        assert "backfill --pause" in err
        assert "backfill --cancel" in err
        assert "Traceback" not in err
        server.open.set()
        wait_until(lambda: daemon.status()["index"]["files"] == 40 and daemon.status()["ok"])
        again = daemon.run("backfill", str(old), "--json")
        body = json.loads(again.stdout)
        assert (again.returncode, body["transcripts"], body["unchanged"]) == (0, 0, 40)
        assert body["result"]["vectorsReady"] == body["result"]["chunks"] == server.inputs == server.distinct


@pytest.mark.long
def test_a_note_that_is_saved_during_a_large_backfill_overtakes_it(
    daemon: Daemon, server: EmbeddingServer, home: Path, tmp_path: Path
) -> None:
    server.latency = 2.0
    large = tmp_path / "large"
    large.mkdir()
    for number in range(600):
        lines = [message_line("plain", "user", f"{number} {line} " + "filler words " * 120) for line in range(40)]
        (large / f"{number}.jsonl").write_bytes(b"".join(lines))
    with daemon:
        command = started(daemon, large)
        try:
            wait_until(
                lambda: read(home, lambda reader: reader.counts().chunks) > 1_000, what="the backfill is under way"
            )
            daemon.write("memory/urgent.md", "The okapi cannot wait.\n")
            wait_until(lambda: read(home, lambda reader: len(reader.search_text("okapi", 5))))
            waiting = daemon.status()["queue"]["pending"]
        finally:
            command.send_signal(signal.SIGINT)
            command.communicate(timeout=60)
    assert waiting > 50, "the backfill was over before the note was found"
