"""Knowledge of a service about all its agents, and the costs of getting it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from memory.search.manager import get_search_manager
from memory.service.agents import MOST_SERVED, STORE_AWAY, FleetAgents, ServedAgent, ServedAgents
from schemas.conditions import ConditionCode
from schemas.settings import AgentSettings, Settings
from tests.quiet_health import QuietHealth
from tests.waiting import wait_until
from tests.written_index import with_agent, with_agents, write_index

NAMES = ("ada", "bob", "eve", "joe")


@pytest.fixture
def several(settings: Settings) -> Settings:
    """Four agents with an index each, unchanged for an hour."""
    several = with_agents(settings, *NAMES)
    for name in NAMES:
        write_index(several, name).close()
        for path in (several.indexes_path / name).glob("*.sqlite*"):
            stat = path.stat()
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns - 3_600_000_000_000))
    return several


@pytest.fixture
def agents(several: Settings) -> Iterator[ServedAgents]:
    made = ServedAgents(several, pending=QuietHealth(), inbox=None)
    yield made
    made.close()


def chunks(agents: ServedAgents) -> list[int | None]:
    """Counts of the probes."""
    counts = [served.probe.counts for served in agents.probed(NAMES)]
    return [of_agent.chunks if of_agent is not None else None for of_agent in counts]


def test_a_damaged_index_among_many_is_named_and_its_figures_are_unknown(several: Settings, agents: ServedAgents):
    folder = several.indexes_path / "eve"
    index = folder / (folder / "CURRENT").read_text().strip()
    sound = index.read_bytes()
    index.write_bytes(b"no database" * 5_000)
    assert str(agents.not_ready()).startswith("eve: ")
    assert chunks(agents) == [1, 1, None, 1]
    index.write_bytes(sound)
    assert agents.not_ready() is None


def test_a_start_opens_the_last_used_agents_and_logs_in_one_line_what_is_not_well(
    settings: Settings, tmp_path: Path
) -> None:
    wrong: dict[str, dict[str, object]] = {
        "missing-backend": {"backend": "nonsense"},
        "off": {"enabled": False},
        "no-model": {"provider": "local", "local": {"model_path": str(tmp_path / "no-such-model.gguf")}},
        "well": {"provider": "stub"},
    }
    made = []
    for name, more in wrong.items():
        (tmp_path / name).mkdir()
        made.append({"id": name, "workspace": tmp_path / name, "provider": "none", **more})
    several = Settings.model_validate({"home": settings.home, "agents": made})
    started = ServedAgents(several, pending=QuietHealth(), inbox=None)
    with capture_logs() as logs:
        started.warm_up()
    started.close()
    [line] = [log for log in logs if log["event"] == "memory_warmed_up"]
    assert (line["log_level"], line["agents"]) == ("warning", 3)
    assert line["not_well"].keys() == {"missing-backend", "no-model"}
    assert "'nonsense'" in line["not_well"]["missing-backend"]
    assert "no-such-model.gguf" in line["not_well"]["no-model"]


def test_a_backend_updates_its_index_when_that_of_recalld_changed(several: Settings, tmp_path: Path) -> None:
    """A look at the indexes, which the service takes every half minute, finds the change."""
    command, asked = tmp_path / "qmd", tmp_path / "asked"
    command.write_text(f"#!/bin/sh\necho $1 >> {asked}\n")
    command.chmod(0o700)
    qmd = {"backend": "qmd", "qmd": {"command": str(command), "update": {"debounce_seconds": 0}}}
    agents = [{**agent.model_dump(), **qmd} for agent in several.agents]
    served = ServedAgents(
        Settings.model_validate({"home": several.home, "agents": agents}), pending=QuietHealth(), inbox=None
    )

    def updates() -> int:
        return asked.read_text().split().count("update") if asked.exists() else 0

    try:
        served.look_around()
        served.look_around()
        assert updates() == 0, "nothing changed, and no backend was needed yet"
        served.memory("ada")
        wait_until(lambda: updates() == 1)
        (several.agent("ada").workspace / "memory" / "new.md").write_text("A new note.\n", "utf-8")
        write_index(several, "ada").close()
        served.look_around()
        wait_until(lambda: updates() == 2)
    finally:
        served.close()


def test_a_backend_that_fails_makes_its_agent_not_ok(settings: Settings) -> None:
    write_index(settings).close()
    failing = with_agent(settings, backend="qmd", qmd={"problem": "qmd.command is 3"})
    served = ServedAgents(failing, pending=QuietHealth(), inbox=None)
    status = served.status(["main"], deep=False)
    served.close()
    assert not status.ok
    troubles = {trouble.code: trouble.params.get("reason") for trouble in status.agents[0].troubles}
    assert troubles[ConditionCode.BACKEND_FAILS] == "qmd.command is 3"


def test_agents_of_a_fleet_are_opened_when_asked_for_and_with_their_present_settings(settings: Settings):
    main = settings.agents[0]
    rows = {name: main.model_copy(update={"id": name}) for name in ("acme/anna", "acme/bob")}
    opened: list[str] = []
    broken = {"acme/bob"}

    def serve(agent: AgentSettings) -> ServedAgent:
        opened.append(agent.id)
        view = settings.model_copy(update={"agents": (agent,)})
        return ServedAgent(agent, None if agent.id in broken else get_search_manager(view, agent.id)[0], None)

    away = ServedAgent(main, None, "away")
    agents = FleetAgents(SimpleNamespace(agent=rows.__getitem__), serve, away)
    assert opened == []
    assert agents.open("acme/anna") is agents["acme/anna"] is agents.open("acme/anna")
    assert (opened, agents[STORE_AWAY]) == (["acme/anna"], away)
    rows["acme/anna"] = rows["acme/anna"].model_copy(update={"citations": "off"})
    assert agents.open("acme/anna").settings.citations == "off"
    with pytest.raises(KeyError):
        agents.open("acme/carl")
    # The store went away in the middle of opening it.
    assert agents.open("acme/bob").manager is None
    broken.clear()
    assert agents.open("acme/bob").manager is not None
    for number in range(MOST_SERVED):
        rows[f"acme/{number}"] = main.model_copy(update={"enabled": False, "id": f"acme/{number}"})
        agents.open(f"acme/{number}")
    assert len(agents) == MOST_SERVED
    assert "acme/anna" not in agents
