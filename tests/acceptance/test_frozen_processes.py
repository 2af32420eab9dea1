"""A process that stands still is told by status, and what stood still goes on by itself."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.daemon import Daemon
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


def mode_when_told(daemon: Daemon, pid: int) -> str | None:
    """Return the mode of a search that tells of the stopped process. Searches keep what they know for seconds."""
    found = json.loads(daemon.run("search", "gateway", "--json").stdout)
    told = any(f"process {pid} is suspended" in reason for reason in found["degraded"])
    return str(found["mode"]) if told else None


def codes_of_doctor(daemon: Daemon) -> set[str]:
    """Return the codes of the doctor's findings."""
    findings = json.loads(daemon.run("doctor", "--json").stdout)["findings"]
    return {finding["code"] for finding in findings if "code" in finding}


@pytest.mark.parametrize("name", ["watch", "work"])
def test_a_frozen_process_is_told_with_its_number_and_over_when_it_goes_on(daemon: Daemon, name: str) -> None:
    [pid] = daemon.children(name)
    with stopped(pid):
        [trouble] = wait_until(lambda: unwell(daemon), what="status tells")
        assert trouble["part"] == name
        assert f"process {pid} is suspended" in trouble["message"]
        told = daemon.run("status")
        assert told.returncode == 4
        assert "not ok" in told.stdout
        if name == "watch":
            assert wait_until(lambda: mode_when_told(daemon, pid), what="a search tells") == "hybrid"
            daemon.write("memory/unseen.md", "Meanwhile the okapi was fed.\n")
            # Until then the note may be settling.
            wait_until(lambda: "documents_unqueued" in codes_of_doctor(daemon), what="the doctor finds the note")
        found = daemon.run("doctor").stdout
        assert f"`kill -CONT {pid}`" in found
        assert ("documents_unqueued" in codes_of_doctor(daemon)) == (name == "watch")
        # Neither would get past it.
        assert "recalld doctor --fix" not in found
    wait_until(lambda: daemon.status()["ok"], what="status is ok again")
    daemon.write("memory/after.md", "After the thaw the ibex was found.\n")
    wait_until(lambda: daemon.found("ibex", "memory/after.md"))


def test_a_frozen_broker_and_a_frozen_supervisor_are_told_and_over_when_they_go_on(daemon: Daemon) -> None:
    assert daemon.process is not None
    for name, pid, words in (
        ("broker", daemon.broker_pid(), "does not answer"),
        ("up", daemon.process.pid, "no other process is restarted"),
    ):
        with stopped(pid):
            wait_until(lambda words=words: words in daemon.run("status").stdout)  # type: ignore[misc]
        daemon.write(f"memory/{name}.md", f"After the thaw of {name} the ibex{name} was found.\n")
        wait_until(lambda name=name: daemon.found(f"ibex{name}", f"memory/{name}.md"))  # type: ignore[misc]
        wait_until(lambda: daemon.status()["ok"], what="status is ok again")


def test_a_prompt_does_not_wait_for_a_frozen_service(home: Path, workspace: Path) -> None:
    (workspace / "MEMORY.md").write_text("# Memory\n\n## Rules\n- Never push on Fridays\n", encoding="utf-8")

    def prompted(daemon: Daemon, session: str) -> str:
        payload = {"hook_event_name": "SessionStart", "source": "startup", "session_id": session}
        return daemon.run("hook", "claude-code", payload=json.dumps(payload)).stdout

    with Daemon(home, workspace, config="context.injection.enabled = true") as daemon:
        wait_until(lambda: "Fridays" in prompted(daemon, str(time.monotonic_ns())))
        with stopped(*daemon.children("serve")):

            def seconds() -> float:
                begun = time.monotonic()
                assert prompted(daemon, "frozen") == ""
                return time.monotonic() - begun

            # A second, and the start of the command; with a deadline of its own for the proof it is six each time.
            wait_until(lambda: seconds() < 4.5)
