"""A backfill that is paused, goes on, is cancelled or forgotten."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.commanding import CommandLine
from tests.daemon import Daemon
from tests.embedding_server import EmbeddingServer
from tests.transcript_files import transcript
from tests.waiting import wait_until

COUNT = 30


def write_sessions(folder: Path) -> Path:
    folder.mkdir()
    for number in range(COUNT):
        (folder / f"{number}.jsonl").write_bytes(transcript("plain", turns=6, seed=number))
    return folder


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return write_sessions(tmp_path / "old")


@pytest.fixture
def server() -> Iterator[EmbeddingServer]:
    with EmbeddingServer() as running:
        yield running


@pytest.fixture
def daemon(home: Path, workspace: Path, server: EmbeddingServer) -> Daemon:
    """Not started yet."""
    config = f'[remote]\nbase_url = "{server.url}"\napi_key = "a-key"\n'
    return Daemon(home, workspace, provider="openai", config=config)


def facts(daemon: Daemon) -> tuple[bool, int, list[str]]:
    """Is all well, how many documents wait, and what does status advise?"""
    status: dict[str, Any] = daemon.status()
    return status["ok"], status["queue"]["pending"], [advice["code"] for advice in status["advice"]]


@pytest.mark.long
def test_a_pause_survives_a_restart_and_what_resumes_is_paid_once(
    daemon: Daemon, server: EmbeddingServer, old: Path
) -> None:
    daemon.write("memory/first.md", "# First\n\nThe heron is first.\n")
    with daemon:
        wait_until(lambda: server.inputs == 1)
        assert daemon.run("backfill", "--pause").returncode == 0
        command = daemon.run("backfill", str(old))
        assert "--resume" in command.stderr
        assert command.returncode == 1
        assert facts(daemon) == (True, COUNT, ["backfill_halted"])
    with daemon:
        daemon.write("memory/new.md", "# New\n\nThe egret is new.\n")
        wait_until(lambda: daemon.status()["index"]["vectorsReady"] == 2)
        assert facts(daemon) == (True, COUNT, ["backfill_halted"])
        assert server.inputs == 2
        daemon.run("backfill", "--resume")
        wait_until(lambda: facts(daemon) == (True, 0, []) and daemon.status()["index"]["files"] == 2 + COUNT)
        wait_until(lambda: not daemon.status()["index"]["vectorsPending"])
        assert server.inputs == server.distinct == daemon.status()["index"]["vectorsReady"]


@pytest.mark.long
def test_a_cancelled_backfill_drops_what_waits_and_keeps_the_rest_as_words(
    daemon: Daemon, server: EmbeddingServer, old: Path, home: Path
) -> None:
    daemon.write("memory/first.md", "# First\n\nThe heron is first.\n")
    with daemon:
        wait_until(lambda: server.inputs == 1)
        daemon.run("backfill", "--pause")
        daemon.run("backfill", str(old))
        assert f"{COUNT} documents dropped" in daemon.run("backfill", "--cancel").stdout
        assert json.loads((home / "imports" / "main.json").read_text())["folders"] == []
        assert facts(daemon) == (True, 0, [])
        server.open.clear()
        with daemon.started("backfill", str(old), stderr=subprocess.DEVNULL) as command:
            wait_until(lambda: daemon.status()["index"]["files"] == 1 + COUNT)
            daemon.run("backfill", "--cancel")
            command.terminate()
        server.open.set()
        daemon.write("memory/new.md", "# New\n\nThe egret is new.\n")
        wait_until(lambda: daemon.status()["index"]["files"] == 2 + COUNT)
        wait_until(lambda: not daemon.status()["index"]["vectorsPending"])
        index = daemon.status()["index"]
        assert index["vectorsHeld"] > 0
        daemon.run("backfill", "--resume")
        wait_until(lambda: daemon.status()["index"]["vectorsReady"] == index["chunks"])
        assert server.inputs == server.distinct == index["chunks"]


@pytest.mark.long
def test_a_forgotten_import_leaves_memory_and_no_rebuild_brings_it_back(commands: CommandLine, old: Path) -> None:
    (commands.workspace / "MEMORY.md").write_text("# Note\n\nThe heron stays.\n")
    commands.say("index")
    commands.say("backfill", str(old))
    assert commands.run("backfill", "--forget", str(old.parent / "other"))[0] == 3
    assert commands.run("backfill", "--forget", str(commands.workspace))[0] == 3
    commands.say("backfill", "--forget", str(old / "3.jsonl"))
    commands.run("rebuild")
    assert commands.agent("status")["index"]["files"] == 1 + COUNT - 1
    commands.say("backfill", "--forget", str(old))
    assert len(list(old.iterdir())) == COUNT
    assert commands.run("search", "Question")[0] == 3
    commands.run("rebuild")
    index = commands.agent("status")["index"]
    assert (index["files"], index["chunks"], index["vectorsReady"]) == (1, 1, 1)
    sent = commands.server.inputs
    again = commands.json("backfill", str(old))
    assert again["result"]["indexed"] == COUNT
    assert commands.server.inputs == sent


@pytest.mark.long
def test_an_import_is_forgotten_at_once_beside_a_daemon_whose_backfill_rests(daemon: Daemon, old: Path) -> None:
    with daemon:
        assert daemon.run("backfill", str(old)).returncode == 0
        daemon.run("backfill", "--pause")
        (old / "new.jsonl").write_bytes(transcript("plain", turns=6, seed=COUNT))
        daemon.run("backfill", str(old))
        assert daemon.run("backfill", "--forget", str(old)).returncode == 0
        assert daemon.status()["index"]["chunks"] == 0
        daemon.run("backfill", "--resume")
        wait_until(lambda: facts(daemon)[1] == 0)
        assert daemon.status()["index"]["files"] == 0


@pytest.mark.long
def test_a_cancellation_ends_the_consent_to_what_is_left(commands: CommandLine, old: Path) -> None:
    commands.set("RECALLD_COST__ASK_ABOVE", "0")
    commands.set("RECALLD_REMOTE__PRICE_PER_MILLION_TOKENS", "100")
    commands.say("backfill", "--pause")
    assert commands.run("backfill", str(old), "--yes")[0] == 1
    commands.say("backfill", "--cancel")
    assert commands.run("backfill", str(old))[0] == 4
    assert commands.server.inputs == 0


def test_a_halt_stands_alone(commands: CommandLine, old: Path) -> None:
    for more in (["--forget", str(old)], ["--dry-run"], [str(old)]):
        assert commands.run("backfill", "--pause", *more)[0] == 2
    assert commands.run("backfill", "--forget", str(old), "--dry-run")[0] == 2
    assert commands.run("backfill")[0] == 2
    assert "no backfill" in commands.say("backfill", "--cancel")
    assert "no backfill" in commands.say("backfill", "--resume")
    (commands.workspace / "MEMORY.md").write_text("# Note\n\nThe heron stays.\n")
    commands.say("index")
    assert commands.agent("status")["advice"] == []


def test_a_yes_while_a_backfill_is_paused_is_kept_and_used_once_it_goes_on(commands: CommandLine, old: Path) -> None:
    config = commands.home.parent / "recalld.toml"
    config.write_text(f"remote.price_per_million_tokens = 1.0\ncost.ask_above = 0\n{config.read_text()}")
    assert commands.run("backfill", str(old))[0] == 4
    commands.run("backfill", "--pause")
    code, _, err = commands.run("index", "--yes")
    assert (code, "--resume" in err, commands.server.inputs) == (1, True, 0)
    commands.run("backfill", "--resume")
    assert commands.run("index")[0] == 0
    assert commands.server.inputs == commands.server.distinct > 0
