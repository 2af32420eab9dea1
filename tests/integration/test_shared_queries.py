"""Queries and indexing share an account: over HTTP, with a real Valkey between them."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from memory.chunking.chunker import text_hash
from memory.embedding.selection import choose_provider
from memory.embedding.supply import EmbeddingSupply
from schemas.documents import Lane
from schemas.settings import Settings
from tests.embedding_server import EmbeddingServer, Failure
from tests.serving import running, search
from tests.waiting import wait_until
from tests.working import asking
from tests.written_index import write_index
from workers.claims import BrokerCoordination, coordinating
from workers.health.health_store import HealthStore
from workers.queue.private_server import BrokerServer


@pytest.fixture
def remote(settings: Settings, workspace: Path, server: EmbeddingServer) -> Settings:
    """One agent that embeds with an OpenAI-compatible endpoint, and its index."""
    (workspace / "memory" / "friday.md").write_text("The dentist appointment moved to nine.\n", "utf-8")
    made = asking(settings, server.url)
    write_index(made).close()
    return made


@pytest.fixture
def indexing(remote: Settings, broker_server: BrokerServer) -> Iterator[BrokerCoordination]:
    """Return the objects that a worker process shares with the service."""
    with coordinating(remote) as coordination:
        yield coordination


@pytest.fixture
def serving(remote: Settings, broker_server: BrokerServer) -> Iterator[BrokerCoordination]:
    with coordinating(remote) as coordination:
        yield coordination


@pytest.fixture
def http(remote: Settings, serving: BrokerCoordination, health: HealthStore) -> Iterator[httpx.Client]:
    """The service, a process of its own as far as the broker can tell."""
    with running(remote, health, coordinate=serving) as client:
        wait_until(lambda: search(client, "warm up")["mode"] == "hybrid")
        yield client


@pytest.fixture
def health(client: Any, keys: Any) -> HealthStore:
    return HealthStore(client, keys)


def supply_of(settings: Settings, coordination: BrokerCoordination) -> EmbeddingSupply:
    provider = choose_provider(settings.agents[0], settings.credentials).provider
    return EmbeddingSupply(provider, None, coordinate=coordination)


def texts(*found: str) -> dict[str, str]:
    return {text_hash(text): text for text in found}


def told(answer: dict[str, Any]) -> str:
    return " ".join(answer["degraded"])


def test_a_query_is_answered_while_four_slow_batches_are_in_flight(
    remote: Settings, http: httpx.Client, server: EmbeddingServer, indexing: BrokerCoordination
) -> None:
    assert remote.agents[0].remote.concurrency == 4
    supply = supply_of(remote, indexing)
    before = server.requests
    answered = threading.Event()
    server.fail_next(Failure(held_until=answered), times=4)
    tickets = []
    for number in range(4):
        tickets.append(supply.batcher.submit(texts(f"batch {number}"), lane=Lane.LIVE, agent="main"))
        wait_until(lambda number=number: server.requests == before + number + 1)
    waiting = supply.batcher.submit(texts("behind them"), lane=Lane.LIVE, agent="main")
    answer = search(http, "when is the dentist")
    assert server.most_in_flight == 5
    assert answer["mode"] == "hybrid"
    assert answer["results"][0]["path"] == "memory/friday.md"
    assert not any(ticket.wait(0) for ticket in [*tickets, waiting])
    answered.set()
    supply.close()


def test_while_a_batch_was_told_to_wait_queries_send_nothing_and_say_so(
    remote: Settings, http: httpx.Client, server: EmbeddingServer, indexing: BrokerCoordination
) -> None:
    supply = supply_of(remote, indexing)
    server.fail_next(Failure(status=429, headers={"Retry-After": "300"}))
    ticket = supply.batcher.submit(texts("a text"), lane=Lane.BACKFILL, agent="main")
    assert ticket.wait(60)
    sent = server.requests
    wait_until(lambda: "asked to wait" in told(search(http, "dentist appointment")))
    for number in range(5):
        answer = search(http, f"dentist appointment {number}")
        assert answer["mode"] == "keyword"
        assert answer["results"][0]["path"] == "memory/friday.md"
        assert re.search(r"openai .* (300|2\d\d) s", told(answer))
    assert server.requests == sent
    status = http.get("/v1/status").json()["agents"][0]
    assert status["endpoint"]["condition"] == "cooling down"
    assert status["endpoint"]["until"] == pytest.approx(time.time() + 300, abs=60)
    supply.close()


def test_a_query_s_refused_key_stops_indexing_and_is_said_in_status_and_metrics(
    remote: Settings, http: httpx.Client, server: EmbeddingServer, indexing: BrokerCoordination
) -> None:
    server.key = "another"
    assert "refused" in told(search(http, "dentist appointment"))
    sent = server.requests
    supply = supply_of(remote, indexing)
    ticket = supply.batcher.submit(texts("a text"), lane=Lane.BACKFILL, agent="main")
    assert ticket.wait(60)
    assert "refused" in str(ticket.error())
    assert "refused" in told(search(http, "another question"))
    assert server.requests == sent
    status = http.get("/v1/status").json()
    assert status["ok"] is False
    agent = status["agents"][0]
    assert agent["endpoint"]["condition"] == "stopped"
    assert agent["endpoint"]["reason"] in {trouble["params"].get("error") for trouble in agent["troubles"]}
    assert "a-secret-key" not in str(status)
    metrics = http.get("/metrics").text
    model = 'provider="openai"'
    assert re.search(rf'recalld_embedding_endpoint{{agent="main",model="[^"]*",{model},state="stopped"}} 1.0', metrics)
    assert re.search(rf'recalld_embedding_endpoint{{agent="main",model="[^"]*",{model},state="ok"}} 0.0', metrics)
    supply.close()
