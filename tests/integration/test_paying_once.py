"""Processes that want the same vectors at once pay for them once: a real cache, Valkey and HTTP server."""

from __future__ import annotations

import itertools
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TypeVar

import pytest
import redis
import structlog

from memory.chunking.chunker import text_hash
from memory.embedding.cache import KIND, EmbeddingCache
from memory.embedding.providers.endpoint import Endpoint
from memory.embedding.providers.openai import OpenAIProvider
from memory.embedding.providers.provider import ProviderLimits
from memory.embedding.providers.stub import StubProvider
from memory.embedding.supply import EmbeddingSupply
from memory.store.durable_sqlite import DurableSqlite
from memory.store.durable_tables import Row, Rows, Run
from memory.store.errors import StoreAway
from schemas.documents import Lane
from schemas.errors import Throttled, Waiting
from schemas.settings import Settings
from tests.daemon import REPOSITORY
from tests.embedding_server import EmbeddingServer, Failure
from tests.storing import cache_at
from tests.waiting import wait_until
from workers.claims import KEPT_SECONDS, BrokerClaims, BrokerCoordination, Presence, coordinating
from workers.queue.connection import BrokerClient, connect
from workers.queue.names import Keys
from workers.queue.private_server import BrokerServer

T = TypeVar("T")

TEXTS = {text_hash(f"note {number}"): f"note {number}" for number in range(20)}


class Tables(DurableSqlite):
    """Tables of a cache that may be away."""

    is_away = is_unreadable = False

    def read(self, statement: str, row: Row) -> Rows:
        if self.is_unreadable:
            raise StoreAway("away")
        return super().read(statement, row)

    def transaction(self, work: Callable[[Run], T]) -> T:
        if self.is_away:
            raise StoreAway("away")
        return super().transaction(work)


def supply_of(
    settings: Settings, keys: Keys, url: str, client: redis.Redis, tables: DurableSqlite | None = None
) -> tuple[EmbeddingSupply, BrokerCoordination]:
    """Return the supply of one worker process."""
    limits = ProviderLimits(inputs=100, tokens=10_000, input_bytes=8000, concurrency=2, chunks_per_second=1000)
    endpoint = Endpoint(name="openai", model="m", base_url=url, api_key="k", key_name="KEY", limits=limits)
    provider = OpenAIProvider(endpoint)
    cache = settings.home / "cache" / "embeddings.sqlite"
    cache.parent.mkdir(parents=True, exist_ok=True)
    coordination = BrokerCoordination(client, keys, cache_scope="cache")
    opened = EmbeddingCache(tables) if tables is not None else cache_at(cache)
    return EmbeddingSupply(provider, opened, coordinate=coordination), coordination


def test_of_two_processes_that_want_the_same_texts_one_pays(
    settings: Settings, keys: Keys, client: redis.Redis, server: EmbeddingServer
) -> None:
    with ExitStack() as ending:
        supplies = []
        for _ in range(2):
            supply, coordination = supply_of(settings, keys, server.url, ending.enter_context(connect(settings)))
            ending.callback(coordination.close)
            ending.callback(supply.close)
            supplies.append(supply)
        server.fail_next(Failure(delay=0.3))
        tickets = [supply.batcher.submit(TEXTS, lane=Lane.LIVE, agent="main") for supply in supplies]
        assert all(ticket.wait(60) for ticket in tickets)
        assert [len(ticket.results()) for ticket in tickets] == [20, 20]
        assert server.inputs == server.distinct == 20


def test_what_the_store_could_not_take_yet_is_paid_by_no_other_process(
    settings: Settings, keys: Keys, client: redis.Redis, server: EmbeddingServer
) -> None:
    tables = Tables(settings.home / "cache" / "embeddings.sqlite", KIND)
    with ExitStack() as ending:
        first, coordination = supply_of(settings, keys, server.url, client, tables)
        other = supply_of(settings, keys, server.url, ending.enter_context(connect(settings)))
        for part in (coordination, first, *reversed(other)):
            ending.callback(part.close)
        tables.is_away = True
        assert first.batcher.submit(TEXTS, lane=Lane.LIVE, agent="main").wait(60)
        ticket = other[0].batcher.submit(TEXTS, lane=Lane.LIVE, agent="main")
        assert not ticket.wait(1.0), "the first one holds the vectors"
        tables.is_away = False
        assert first.cache.flush() is None
        assert ticket.wait(60)
        assert (len(ticket.results()), server.requests) == (20, 1)


def test_claims_are_renewed_while_their_vectors_wait_for_the_store(
    settings: Settings, keys: Keys, client: redis.Redis, server: EmbeddingServer
) -> None:
    tables = Tables(settings.home / "cache" / "embeddings.sqlite", KIND)
    supply, coordination = supply_of(settings, keys, server.url, client, tables)
    with ExitStack() as ending:
        ending.callback(coordination.close)
        ending.callback(supply.close)
        tables.is_away = True
        assert supply.batcher.submit(TEXTS, lane=Lane.LIVE, agent="main").wait(60)
        claims = list(client.scan_iter("*:claim:*"))
        assert len(claims) == len(TEXTS)
        for claim in claims:
            client.expire(claim, 10_000)
        supply.batcher.renew_claims()
        assert all(client.ttl(claim) <= KEPT_SECONDS for claim in claims)


