"""recalld in the folder of a project whose modules have the names of recalld's, and of packages that recalld needs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from mcp import Client

from tests.daemon import Daemon, clean_environment
from tests.mcp_clients import calling, child, connected, found
from tests.waiting import wait_until

PACKAGES = ("memory", "producers", "workers", "pydantic")
MODULES = ("schemas", "click", "mcp", "numpy", "redis", "structlog")

CONSOLE_SCRIPT = str(Path(sys.executable).with_name("recalld"))


@pytest.fixture
def project(workspace: Path) -> Path:
    (workspace / "memory" / "friday.md").write_text("The dentist appointment moved to nine.\n", "utf-8")
    for name in (*(f"{package}/__init__.py" for package in PACKAGES), *(f"{module}.py" for module in MODULES)):
        module = workspace / name
        module.parent.mkdir(exist_ok=True)
        module.write_text("raise ImportError('a module of the project was run')\n", "utf-8")
    return workspace


@pytest.mark.parametrize("program", [[CONSOLE_SCRIPT], [sys.executable, "-m", "recalld"]], ids=["script", "module"])
def test_commands_mcp_and_hooks_work_there(project: Path, home: Path, program: list[str]) -> None:
    environment = clean_environment({"PYTHONPATH": ".", "RECALLD_PROVIDER": "stub"})

    def run(*arguments: str, payload: str = "") -> str:
        command = [*program, "--home", str(home), *arguments]
        ended = subprocess.run(command, cwd=project, env=environment, input=payload, capture_output=True, text=True)
        assert (ended.returncode, ended.stderr) == (0, "")
        return ended.stdout

    run("index", "--workspace", ".")
    assert "memory/friday.md" in run("search", "dentist appointment")
    hook = {"hook_event_name": "PreCompact", "session_id": "s", "transcript_path": "/nowhere/s.jsonl", "cwd": "/"}
    run("hook", "claude-code", payload=json.dumps(hook))
    assert list((home / "spool").iterdir())

    async def search(client: Client) -> str:
        return str(found(await calling("memory_search", query="dentist")(client))["results"][0]["path"])

    server = child(*program, "--home", str(home), "mcp", env=environment, cwd=str(project))
    assert connected(server, search) == "memory/friday.md"


@pytest.mark.long
def test_the_daemon_its_children_and_the_unpacking_of_its_model_work_there(project: Path, home: Path) -> None:
    with Daemon(home, project, provider="local", environment={"PYTHONPATH": "."}, folder=project) as daemon:
        wait_until(lambda: daemon.found("dentist appointment", "memory/friday.md"))
        wait_until(lambda: json.loads(daemon.run("search", "dentist", "--json").stdout)["mode"] == "hybrid")
    assert list(home.glob("cache/models/multilingual-use-v3-*/checksum"))
