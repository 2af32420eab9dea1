"""Fixtures that several of these tests share: an embedding endpoint, commands, short pauses, two agents."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dramatiq
import pytest

from schemas.settings import Settings
from tests.commanding import CommandLine, command_line
from tests.embedding_server import EmbeddingServer
from tests.written_index import write_index
from workers.queue.broker import DoorbellBroker


@pytest.fixture
def server() -> Iterator[EmbeddingServer]:
    """An endpoint that embeds and counts."""
    with EmbeddingServer() as running:
        yield running


@pytest.fixture
def commands(
    home: Path,
    workspace: Path,
    server: EmbeddingServer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[CommandLine]:
    """Commands in this process, for one agent that embeds with the server."""
    yield from command_line(home, workspace, server, capsys, monkeypatch)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float]]:
    """What messages were to wait before they come back: (actor, seconds). They wait a tenth of a second."""
    asked: list[tuple[str, float]] = []
    enqueue = DoorbellBroker.enqueue

    def soon(broker: DoorbellBroker, message: dramatiq.Message[Any], *, delay: int | None = None) -> Any:
        if delay is not None:
            asked.append((message.actor_name, delay / 1000))
            delay = min(delay, 100)
        return enqueue(broker, message, delay=delay)

    monkeypatch.setattr(DoorbellBroker, "enqueue", soon)
    return asked


@pytest.fixture
def two_agents(settings: Settings, tmp_path: Path) -> Settings:
    """ada and bob, each with a workspace and an index of one note."""
    agents = []
    for name in ("ada", "bob"):
        folder = tmp_path / name
        (folder / "memory").mkdir(parents=True)
        (folder / "memory" / "note.md").write_text(f"The password of {name} is on the blue card.\n", "utf-8")
        agents.append(settings.agents[0].model_copy(update={"id": name, "workspace": folder}))
    both = settings.model_copy(update={"agents": tuple(agents)})
    for agent in both.agents:
        write_index(both, agent.id)
    return both
