"""Services of systemd and launchd: their files, and the calls that install and remove them."""

from __future__ import annotations

import json
import os
import plistlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from recalld.cli import run
from recalld.up.lock import daemon_lock
from recalld.up.supervisor import UP_OVERDUE_SECONDS
from recalld.up.units import launchd, systemd
from schemas.errors import UserError

#: A home whose name has everything that a unit reads otherwise.
ODD = 'a "home" of 100 % $HOME'

STARTING = ["daemon-reload", "enable --now recalld.service"]
STOPPING = ["disable --now recalld.service", "daemon-reload"]
FAILURE = "Failed to connect to bus: No medium found"


@pytest.fixture(autouse=True)
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder, whose PATH has `systemctl`, `loginctl` and `launchctl` that record their calls."""
    for name in list(os.environ):
        if name.startswith("RECALLD_") or name.endswith("_API_KEY"):
            monkeypatch.delenv(name)
    folder = tmp_path / "user"
    (folder / "bin").mkdir(parents=True)
    for program in ("systemctl", "loginctl", "launchctl"):
        script = folder / "bin" / program
        script.write_text(
            f"#!/bin/sh\ncd {folder}\necho {program} $* >> calls\n"
            '[ ! -f answer ] || cat answer\n[ "$1 $2" != "$(cat fails 2>/dev/null)" ] || '
            f'{{ echo "{FAILURE}" >&2; exit 1; }}\n'
        )
        script.chmod(0o755)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("PATH", f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return folder


def calls(user: Path) -> list[str]:
    """Return the calls since the last look, without options of `show`."""
    file = user / "calls"
    lines = file.read_text().splitlines() if file.exists() else []
    file.unlink(missing_ok=True)
    return [line.replace("systemctl --user ", "") for line in lines if " show" not in line]


def settings_of(home: Path, workspace: Path) -> list[str]:
    return ["--home", str(home), "service", "install", "--workspace", str(workspace)]


def test_systemd_reads_the_unit_as_it_is_meant(user: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}{os.pathsep}/opt/100 %")
    systemd().install([sys.executable, "up", "--home", str(tmp_path / ODD)], home=tmp_path / ODD)
    assert systemd().home() == tmp_path / ODD
    lines = dict(line.split("=", 1) for line in systemd().file.read_text().splitlines() if "=" in line)
    assert lines["ExecStart"].endswith('/a \\"home\\" of 100 %% $$HOME"')
    assert lines["Environment"].endswith(':/opt/100 %%"')
    assert (lines["Type"], lines["WatchdogSignal"], lines["Restart"]) == ("notify", "SIGTERM", "on-failure")
    assert int(lines["TimeoutStopSec"]) > UP_OVERDUE_SECONDS
    if shutil.which("systemd-analyze") is None:
        pytest.skip("this system has no systemd; the unit is parsed")
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(systemd().file)], capture_output=True, text=True, timeout=60
    )
    assert (checked.returncode, checked.stderr) == (0, "")


def test_a_service_is_installed_started_again_and_removed(
    user: Path, home: Path, workspace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "a-secret")
    unit = user / ".config" / "systemd" / "user" / "recalld.service"
    assert run(["--home", str(home), "service", "status"]) == 4
    assert run(settings_of(home, workspace)) == 0
    shown = capsys.readouterr()
    assert calls(user) == STARTING
    assert f'"up" "--home" "{home}"' in unit.read_text()
    assert "`loginctl enable-linger`" in shown.out
    assert "OPENAI_API_KEY" in shown.err
    assert "a-secret" not in unit.read_text() + shown.err
    assert json.loads((home / "agents.json").read_text())["agents"] == {"main": str(workspace)}
    (user / "answer").write_text("ActiveState=active\n")
    with daemon_lock(home):
        assert run(["--home", str(home), "service", "install"]) == 0
        assert calls(user) == [*STOPPING, *STARTING]
    assert run(["--home", str(home), "service", "status"]) == 0
    assert run(["--home", str(home.parent / "other"), "service", "install", "--workspace", str(workspace)]) == 1
    assert f"the service runs {home}" in capsys.readouterr().err
    assert calls(user) == []
    assert run(["--home", str(home), "service", "remove"]) == 0
    assert calls(user) == STOPPING
    assert not unit.exists()
    assert run(["--home", str(home), "service", "remove"]) == 0


def test_a_home_that_runs_in_a_terminal_gets_no_service(
    user: Path, home: Path, workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with daemon_lock(home):
        assert run(settings_of(home, workspace)) == 1
    assert f"{os.getpid()}): type `recalld stop" in capsys.readouterr().err
    assert calls(user) == []


def test_without_a_session_of_systemd_no_file_stays(
    user: Path, home: Path, workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (user / "fails").write_text("--user daemon-reload\n")
    assert run(settings_of(home, workspace)) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert f"`systemctl --user {STARTING[0]}` failed: {FAILURE}; `recalld up" in line
    assert not (user / ".config" / "systemd" / "user" / "recalld.service").exists()


def test_a_unit_by_another_hand_stays(user: Path, home: Path, workspace: Path) -> None:
    unit = user / ".config" / "systemd" / "user" / "recalld.service"
    unit.parent.mkdir(parents=True)
    unit.write_text("[Service]\nExecStart=/bin/true\n")
    assert run(settings_of(home, workspace)) == 1
    assert run(["--home", str(home), "service", "remove"]) == 0
    assert unit.read_text() == "[Service]\nExecStart=/bin/true\n"
    assert calls(user) == []


def test_launchd_gets_a_property_list_that_starts_at_login(user: Path, home: Path) -> None:
    agent, domain = launchd(), f"gui/{os.getuid()}"
    command = ["/opt/recalld", "up", "--home", str(home)]
    agent.install(command, home=home)
    assert calls(user) == [f"launchctl bootstrap {domain} {agent.file}"]
    plist = plistlib.loads(agent.file.read_bytes())
    assert (plist["ProgramArguments"], plist["RunAtLoad"]) == (command, True)
    assert plist["KeepAlive"] == {"SuccessfulExit": False}
    assert plist["ExitTimeOut"] > UP_OVERDUE_SECONDS
    assert Path(plist["StandardErrorPath"]).parent.is_dir()
    assert agent.home() == home
    (user / "answer").write_text("recalld = {\n\tstate = running\n}\n")
    assert agent.state() == "running"
    agent.remove()
    assert calls(user)[-1] == f"launchctl bootout {domain}/recalld"
    assert not agent.file.exists()
    agent.file.write_bytes(plistlib.dumps({"Label": "recalld", "ProgramArguments": ["/bin/true"]}))
    with pytest.raises(UserError, match="was not written by recalld"):
        agent.install(command, home=home)
