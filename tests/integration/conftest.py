"""Fixtures that several of these tests share: an embedding endpoint, commands, short pauses, two agents."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dramatiq
import httpx
import pytest

from memory.store.postgres.administration import Administration
from memory.store.postgres.connection import Database
from schemas.settings import Settings
from tests.commanding import CommandLine, command_line
from tests.embedding_server import EmbeddingServer
from tests.serving import indexed_and_running
from tests.written_index import with_agents, write_index
from workers.queue.broker import DoorbellBroker


@pytest.fixture
def server() -> Iterator[EmbeddingServer]:
    """An endpoint that embeds and counts."""
    with EmbeddingServer() as running:
        yield running


FRIDAY = "# Friday\n\nThe dentist appointment moved to nine.\nBring the insurance card. 带上保险卡。\n"


@pytest.fixture
def notes(workspace: Path) -> Path:
    """A workspace with three notes."""
    (workspace / "MEMORY.md").write_text("The build server is called Basalt.\n", "utf-8")
    (workspace / "memory" / "friday.md").write_text(FRIDAY, "utf-8")
    (workspace / "memory" / "zh.md").write_text("我们决定周五迁移数据库。\n", "utf-8")
    return workspace


@pytest.fixture
def service(settings: Settings, notes: Path) -> Iterator[httpx.Client]:
    """A client of a service that has the index of these notes."""
    with indexed_and_running(settings) as client:
        yield client


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
def fleet(database: Database) -> Administration:
    """A fleet of two tenants: acme with anna and bob, umbrella with eve."""
    fleet = Administration(database, actor="root")
    for tenant, agents in (("acme", ("anna", "bob")), ("umbrella", ("eve",))):
        fleet.add_tenant(tenant)
        for agent in agents:
            fleet.add_agent(tenant, agent)
    return fleet


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float]]:
    """List the pauses asked for messages, as (actor, seconds). They last a tenth of a second."""
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
def two_agents(settings: Settings) -> Settings:
    """ada and bob, each with a workspace and an index of one note."""
    both = with_agents(settings, "ada", "bob")
    for agent in both.agents:
        write_index(both, agent.id)
    return both
