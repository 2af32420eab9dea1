"""A recalld that runs without a terminal: started, read, stopped, copied."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.daemon import processes_of, recalld, started
from tests.embedding_server import EmbeddingServer
from tests.waiting import wait_until


def settings_for(server: EmbeddingServer, workspace: Path, file: Path) -> list[str]:
    """Write a settings file. Return the option that names it."""
    file.write_text(
        f'provider = "openai"\nremote = {{ base_url = "{server.url}", api_key = "k" }}\nservice.port = 0\n'
        f'[[agents]]\nid = "main"\nworkspace = "{workspace}"\n'
    )
    return ["--config", str(file)]


def found(home: Path, options: list[str], query: str) -> list[str]:
    answer = recalld(*options, "search", query, "--json", home=home)
    return [result["path"] for result in json.loads(answer.stdout)["results"]]


@pytest.mark.long
def test_up_without_a_terminal_is_ready_when_it_returns_and_stops(home: Path, workspace: Path) -> None:
    nothing = recalld("stop", home=home)
    assert (nothing.returncode, nothing.stdout.startswith("nothing"), str(home) in nothing.stdout) == (0, True, True)
    refused = recalld("up", "--detach", "--workspace", str(workspace / "none"), home=home)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith(f"recalld: the workspace {workspace / 'none'} ")
    (workspace / "MEMORY.md").write_text("The heron stands in the reeds.\n")
    with EmbeddingServer() as server:
        options = settings_for(server, workspace, home.parent / "recalld.toml")
        started = recalld(*options, "up", "--detach", home=home)
        assert (started.returncode, started.stderr) == (0, "")
        assert f"is up (home: {home})" in started.stdout
        wait_until(lambda: "MEMORY.md" in found(home, options, "heron"))
        again = recalld(*options, "up", "--detach", home=home)
        assert again.returncode == 1
        assert "already runs for" in again.stderr
        stopped = recalld("stop", home=home)
        assert stopped.returncode == 0
        assert "stopped recalld for" in stopped.stdout
        assert processes_of(home) == []
        entries = [json.loads(line) for line in recalld("logs", "--json", home=home).stdout.splitlines()]
        events = [(entry["process"], entry["event"]) for entry in entries]
        assert ("up", "stopped") in events
        assert events.index(("serve", "service_stopped")) > events.index(("work-1", "workers_started"))
        only = recalld("logs", "work", "-n", "1", home=home).stdout
        assert only.count("\n") == 1
        assert "  work-1  workers_stopped" in only
        assert recalld("logs", "heron", home=home).returncode == 2

        # A copy of the stopped home, and of the settings, is a backup.
        copy = shutil.copytree(home, home.parent / "restored")
        paid = server.requests
        assert recalld(*options, "up", "--detach", home=copy).returncode == 0
        wait_until(lambda: "MEMORY.md" in found(copy, options, "reeds"))
        assert recalld("stop", home=copy).returncode == 0
        assert recalld(*options, "index", home=copy).returncode == 0
        assert [text for request in server.log[paid:] for text in request.inputs] == ["reeds"]


@pytest.mark.long
def test_a_stop_while_something_is_indexed_finishes_it(home: Path, workspace: Path) -> None:
    (workspace / "MEMORY.md").write_text("The heron stands in the reeds.\n")
    with EmbeddingServer() as server:
        options = settings_for(server, workspace, home.parent / "recalld.toml")
        server.open.clear()
        assert recalld(*options, "up", "--detach", home=home).returncode == 0
        wait_until(lambda: server.in_flight)
        with started("stop", home=home, stderr=subprocess.PIPE, text=True) as stopping:
            assert stopping.stderr is not None
            assert "finished first" in stopping.stderr.readline()
            server.open.set()
            assert stopping.wait(120) == 0
        assert processes_of(home) == []
        paid = server.requests
        assert recalld(*options, "index", home=home).returncode == 0
        assert server.requests == paid
