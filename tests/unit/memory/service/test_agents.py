"""What a service knows of all its agents, and what finding out costs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from memory.index.generations import Generations
from memory.service.agents import ServedAgents
from memory.service.metrics import ServiceMetrics
from schemas.search import SearchRequest
from schemas.settings import Settings
from tests.quiet_board import QuietBoard
from tests.waiting import wait_until
from tests.written_index import write_index

NAMES = ("ada", "bob", "eve", "joe")


@pytest.fixture
def several(settings: Settings, tmp_path: Path) -> Settings:
    """Four agents with an index each, unchanged for an hour."""
    made = []
    for name in NAMES:
        folder = tmp_path / name
        (folder / "memory").mkdir(parents=True)
        (folder / "memory" / "note.md").write_text(f"The card of {name} is blue.\n", "utf-8")
        made.append(settings.agents[0].model_copy(update={"id": name, "workspace": folder}))
    several = settings.model_copy(update={"agents": tuple(made)})
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


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The agents whose index was opened, in turn."""
    names: list[str] = []
    open_reader = Generations.open_reader

    def counted(self: Generations):
        names.append(self.folder.name)
        return open_reader(self)

    monkeypatch.setattr(Generations, "open_reader", counted)
    return names


def chunks(agents: ServedAgents) -> list[int | None]:
    """Counts of the probes."""
    probes = [one.probe for one in agents.probed(NAMES)]
    return [probe.counts.chunks if probe is not None and probe.counts is not None else None for probe in probes]


def test_readiness_and_metrics_open_an_index_once_and_after_a_change(
    several: Settings, agents: ServedAgents, opened: list[str]
):
    for _ in range(3):
        agents.look_around()
        assert agents.not_ready() is None
        assert chunks(agents) == [1, 1, 1, 1]
    assert opened == list(NAMES)
    assert len(agents.resources.open_readers) == 0

    (several.agents[1].workspace / "memory" / "more.md").write_text("Another card.\n", "utf-8")
    write_index(several, "bob").close()
    assert chunks(agents) == [1, 2, 1, 1]
    assert opened == [*NAMES, "bob"]


def test_a_damaged_index_among_many_is_named_and_its_figures_are_unknown(several: Settings, agents: ServedAgents):
    folder = several.indexes_path / "eve"
    index = folder / (folder / "CURRENT").read_text().strip()
    sound = index.read_bytes()
    index.write_bytes(b"no database" * 5_000)
    assert str(agents.not_ready()).startswith("eve: ")
    assert chunks(agents) == [1, 1, None, 1]
    index.write_bytes(sound)
    assert agents.not_ready() is None


def test_a_status_tells_sizes_of_the_home_as_the_background_found_them(several: Settings, agents: ServedAgents):
    (several.home / "log").mkdir(parents=True)
    before = agents.status(NAMES[:1], deep=False).disk_use
    (several.home / "log" / "work.log").write_bytes(b"x" * 1_000)
    assert agents.status(NAMES[:1], deep=False).disk_use == before
    agents.look_around()
    assert agents.status(NAMES[:1], deep=False).disk_use.log == before.log + 1_000


def test_metrics_count_answers_from_the_cache_and_open_indexes(agents: ServedAgents):
    manager = agents.served["ada"].manager
    assert manager is not None
    wait_until(lambda: manager.search(SearchRequest(query="warm up")).mode == "hybrid")
    for _ in range(3):
        assert manager.search(SearchRequest(query="which card")).results
    text = ServiceMetrics(agents).scrape(()).decode()
    assert 'recalld_cached_answers_total{outcome="hit"} 2.0' in text
    assert "recalld_open_indexes 1.0" in text
    assert float(text.rpartition("recalld_cached_answers_bytes ")[2].split()[0]) > 500
