"""Workers of a fleet: any number of homes, one queue, one store."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import structlog

from memory.index.generations import Generations
from memory.store.postgres.arrivals import ArrivingDocuments, Extent, Part, running_digest
from memory.store.postgres.connection import Database
from memory.store.reader import StoreReader
from recalld.up.lifecycle import running_broker
from schemas.agents import Scope
from schemas.documents import DocumentKey, Lane
from schemas.errors import UserError
from schemas.settings import Settings
from schemas.settings.sync import Sync
from tests.postgres_server import PostgresServer, Urls
from tests.waiting import Clock, wait_until
from tests.working import Workers
from workers import maintenance
from workers.health.health_store import HealthStore
from workers.maintenance import Housekeeping
from workers.queue import broker as queue_broker
from workers.queue.broker import make_broker, message
from workers.queue.connection import connect, namespace
from workers.queue.job_queue import BrokerJobQueue, queued_jobs
from workers.queue.names import INDEX_PENDING, JOB_SCHEMA, SCHEMA, Keys
from workers.queue.pending import PendingSet
from workers.runtime import Runtime

if sys.version_info >= (3, 14):
    from compression.zstd import compress
else:
    from backports.zstd import compress

ANNA = "acme/anna"


class Fleet:
    """Rows of a fleet's store, as commands and the door write them."""

    def __init__(self, urls: Urls) -> None:
        self.urls = urls
        self.database = Database(urls.writer)

    def add(self, *agents: str) -> None:
        """Add agents, and their tenants."""
        for scope in map(Scope.of, agents):
            with self.database.transaction(scope) as connection:
                connection.execute("INSERT INTO recalld.tenants VALUES (%s) ON CONFLICT DO NOTHING", (scope.tenant,))
                names = (scope.tenant, scope.agent)
                connection.execute("INSERT INTO recalld.agents VALUES (%s, %s) ON CONFLICT DO NOTHING", names)

    def arrive(self, agent: str, path: str, text: str) -> DocumentKey:
        """Take a note as the door does, without a mark."""
        note, content = DocumentKey("memory", path), text.encode()
        digest = running_digest("", content)
        part = Part(Extent(), len(content), digest, compress(content), len(content), is_last=True)
        ArrivingDocuments(self.database, Scope.of(agent)).add("laptop", note, part)
        return note


class FleetWorkers(Workers):
    """Workers whose agents are rows."""

    def finds(self, word: str, agent: str = ANNA) -> bool:
        reader = self.reader(agent)
        if reader is None:
            return False
        try:
            return bool(reader.search_text(word, 5))
        finally:
            reader.close()

    def reader(self, agent: str) -> StoreReader | None:
        return Generations.of(self.settings, agent).open_reader()


@pytest.fixture
def fleet(fleet_urls: Urls) -> Iterator[Fleet]:
    fleet = Fleet(fleet_urls)
    fleet.add(ANNA)
    yield fleet
    fleet.database.close()


@pytest.fixture
def of_fleet(home: Path, fleet_urls: Urls, redis_url: str) -> Settings:
    """Settings of a machine of the fleet."""
    return machine(home, fleet_urls.writer, redis_url)


def machine(home: Path, store: str, broker: str | None) -> Settings:
    return Settings.model_validate(
        {"home": home, "provider": "stub", "store": {"url": store}, "broker": {"url": broker}}
    )


def test_workers_of_several_homes_share_a_queue(fleet: Fleet, of_fleet: Settings, tmp_path: Path) -> None:
    other = of_fleet.model_copy(update={"home": tmp_path / "other"})
    other.home.mkdir()
    with FleetWorkers(of_fleet) as first, FleetWorkers(other) as second:
        assert first.keys.prefix == second.keys.prefix
        assert len(first.health.processes()) == 2, "each shows itself by its heartbeat"
        note = fleet.arrive(ANNA, "memory/a.md", "The heron stands in the reeds.\n")
        first.queue.mark_changed(ANNA, [note], lane=Lane.LIVE)
        wait_until(lambda: first.finds("heron") or second.finds("heron"))
        wait_until(lambda: first.settled(ANNA))


def test_the_queue_of_a_fleet_is_that_of_its_database_by_any_address(
    home: Path, fleet_urls: Urls, redis_url: str, tmp_path: Path
) -> None:
    pooled = fleet_urls.reader.replace("127.0.0.1", "localhost")
    names = {
        namespace(machine(home, fleet_urls.writer, redis_url)),
        namespace(machine(tmp_path / "elsewhere", pooled, redis_url)),
    }
    assert len(names) == 1
    assert names.pop().startswith("fleet-")
    assert not (home / "namespace").exists()


def test_another_database_has_another_queue(
    postgres_server: PostgresServer, fleet_urls: Urls, home: Path, redis_url: str
) -> None:
    copies = (fleet_urls, postgres_server.database())
    assert len({namespace(machine(home, urls.writer, redis_url)) for urls in copies}) == 2


