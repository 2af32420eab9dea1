"""The end of long-running commands: in order at the first signal, at once at the second, and nobody is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from memory.watch_state import read_watch_state
from tests.daemon import REPOSITORY, Daemon, arguments_of, clean_environment
from tests.embedding_server import EmbeddingServer
from tests.waiting import wait_until


def alive(home: Path) -> list[int]:
    """Processes that have to do with this home, this one aside."""
    numbers = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in numbers if pid != os.getpid() and any(str(home) in word for word in arguments_of(pid))]


def started(home: Path, workspace: Path, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
    """A command; what it says is in `said` beside the home."""
    with (home.parent / "said").open("wb") as said:
        return subprocess.Popen(
            [sys.executable, "-m", "recalld", "--home", str(home), *arguments, "--workspace", str(workspace)],
            cwd=REPOSITORY,
            env=clean_environment({"RECALLD_PROVIDER": "stub", **environment}),
            stdout=said,
            stderr=subprocess.STDOUT,
        )


def ended(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait(60)
    finally:
        process.kill()


def deliver(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal and wait until the process has it: of two that are pending, the second may come first."""
    process.send_signal(number)

    def has_it() -> bool:
        fields = dict(line.split(":", 1) for line in Path(f"/proc/{process.pid}/status").read_text().splitlines())
        return not int(fields["ShdPnd"], 16)

    wait_until(has_it)


def works(home: Path, command: str) -> bool:
    if command == "watch":
        return read_watch_state(home, "main") is not None
    said = (home.parent / "said").read_text()
    return {"work": "workers_started", "serve": "service_listening"}[command] in said


@pytest.mark.parametrize("command", [["watch"], ["work"], ["serve", "--port", "0"]])
def test_a_command_ends_well_at_sigterm_and_leaves_no_process(home: Path, workspace: Path, command: list[str]) -> None:
    process = started(home, workspace, *command)
    wait_until(lambda: works(home, command[0]), timeout=60)
    process.send_signal(signal.SIGTERM)
    assert ended(process) == 0
    wait_until(lambda: not alive(home))


def held_up(home: Path, workspace: Path, server: EmbeddingServer, *command: str) -> subprocess.Popen[bytes]:
    """A command whose provider does not answer, so that it does not end by itself for a while."""
    server.open.clear()
    process = started(
        home,
        workspace,
        *command,
        RECALLD_PROVIDER="openai",
        RECALLD_REMOTE__BASE_URL=server.url,
        RECALLD_REMOTE__API_KEY="k",
    )
    wait_until(lambda: server.in_flight or process.poll() is not None, timeout=60)
    assert process.poll() is None
    return process


@pytest.mark.parametrize("command", ["index", "backfill"])
def test_a_second_signal_is_immediate_and_leaves_no_process(home: Path, workspace: Path, command: str) -> None:
    (workspace / "memory" / "a.md").write_text("The heron stands in the reeds.\n")
    talk = workspace.parent / "talks" / "one.jsonl"
    talk.parent.mkdir()
    talk.write_text('{"role": "user", "content": "The heron stands in the reeds."}\n' * 3)
    with EmbeddingServer() as server:
        process = held_up(home, workspace, server, command, *([str(talk.parent)] if command == "backfill" else []))
        deliver(process, signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        assert ended(process) == 128 + signal.SIGTERM
        assert server.in_flight, "nobody waited for the provider"
        wait_until(lambda: not alive(home))


def test_a_second_signal_ends_up_and_all_its_processes_at_once(home: Path, workspace: Path) -> None:
    daemon = Daemon(home, workspace)
    daemon.start()
    assert daemon.process is not None
    [worker] = daemon.children("work")
    os.kill(worker, signal.SIGSTOP)  # it would not end by itself
    daemon.process.send_signal(signal.SIGINT)
    wait_until(lambda: "again stops at once" in daemon.said())
    daemon.process.send_signal(signal.SIGINT)
    assert daemon.process.wait(20) == 128 + signal.SIGINT
    daemon.process = None
    wait_until(lambda: not alive(home))
