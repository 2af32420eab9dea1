"""The end of long-running commands: in order at the first signal, at once at the second, and nobody is left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from memory.status.run_files import read_watch_state
from tests.daemon import REPOSITORY, Daemon, clean_environment, processes_of, started
from tests.embedding_server import EmbeddingServer
from tests.waiting import wait_until


def speaking(home: Path, workspace: Path, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
    """Start a command that writes what it says to `said` beside the home."""
    with (home.parent / "said").open("wb") as said:
        words, variables = (*arguments, "--workspace", str(workspace)), {"RECALLD_PROVIDER": "stub", **environment}
        return started(*words, home=home, environment=variables, stdout=said, stderr=subprocess.STDOUT)


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
    return {"work": "workers_started", "serve": "service_listening", "up": "is up"}[command] in said


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    """Socket of a stand-in for systemd: `notify` beside the home."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(60)
        yield listening


def heard_until(systemd: socket.socket, last: str) -> list[str]:
    """Return the messages up to a word, without signs of life."""
    words = [systemd.recv(100).decode()]
    while words[-1] != last:
        words.append(systemd.recv(100).decode())
    return [word for word in words if word == last or word != "WATCHDOG=1"]


@pytest.mark.parametrize(
    "command",
    [
        ["work"],
        *(
            pytest.param(words, marks=pytest.mark.long)
            for words in (["watch"], ["serve", "--port", "0"], ["up", "--port", "0"])
        ),
    ],
)
def test_a_command_ends_well_at_sigterm_leaves_no_process_and_systemd_knows(
    home: Path, workspace: Path, systemd: socket.socket, command: list[str]
) -> None:
    asked = {"NOTIFY_SOCKET": str(home.parent / "notify"), "WATCHDOG_USEC": "100000"}
    process = speaking(home, workspace, *command, **asked)
    assert heard_until(systemd, "READY=1") == ["READY=1"]
    assert heard_until(systemd, "WATCHDOG=1") == ["WATCHDOG=1"]
    assert works(home, command[0])
    process.send_signal(signal.SIGTERM)
    assert heard_until(systemd, "STOPPING=1") == ["STOPPING=1"]
    assert ended(process) == 0
    assert not processes_of(home)


@pytest.mark.parametrize(
    "command",
    [["--help"], *(pytest.param(words, marks=pytest.mark.long) for words in (["discover"], ["config", "show"]))],
)
def test_a_command_whose_reader_has_gone_says_nothing_and_141(home: Path, workspace: Path, command: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "recalld", "--home", str(home), *command],
        cwd=REPOSITORY,
        env=clean_environment(),
        stdout=writer,
        stderr=subprocess.PIPE,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_tools_over_stdio_end_at_once_and_leave_no_process(home: Path, number: signal.Signals) -> None:
    with started("mcp", home=home, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n')
        process.stdin.flush()
        assert process.stdout.readline()
        process.send_signal(number)
        assert ended(process) == -number
    assert not processes_of(home)


def held_up(home: Path, workspace: Path, server: EmbeddingServer, *command: str) -> subprocess.Popen[bytes]:
    """A command whose provider does not answer, so that it does not end by itself for a while."""
    server.open.clear()
    process = speaking(
        home,
        workspace,
        *command,
        RECALLD_PROVIDER="openai",
        RECALLD_REMOTE__BASE_URL=server.url,
        RECALLD_REMOTE__API_KEY="k",
    )
    wait_until(lambda: server.in_flight or process.poll() is not None)
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
        wait_until(lambda: not processes_of(home))


@pytest.mark.long
def test_a_second_signal_ends_up_and_all_its_processes_at_once(home: Path, workspace: Path) -> None:
    daemon = Daemon(home, workspace)
    daemon.start()
    assert daemon.process is not None
    [worker] = daemon.children("work")
    os.kill(worker, signal.SIGSTOP)  # it would not end by itself
    daemon.process.send_signal(signal.SIGINT)
    wait_until(lambda: "again stops at once" in daemon.said())
    daemon.process.send_signal(signal.SIGINT)
    assert daemon.process.wait(60) == 128 + signal.SIGINT
    daemon.process = None
    wait_until(lambda: not processes_of(home))
