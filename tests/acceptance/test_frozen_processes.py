"""A process that stands still is told by status, and what stood still goes on by itself."""

from __future__ import annotations

import fcntl
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.daemon import Daemon
from tests.integration.test_readiness import ask, free_port
from tests.waiting import wait_until

pytestmark = pytest.mark.long


@pytest.fixture
def daemon(home: Path, workspace: Path) -> Iterator[Daemon]:
    (workspace / "MEMORY.md").write_text("# Memory\n\nThe gateway listens on port 18789.\n", encoding="utf-8")
    with Daemon(home, workspace) as running:
        wait_until(lambda: running.found("gateway port 18789", "MEMORY.md"))
        wait_until(lambda: running.status()["ok"])
        yield running


@contextmanager
def stopped(*pids: int) -> Iterator[None]:
    """The processes stand still for as long as the block runs."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def processes(daemon: Daemon) -> list[dict[str, Any]]:
    return list(json.loads(daemon.run("status", "--json").stdout)["processes"])


def unwell(daemon: Daemon) -> list[dict[str, Any]]:
    status = daemon.status()
    troubles = [trouble for trouble in status["troubles"] if "process" in trouble["message"]]
    assert not (troubles and status["ok"])
    return troubles


@pytest.mark.parametrize("name", ["watch", "work"])
def test_a_frozen_process_is_told_with_its_number_and_over_when_it_goes_on(daemon: Daemon, name: str) -> None:
    [pid] = daemon.children(name)
    with stopped(pid):
        [trouble] = wait_until(lambda: unwell(daemon), what="status tells")
        assert trouble["part"] == name
        assert f"process {pid} is stopped" in trouble["message"]
        told = daemon.run("status")
        assert told.returncode == 4
        assert "not ok" in told.stdout
        if name == "watch":
            found = json.loads(daemon.run("search", "gateway", "--json").stdout)
            assert any(f"process {pid} is stopped" in reason for reason in found["degraded"])
            assert found["mode"] == "hybrid"
            daemon.write("memory/unseen.md", "Meanwhile the okapi was fed.\n")
        found = daemon.run("doctor").stdout
        assert f"`kill -CONT {pid}`" in found
        assert ("1 document is missing" in found) == (name == "watch")
        # Neither would get past it.
        assert "recalld doctor --fix" not in found
    wait_until(lambda: daemon.status()["ok"], what="status is ok again")
    daemon.write("memory/after.md", "After the thaw the ibex was found.\n")
    wait_until(lambda: daemon.found("ibex", "memory/after.md"))


def test_a_frozen_broker_and_a_frozen_supervisor_are_told_and_over_when_they_go_on(daemon: Daemon) -> None:
    assert daemon.process is not None
    for name, pid, words in (
        ("broker", daemon.broker_pid(), "does not answer"),
        ("up", daemon.process.pid, "what dies is not started again"),
    ):
        with stopped(pid):
            wait_until(lambda words=words: words in daemon.run("status").stdout)  # type: ignore[misc]
        daemon.write(f"memory/{name}.md", f"After the thaw of {name} the ibex{name} was found.\n")
        wait_until(lambda name=name: daemon.found(f"ibex{name}", f"memory/{name}.md"))  # type: ignore[misc]
        wait_until(lambda: daemon.status()["ok"], what="status is ok again")


def test_a_frozen_query_service_is_told_by_a_command_that_looks_itself(daemon: Daemon) -> None:
    [pid] = daemon.children("serve")
    with stopped(pid):
        told = wait_until(
            lambda: told if "is stopped" in (told := daemon.run("status")).stdout else None, timeout=90, what="told"
        )
        assert told.returncode == 4
        assert f"process {pid} is stopped, and searches are not answered" in told.stdout
        assert "the service's process is stopped" in told.stderr
        found = daemon.run("search", "gateway")
        assert (found.returncode, "the service's process is stopped, so this is keywords only" in found.stderr) == (
            0,
            True,
        )
    wait_until(lambda: daemon.status()["ok"], what="status is ok again")


def test_a_worker_that_hangs_is_told_by_everybody_within_the_set_time(home: Path, workspace: Path) -> None:
    folder = home / "indexes" / "main"
    folder.mkdir(parents=True)
    (workspace / "MEMORY.md").write_text("# Memory\n\nThe gateway listens on port 18789.\n", encoding="utf-8")
    up, work = free_port(), free_port()
    config = f"[up]\nport = {up}\n[workers]\nport = {work}\nstalled_after_seconds = 12.0\n"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with Daemon(home, workspace, config=config) as daemon:
            job = "index_pending of main"
            early = wait_until(lambda: next((one for one in processes(daemon) if one.get("doing")), None))
            assert early["role"] == "work"
            assert any(job in step for step in early["doing"])
            wait_until(lambda: any(job in trouble["message"] for trouble in unwell(daemon)))
            for port in (up, work):
                status, body = wait_until(lambda port=port: found if (found := ask(port))[0] == 503 else None)  # type: ignore[misc]
                assert job in body["error"], status
            found = daemon.run("doctor")
            assert found.returncode == 4
            assert job in found.stdout
            told = daemon.run("status")
            assert told.returncode == 4
            assert "at work" in told.stdout
            fcntl.flock(lock, fcntl.LOCK_UN)
            wait_until(lambda: daemon.found("gateway port 18789", "MEMORY.md"))
            wait_until(lambda: daemon.status()["ok"] and ask(up)[0] == ask(work)[0] == 200)


def test_settings_that_were_changed_while_it_runs_are_told_until_they_are_as_before(daemon: Daemon) -> None:
    before = daemon.config.read_text()

    def outdated() -> list[dict[str, Any]]:
        troubles = [trouble for trouble in daemon.status()["troubles"] if trouble["part"] == "settings"]
        # Each process tells by itself, within three seconds; then it is one sentence about the one that started them.
        return [trouble for trouble in troubles if trouble["params"]["commands"] == "`recalld up`"]

    daemon.config.write_text(before.replace('provider = "stub"', 'provider = "none"'))
    [trouble] = wait_until(outdated, what="status tells")
    assert (trouble["code"], trouble["subject"]) == ("settings_changed", str(daemon.config))
    assert daemon.run("status").returncode == 4
    daemon.config.write_text(f"# another comment\n{before}")
    wait_until(lambda: daemon.status()["ok"], what="a comment is no change")
