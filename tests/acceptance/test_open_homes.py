"""Folders that other users may write: what is safe there goes on, and for the rest recalld says the command to type."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from schemas.conditions import ConditionCode
from tests.daemon import Daemon, recalld
from tests.waiting import wait_until

pytestmark = pytest.mark.long

CODE = ConditionCode.FOLDER_OPEN_TO_OTHERS


@pytest.fixture(autouse=True)
def note(workspace: Path) -> None:
    (workspace / "MEMORY.md").write_text("The gateway listens on port 18789.\n", encoding="utf-8")


def test_tokens_and_sockets_are_refused_in_a_home_that_others_may_write(home: Path, workspace: Path) -> None:
    home.mkdir()
    home.chmod(0o777)
    (home / "recalld.toml").write_text(
        f'provider = "stub"\n[[agents]]\nid = "main"\nworkspace = "{workspace}"\n', encoding="utf-8"
    )
    command = f"chmod go-w {home}"
    for words in (["up", "--port", "0"], ["serve", "--port", "0"], ["work"], ["watch"]):
        refused = recalld(*words, home=home, timeout=60)
        assert (refused.returncode, f"`{command}`" in refused.stderr) == (1, True), refused.stderr
    assert not list(home.rglob("*.sock"))
    assert not (home / "run" / "tokens").exists()
    # Settings there are used, and status and doctor say who else may write them.
    [agent] = json.loads(recalld("status", "--json", home=home).stdout)["agents"]
    assert [(advice["code"], advice["params"]) for advice in agent["advice"]] == [(CODE, {"command": command})]
    findings = json.loads(recalld("doctor", "--json", home=home).stdout)["findings"]
    assert [finding["level"] for finding in findings if finding.get("code") == CODE] == ["warning"]
    subprocess.run(command.split(), check=True)
    with Daemon(home, workspace) as daemon:
        wait_until(lambda: daemon.found("gateway", "MEMORY.md"))
        assert daemon.status().get("advice", []) == []


def test_a_folder_for_models_that_others_may_write_is_left_alone_and_everything_runs(
    home: Path, workspace: Path, tmp_path: Path
) -> None:
    models, temporary = tmp_path / "models", tmp_path / "temporary"
    models.mkdir()
    models.chmod(0o777)
    temporary.mkdir(mode=0o700)
    config = f'local.model_cache_dir = "{models}"'
    with Daemon(home, workspace, provider="local", config=config, environment={"TMPDIR": str(temporary)}) as daemon:
        wait_until(lambda: daemon.found("gateway", "MEMORY.md"))
        wait_until(lambda: daemon.status()["ok"])
    assert list(models.iterdir()) == []
    assert list(temporary.glob("recalld-*/*/table.npy"))
