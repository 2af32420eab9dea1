"""Workers of a fleet: any number of homes, one queue, one store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
import structlog

from memory.index.generations import Generations
from memory.status.condition_texts import text_of
from memory.store.postgres.arrivals import ArrivingDocuments, Extent, Part, running_digest
from memory.store.postgres.connection import Database
from memory.store.postgres.directory import FleetDirectory
from memory.store.reader import StoreReader
from memory.transcripts.lines import packed
from recalld.up.lifecycle import running_broker
from schemas.agents import Scope
from schemas.conditions import ConditionCode
from schemas.documents import DocumentKey, Lane
from schemas.errors import UserError
from schemas.ports import Usage
from schemas.settings import Settings
from schemas.settings.sync import Sync
from tests.embedding_server import EmbeddingServer
from tests.postgres_server import PostgresServer, Urls
from tests.waiting import Clock, wait_until
from tests.working import Workers
from workers import maintenance
from workers.health.health_store import HealthStore
from workers.index_job import CLAIM
from workers.maintenance import Housekeeping
from workers.queue import broker as queue_broker
from workers.queue.broker import make_broker, message
from workers.queue.connection import BrokerClient, connect, namespace
from workers.queue.counters import today_utc
from workers.queue.job_queue import BrokerJobQueue, queued_jobs
from workers.queue.names import INDEX_PENDING, JOB_SCHEMA, SCHEMA, Keys
from workers.queue.pending import PendingSet
from workers.runtime import Runtime, Timing

ANNA = "acme/anna"


class Fleet:
    """Rows of a fleet's store, as commands and the door write them."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def add(self, *agents: str) -> None:
        """Add agents, and their tenants."""
        for scope in map(Scope.of, agents):
            with self.database.transaction(scope) as connection:
                connection.execute("INSERT INTO recalld.tenants VALUES (%s) ON CONFLICT DO NOTHING", (scope.tenant,))
                names = (scope.tenant, scope.agent)
                connection.execute("INSERT INTO recalld.agents VALUES (%s, %s) ON CONFLICT DO NOTHING", names)

    def run(self, statement: str, tenant: str) -> None:
        """Run a statement with the rights of a writer."""
        with self.database.transaction(tenant) as connection:
            connection.execute(statement.encode())

    def arrive(self, agent: str, path: str, text: str) -> DocumentKey:
        """Take a note as the door does, without a mark."""
        note, content = DocumentKey("memory", path), text.encode()
        digest = running_digest("", content)
        part = Part(Extent(), len(content), digest, packed(content), len(content), is_last=True)
        ArrivingDocuments(self.database, Scope.of(agent)).add("laptop", note, part)
        return note


class FleetWorkers(Workers):
    """Workers whose agents are rows."""

    def finds(self, word: str, agent: str = ANNA) -> bool:
        return super().finds(word, agent)

    @contextmanager
    def reading(self, agent: str) -> Iterator[StoreReader | None]:
        reader = Generations.of(self.settings, agent).open_reader()
        yield reader
        if reader is not None:
            reader.close()


@pytest.fixture
def fleet(database: Database) -> Fleet:
    fleet = Fleet(database)
    fleet.add(ANNA)
    return fleet


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


def test_the_owner_alone_compares_and_at_once_after_a_loss(fleet: Fleet, of_fleet: Settings, tmp_path: Path) -> None:
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

        note = fleet.arrive(ANNA, "memory/a.md", "The bittern booms at night.\n")
        with connect(of_fleet) as client:
            keys = Keys(namespace(of_fleet))
            BrokerJobQueue(client, keys).mark_changed(ANNA, [note], lane=Lane.LIVE)

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
            lanes = [job.arguments[1:] for job in queued_jobs(client, keys) if job.agent == ANNA]
            assert lanes == [(Lane.LIVE,)], "what is marked already needs no other job"
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


def order_of_fetching(client: BrokerClient, keys: Keys, count: int) -> list[str]:
    """Return the agents of the next messages of the live lane, in the order in which one worker takes them."""
    broker = make_broker(client, keys)
    consumer = broker.consume(Lane.LIVE, prefetch=1)
    agents = []
    while len(agents) < count:
        job = next(consumer)
        if job is not None:
            agents.append(str(job.args[0]))
            consumer.ack(job)
    return agents


def test_tenants_take_turns_however_many_agents_each_has(client: BrokerClient, keys: Keys) -> None:
    queue, document = BrokerJobQueue(client, keys), [DocumentKey("memory", "memory/a.md")]
    for number in range(20):
        queue.mark_changed(f"acme/agent{number:02}", document, lane=Lane.LIVE)
    for agent in ("small/one", "other/one", "other/two"):
        queue.mark_changed(agent, document, lane=Lane.LIVE)
    queue.mark_changed("acme/agent00", document, lane=Lane.LIVE)
    waiting = queued_jobs(client, keys)
    assert (len(waiting), {job.state for job in waiting}) == (23, {"waiting"})
    agents = order_of_fetching(client, keys, 23)
    assert agents[:6] == ["acme/agent00", "small/one", "other/one", "acme/agent01", "other/two", "acme/agent02"]
    assert agents[6:] == [f"acme/agent{number:02}" for number in range(3, 20)]
    queue.mark_changed("acme/agent00", document, lane=Lane.BACKFILL)
    assert not client.keys(f"{keys.queue(Lane.LIVE)}.turns.*")