def test_an_outage_of_the_store_is_one_warning(
    settings: Settings, keys: Keys, client: redis.Redis, server: EmbeddingServer
) -> None:
    tables = Tables(settings.home / "cache" / "embeddings.sqlite", KIND)
    supply, coordination = supply_of(settings, keys, server.url, client, tables)
    with ExitStack() as ending, structlog.testing.capture_logs() as lines:
        ending.callback(coordination.close)
        ending.callback(supply.close)
        for _ in range(2):
            tables.is_unreadable = True
            for _ in range(2):
                ticket = supply.batcher.submit(TEXTS, lane=Lane.LIVE, agent="main")
                assert ticket.wait(60)
                assert isinstance(ticket.error(), StoreAway)
            tables.is_unreadable = False
            assert supply.lookup(list(TEXTS)) == {}
    assert [(line["event"], line["log_level"]) for line in lines] == [("embedding_cache_away", "warning")] * 2


def test_what_a_killed_process_was_paying_for_is_paid_by_another_at_once(
    settings: Settings, keys: Keys, client: redis.Redis, server: EmbeddingServer
) -> None:
    script = textwrap.dedent(f"""
        import threading
        from pathlib import Path
        from schemas.documents import Lane
        from schemas.settings import Settings
        from tests.integration.test_paying_once import TEXTS, supply_of
        from workers.queue.connection import connect
        from workers.queue.names import Keys

        settings = Settings.model_validate({{"home": Path({str(settings.home)!r})}})
        keys = Keys({keys.prefix.partition(":")[2]!r})
        supply, _ = supply_of(settings, keys, {server.url!r}, connect(settings))
        supply.batcher.submit(TEXTS, lane=Lane.LIVE, agent="main")
        threading.Event().wait(60)
    """)
    server.fail_next(Failure(held_until=threading.Event()))
    child = subprocess.Popen([sys.executable, "-c", script], cwd=REPOSITORY)
    supply, coordination = supply_of(settings, keys, server.url, client)
    try:
        wait_until(lambda: server.requests == 1)
        ticket = supply.batcher.submit(TEXTS, lane=Lane.LIVE, agent="main")
        assert not ticket.wait(1.0), "the first one is alive and still at it"
        assert server.requests == 1
        child.kill()
        child.wait()
        wait_until(lambda: server.requests == 2)
        assert ticket.wait(60)
        assert len(ticket.results()) == 20
        assert server.requests == 2
    finally:
        child.kill()
        child.wait()
        supply.close()
        coordination.close()


# Claims


class Process:
    """Claims of one process."""

    def __init__(self, client: redis.Redis, keys: Keys, *, scope: str = "cache") -> None:
        self.presence = Presence(client, keys)
        self.claims = BrokerClaims(client, keys, self.presence, scope=scope)


@pytest.fixture
def processes(client: redis.Redis, keys: Keys) -> Iterator[tuple[Process, Process]]:
    one, other = Process(client, keys), Process(client, keys)
    yield one, other
    one.presence.close()
    other.presence.close()


@pytest.fixture
def two(processes: tuple[Process, Process]) -> tuple[BrokerClaims, BrokerClaims]:
    return processes[0].claims, processes[1].claims


def test_of_two_who_want_the_same_texts_each_text_has_one_owner(two: tuple[BrokerClaims, BrokerClaims]) -> None:
    one, other = two
    assert one.take(["a", "b"]) == {"a", "b"}
    assert other.take(["b", "c"]) == {"c"}
    assert one.take(["a", "b", "c"]) == {"a", "b"}
    assert one.take([]) == set()


def test_claims_hold_again_after_the_broker_was_away(
    settings: Settings, keys: Keys, broker_server: BrokerServer
) -> None:
    with connect(settings) as client, connect(settings) as elsewhere:
        one, other = Process(client, keys), Process(elsewhere, keys)
        one.claims.take(["a"])
        broker_server.stop()
        assert one.claims.take(["b"]) == {"b"}
        broker_server.ensure()
        texts = map(str, itertools.count())
        wait_until(lambda: one.claims.take([text := next(texts)]) and not other.claims.take([text]))
        one.presence.close()
        other.presence.close()


def test_a_user_without_channels_claims_nothing_and_works(
    client: redis.Redis, keys: Keys, broker_server: BrokerServer
) -> None:
    client.execute_command("ACL", "SETUSER", "narrow", "on", "nopass", "~recalld:*", "resetchannels", "+@all")
    with BrokerClient(
        unix_socket_path=client.get_connection_kwargs()["path"], username="narrow", password=""
    ) as narrow:
        one, other = Process(narrow, keys), Process(client, keys)
        assert one.claims.take(["a"]) == {"a"}
        assert other.claims.take(["a"]) == {"a"}
        assert one.claims.take(["b"]) == {"b"}
        other.presence.close()


def provider(*, account: str = "account", model: str = "model", identity: str = "identity") -> StubProvider:
    made = StubProvider()
    made.account, made.model, made.identity = account, model, identity
    return made


@pytest.fixture
def coordination(settings: Settings, broker_server: BrokerServer) -> Iterator[BrokerCoordination]:
    with coordinating(settings) as made:
        yield made


def test_homes_that_share_a_broker_share_an_account_s_cool_down_and_not_their_claims(
    client: redis.Redis, coordination: BrokerCoordination
) -> None:
    other_keys = Keys("another-home")
    other_home = BrokerCoordination(client, other_keys, cache_scope="elsewhere")
    one, other = coordination(provider()), other_home(provider())
    one.limiter.report(Throttled("slow down", retry_after=20))
    with pytest.raises(Waiting, match="asked to wait"):
        other.limiter.acquire(tokens=1, lane=Lane.LIVE)
    assert one.claims.take(["a"]) == other.claims.take(["a"]) == {"a"}
    other_home.close()
