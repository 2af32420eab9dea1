"""Knowledge of a service about all its agents, and the costs of getting it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from memory.service.agents import ServedAgents
from schemas.settings import Settings
from tests.quiet_board import QuietBoard
from tests.written_index import with_agents, write_index

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
    made = ServedAgents(several, pending=QuietBoard(), inbox=None)
    yield made
    made.close()


def chunks(agents: ServedAgents) -> list[int | None]:
    """Counts of the probes."""
    probes = [one.probe for one in agents.probed(NAMES)]
    return [probe.counts.chunks if probe is not None and probe.counts is not None else None for probe in probes]


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
    started = ServedAgents(several, pending=QuietBoard(), inbox=None)
    with capture_logs() as logs:
        started.warm_up()
    started.close()
    [line] = [log for log in logs if log["event"] == "memory_warmed_up"]
    assert (line["log_level"], line["agents"]) == ("warning", 3)
    assert line["not_well"].keys() == {"missing-backend", "no-model"}
    assert "'nonsense'" in line["not_well"]["missing-backend"]
    assert "no-such-model.gguf" in line["not_well"]["no-model"]