def test_a_document_of_a_small_tenant_does_not_wait_for_a_large_one(fleet: Fleet, of_fleet: Settings) -> None:
    crowd = [f"acme/agent{number:03}" for number in range(200)]
    fleet.add(*crowd, "small/one")
    with FleetWorkers(of_fleet) as workers:
        workers.stop()
        for agent in crowd:
            note = fleet.arrive(agent, "memory/a.md", f"The heron of {agent} stands in the reeds.\n")
            workers.queue.mark_changed(agent, [note], lane=Lane.LIVE)
        note = fleet.arrive("small/one", "memory/b.md", "The bittern booms at night.\n")
        workers.queue.mark_changed("small/one", [note], lane=Lane.LIVE)
        workers.start()
        wait_until(lambda: workers.settled("small/one"))
        assert sum(not workers.settled(agent) for agent in crowd) > 150
        assert workers.finds("bittern", "small/one")


@pytest.mark.parametrize(("weight", "goes_first"), [(1.0, True), (1e-9, False)], ids=["whole", "tiny"])
def test_the_turn_of_a_tenant_is_as_long_as_its_weight_says(
    fleet: Fleet, of_fleet: Settings, weight: float, *, goes_first: bool
) -> None:
    fleet.add("small/one")
    fleet.run(f"UPDATE recalld.tenants SET weight = {weight} WHERE tenant = 'acme'", "acme")
    one_thread = of_fleet.model_copy(update={"workers": of_fleet.workers.model_copy(update={"threads": 1})})
    timing = Timing(turn=1000.0, shared_turn=1000.0)
    with structlog.testing.capture_logs() as logs, FleetWorkers(one_thread, timing=timing) as workers:
        workers.stop()
        notes = [fleet.arrive(ANNA, f"memory/{number}.md", f"Heron {number} stands.\n") for number in range(CLAIM + 1)]
        workers.queue.mark_changed(ANNA, notes, lane=Lane.LIVE)
        note = fleet.arrive("small/one", "memory/b.md", "The bittern booms at night.\n")
        workers.queue.mark_changed("small/one", [note], lane=Lane.LIVE)
        workers.start()
        wait_until(lambda: workers.settled(ANNA) and workers.settled("small/one"))
    # A later commit may bring nothing but vectors.
    jobs = [log["agent"] for log in logs if log["event"] == "documents_indexed" and log["added"]]
    assert jobs == ([ANNA, "small/one"] if goes_first else [ANNA, "small/one", ANNA])


def test_a_share_is_that_of_the_agent_and_of_its_tenant(fleet: Fleet, of_fleet: Settings) -> None:
    fleet.add("small/one")
    fleet.run("UPDATE recalld.tenants SET weight = 3 WHERE tenant = 'acme'", "acme")
    fleet.run("UPDATE recalld.agents SET weight = 0.5 WHERE agent = 'anna'", "acme")
    directory = FleetDirectory.of(of_fleet)
    weights = [directory.share(agent).weight for agent in (ANNA, "acme/unknown", "small/one", "main")]
    assert weights == [1.5, 3.0, 1.0, 1.0]


@pytest.mark.long
def test_beyond_the_tokens_of_a_day_documents_wait_for_vectors(
    fleet: Fleet, of_fleet: Settings, server: EmbeddingServer, pauses: list[tuple[str, float]]
) -> None:
    fleet.add("small/one")
    provider = {"provider": "openai", "remote": {"base_url": server.url, "api_key": "a-secret-key"}}
    settings = Settings.model_validate({**of_fleet.model_dump(), **provider})
    with FleetWorkers(settings) as workers:

        def index(agent: str, path: str, text: str) -> None:
            workers.queue.mark_changed(agent, [fleet.arrive(agent, path, text)], lane=Lane.LIVE)
            wait_until(lambda: workers.settled(agent))

        yesterday = today_utc() - timedelta(days=1)
        spent = Usage("openai", "model", tokens=10**6)
        workers.health.counters.record_usage(spent, agents={ANNA: spent}, on=yesterday)
        fleet.run("UPDATE recalld.tenants SET tokens_a_day = 10 WHERE tenant = 'acme'", "acme")
        index(ANNA, "memory/a.md", "The heron stands in the reeds of the lake, early on a cold morning in May.\n")
        # The tokens of yesterday do not count.
        wait_until(lambda: workers.counts(ANNA).vectors_ready == 1)
        index(ANNA, "memory/b.md", "The bittern booms at night.\n")
        wait_until(lambda: ConditionCode.BUDGET_SPENT in workers.conditions(ANNA))
        assert (workers.counts(ANNA).vectors_pending, workers.finds("bittern")) == (1, True)
        sentence = text_of(workers.conditions(ANNA)[ConditionCode.BUDGET_SPENT])
        assert sentence.startswith("the 10 tokens of today (UTC) are used up; vectors follow tomorrow")
        sent = server.requests
        index("small/one", "memory/c.md", "The egret wades.\n")
        wait_until(lambda: workers.counts("small/one").vectors_ready == 1)
        assert server.requests == sent + 1, "the other tenant goes on, and the first one has asked for nothing"

        fleet.run("UPDATE recalld.tenants SET tokens_a_day = NULL WHERE tenant = 'acme'", "acme")
        wait_until(lambda: workers.counts(ANNA).vectors_ready == 2)
        wait_until(lambda: ConditionCode.BUDGET_SPENT not in workers.conditions(ANNA))
