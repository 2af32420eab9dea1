"""The doctor never calls well what status does not: it says the same reason, and what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from schemas.status import EndpointCondition, EndpointStatus
from tests.commanding import CommandLine
from tests.embedding_server import EmbeddingServer
from workers.health.health_store import HealthStore
from workers.queue.private_server import BrokerServer

Breakage = Callable[[Path, EmbeddingServer], object]


@pytest.fixture(autouse=True)
def programs(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No hooks of whoever runs this."""
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "OPENCLAW_STATE_DIR"):
        monkeypatch.setenv(name, str(home.parent / "programs"))


def configure(workspace: Path, line: str) -> None:
    config = workspace.parent / "recalld.toml"
    config.write_text(f"{config.read_text()}{line}\n")


def linked(workspace: Path, _: EmbeddingServer) -> None:
    (workspace.parent / "elsewhere").mkdir()
    (workspace / "memory" / "projects").symlink_to(workspace.parent / "elsewhere")


@pytest.mark.parametrize(
    ("breakage", "said"),
    [
        pytest.param(linked, "memory/projects is a symbolic link", id="a linked folder"),
        pytest.param(
            lambda workspace, _: configure(workspace, f'sessions = ["{workspace.parent}/nowhere"]'),
            "nowhere is not there",
            id="a sessions folder that is not there",
        ),
        pytest.param(
            lambda workspace, _: configure(workspace, 'model = "another"'),
            "was made with other settings",
            id="other settings",
        ),
        pytest.param(
            lambda workspace, _: (workspace / "memory" / "new.md").write_text("The okapi sleeps.\n"),
            "1 document is missing in the index",
            id="a note that nobody indexed",
        ),
    ],
)
def test_what_makes_status_not_ok_is_a_problem_of_the_doctor_with_what_to_do(
    commands: CommandLine, workspace: Path, server: EmbeddingServer, breakage: Breakage, said: str
) -> None:
    (workspace / "memory" / "walrus.md").write_text("The walrus sleeps at noon.\n")
    commands.say("index")
    assert commands.run("doctor")[0] == commands.run("status")[0] == 0
    breakage(workspace, server)
    assert commands.run("status")[0] == 4
    code, out, _ = commands.run("doctor", "--json")
    problems: list[dict[str, Any]] = [one for one in json.loads(out)["findings"] if one["level"] == "problem"]
    assert (code, [said in one["message"] for one in problems]) == (4, [True]), problems
    assert problems[0]["action"]


def test_a_key_that_is_refused_is_one_problem_of_all_agents_that_use_it(
    commands: CommandLine, workspace: Path, broker_server: BrokerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents = "".join(f'[[agents]]\nid = "{name}"\nworkspace = "{workspace}"\n' for name in ("ada", "bob"))
    configure(workspace, agents)
    refusal = EndpointStatus(EndpointCondition.STOPPED, None, "the key is refused", since=1.0)
    monkeypatch.setattr(HealthStore, "endpoint", lambda *_: refusal)
    findings = json.loads(commands.run("doctor", "--json")[1])["findings"]
    [found] = [one for one in findings if one["check"] == "provider" and one["level"] == "problem"]
    assert found["agents"] == ["main", "ada", "bob"]
    assert (found["code"], found["message"]) == ("provider_refuses", "main, ada, bob: the key is refused")
