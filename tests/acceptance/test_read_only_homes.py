"""A home that cannot be written, such as a backup or a mount of a container: status and doctor answer."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.chaos.disks import read_only, small_disk
from tests.daemon import recalld

pytestmark = pytest.mark.long


@pytest.mark.parametrize("is_used", [True, False])
def test_status_and_doctor_answer_in_a_home_that_cannot_be_written(
    home: Path, workspace: Path, *, is_used: bool
) -> None:
    (workspace / "MEMORY.md").write_text("The gateway listens on port 18789.\n", encoding="utf-8")
    config = home.parent / "settings.toml"
    config.write_text(f'provider = "stub"\n[[agents]]\nid = "main"\nworkspace = "{workspace}"\n', "utf-8")
    options = ("--config", str(config))
    # Root may write every folder, unless its disk is read-only.
    with small_disk(home, megabytes=64) if os.geteuid() == 0 else nullcontext(home.mkdir(parents=True)):
        home.chmod(0o700)
        if is_used:
            assert recalld("index", *options, home=home).returncode == 0
        with read_only(home):
            status = recalld("status", "--json", *options, home=home)
            doctor = recalld("doctor", "--json", *options, home=home)
    [agent] = json.loads(status.stdout)["agents"]
    assert (status.returncode, agent["index"]["files"], agent["disk"]["files"]) == ((0, 1, 1) if is_used else (4, 0, 1))
    findings = json.loads(doctor.stdout)["findings"]
    assert {finding["check"] for finding in findings} >= {"disk", "broker", "processes", "provider", "index"}
    problems = [finding["check"] for finding in findings if finding["level"] == "problem"]
    assert (doctor.returncode, problems) == (4, ["disk"] if is_used else ["disk", "index"])


def test_status_makes_no_home(home: Path, workspace: Path) -> None:
    assert recalld("status", "--agent", "main", home=home).returncode == 2
    config = home.parent / "settings.toml"
    config.write_text(f'provider = "none"\n[[agents]]\nid = "main"\nworkspace = "{workspace}"\n', "utf-8")
    assert recalld("status", "--config", str(config), home=home).returncode == 4, "there is no document yet"
    assert not home.exists()
