"""A backend whose first embedding fails, as `up` and `status` tell it, and the probes of a deep status."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.conditions import ConditionCode
from tests.daemon import Daemon
from tests.unit.memory.backends.test_qmd import StandIn
from tests.waiting import wait_until


@pytest.mark.long
def test_a_first_embedding_that_fails_is_printed_and_makes_status_not_ok(
    home: Path, workspace: Path, tmp_path: Path
) -> None:
    qmd = StandIn(tmp_path / "stand-in")
    qmd.does(embed="sys.exit('no model')", vsearch="print('[]')", status="print('  Vectors:  7 embedded')")
    reason = f"{qmd.command} embed failed: no model"
    config = f'backend = "qmd"\n[qmd]\ncommand = "{qmd.command}"\nsearch_mode = "vsearch"\n'
    daemon = Daemon(home, workspace, config=config)
    daemon.write("memory/first.md", "# First\n\nThe heron is first.\n")
    with daemon:
        wait_until(lambda: daemon.running() and f"main: {reason}" in daemon.said())
        wait_until(lambda: [one["code"] for one in daemon.status()["troubles"]] == [ConditionCode.BACKEND_FAILS])
        status = daemon.status()
        assert not status["ok"]
        assert status["backend"]["vectors"] == {"available": False, "reason": reason}
        deep = daemon.run("status", "--deep")
        assert f"vectors cannot be searched: {reason}" in deep.stdout
        assert "a word was embedded" in deep.stdout
        assert len(qmd.asked("vsearch")) == 1


@pytest.mark.long
def test_a_deep_status_has_documents_without_a_job_compared(home: Path, workspace: Path) -> None:
    unwatched = {"RECALLD_SYNC__WATCH": "false", "RECALLD_SYNC__INTERVAL_MINUTES": "0"}
    with Daemon(home, workspace, environment=unwatched) as daemon:
        wait_until(lambda: daemon.status().get("watching"))
        daemon.write("memory/first.md", "# First\n\nThe heron is first.\n")
        assert daemon.status()["disk"]["missing"] == 1
        daemon.run("status", "--deep")
        wait_until(lambda: daemon.status()["index"]["files"] == 1)


@pytest.mark.long
def test_a_deep_status_asks_the_provider_with_and_without_a_service(home: Path, workspace: Path) -> None:
    daemon = Daemon(home, workspace)
    daemon.write("memory/first.md", "# First\n\nThe heron is first.\n")
    with daemon:
        wait_until(lambda: daemon.status()["index"]["vectorsReady"] == 1)
        served = daemon.run("status", "--deep").stdout
    alone = daemon.run("status", "--deep").stdout
    for printed in (served, alone):
        assert "a word was embedded" in printed
        assert "vectors can be searched" in printed
    assert "probes" not in daemon.status()