def test_a_fleet_without_a_broker_is_refused_in_one_sentence(home: Path, fleet_urls: Urls) -> None:
    settings = machine(home, fleet_urls.writer, None)
    sentence = r"^with store.url .* set broker.url \(or REDIS_URL\), too$"
    with pytest.raises(UserError, match=sentence), running_broker(settings):
        pass


def marks(fleet: Settings, agent: str) -> int:
    with connect(fleet) as client:
        return PendingSet(client, Keys(namespace(fleet))).pending(agent).documents


@contextmanager
def housekeeping(settings: Settings, clock: Clock) -> Iterator[Housekeeping]:
    """Housekeeping of one worker process."""
    with connect(settings) as client:
        keys = Keys(namespace(settings))
        runtime = Runtime(settings, BrokerJobQueue(client, keys), HealthStore(client, keys))
        yield Housekeeping(runtime, stopping=lambda: False, clock=clock)
        runtime.close()


def test_content_without_marks_is_found_again_after_the_broker_lost_all(
    fleet: Fleet, of_fleet: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "SWEEP_SECONDS", 0.2)
    monkeypatch.setattr(maintenance, "HOUSEKEEPING_SECONDS", 0.2)
    quick = of_fleet.model_copy(update={"sync": Sync(interval_minutes=0.001)})
    with FleetWorkers(quick) as workers:
        fleet.arrive(ANNA, "memory/a.md", "The heron stands in the reeds.\n")
        workers.client.flushall()
        wait_until(lambda: workers.finds("heron"))


def test_the_owner_alone_compares_at_intervals_and_when_the_broker_lost_its_data(
    fleet: Fleet, of_fleet: Settings, tmp_path: Path
) -> None:
    clock, agents = Clock(), [f"acme/agent{number}" for number in range(3)]
    fleet.add(*agents)
    other = of_fleet.model_copy(update={"home": tmp_path / "other"})
    with housekeeping(of_fleet, clock) as owner, housekeeping(other, clock) as second:
        assert list(owner.agents(begins=True)) == [*agents, ANNA]
        for agent in agents:
            fleet.arrive(agent, "memory/a.md", "The heron stands in the reeds.\n")
        assert list(second.agents(begins=True)) == []
        assert list(owner.agents(begins=True)) == [*agents, ANNA]
        assert [marks(of_fleet, agent) for agent in agents] == [0, 0, 0], "it is not time yet"

        clock.now += 15 * 60
        first = owner.agents(begins=True)
        assert next(first) == agents[0]
        assert next(first) == agents[1]
        clock.now += maintenance.ROUND_SECONDS
        assert list(first) == [], "the queue is swept meanwhile"
        assert [marks(of_fleet, agent) for agent in agents] == [1, 0, 0]
        assert list(owner.agents(begins=False)) == [agents[2], ANNA], "the next call goes on"
        assert [marks(of_fleet, agent) for agent in agents] == [1, 1, 1]

        with connect(of_fleet) as client:
            client.flushall()
        assert list(owner.agents(begins=False)) == [*agents, ANNA]
        assert [marks(of_fleet, agent) for agent in agents] == [1, 1, 1]


def test_a_job_of_a_later_version_is_left_to_other_workers(
    settings: Settings, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_broker, "LEFT_SECONDS", 0.05)
    named = Settings.model_validate({**settings.model_dump(), "broker": {"url": redis_url, "namespace": "team"}})
    with structlog.testing.capture_logs() as logs, Workers(named) as workers:
        broker = make_broker(workers.client, workers.keys)
        later = message(INDEX_PENDING, Lane.LIVE, "main", Lane.LIVE).copy(options={SCHEMA: JOB_SCHEMA + 1})
        stranger = message("dance", Lane.BACKFILL, "main").copy(options={SCHEMA: JOB_SCHEMA + 1})
        broker.enqueue(later)
        broker.enqueue(stranger)
        seen: set[tuple[str, str]] = set()

        def came_back() -> bool:
            jobs = {job.id: job for job in queued_jobs(workers.client, workers.keys)}
            seen.update((job.id, job.state) for job in jobs.values())
            return {(later.message_id, "waiting"), (later.message_id, "delayed")} <= seen

        wait_until(came_back)
        workers.index("memory/a.md", "The heron stands in the reeds.\n")
        ids = {job.id for job in queued_jobs(workers.client, workers.keys)}
        assert {later.message_id, stranger.message_id} <= ids
    assert [entry["schema"] for entry in logs if entry["event"] == "jobs_left_to_later_version"] == [JOB_SCHEMA + 1]


def test_a_job_without_a_version_is_done(settings: Settings, redis_url: str) -> None:
    named = Settings.model_validate({**settings.model_dump(), "broker": {"url": redis_url, "namespace": "team"}})
    with Workers(named) as workers:
        workers.write("memory/a.md", "The heron stands in the reeds.\n")
        workers.queue.pending_set.mark("main", [DocumentKey("memory", "memory/a.md")], lane=Lane.LIVE, now=1.0)
        early = message(INDEX_PENDING, Lane.LIVE, "main", Lane.LIVE)
        del early.options[SCHEMA]
        make_broker(workers.client, workers.keys).enqueue(early)
        wait_until(workers.complete)
