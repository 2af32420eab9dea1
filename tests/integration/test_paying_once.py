"""Two processes that want the same vectors at once pay for them once: a real cache, Valkey and HTTP server."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from contextlib import ExitStack

import redis

from memory.chunking.chunker import text_hash
from memory.embedding.cache import EmbeddingCache
from memory.embedding.providers.endpoint import Endpoint
from memory.embedding.providers.openai import OpenAIProvider
from memory.embedding.providers.provider import ProviderLimits
from memory.embedding.selection import ProviderChoice
from memory.embedding.supply import EmbeddingSupply
from schemas.documents import Lane
from schemas.settings import Settings
from tests.daemon import REPOSITORY
from tests.embedding_server import EmbeddingServer, Failure
from tests.waiting import wait_until
from workers.coordination import BrokerCoordination
from workers.queue.connection import connect
from workers.queue.names import Keys

TEXTS = {text_hash(f"note {number}"): f"note {number}" for number in range(20)}


def supply_of(
    settings: Settings, keys: Keys, url: str, client: redis.Redis
) -> tuple[EmbeddingSupply, BrokerCoordination]:
    """What one worker process has."""
    limits = ProviderLimits(inputs=100, tokens=10_000, input_bytes=8000, concurrency=2, chunks_per_second=1000)
    endpoint = Endpoint(name="openai", model="m", base_url=url, api_key="k", key_name="KEY", limits=limits)
    provider = OpenAIProvider(endpoint)
    cache = settings.home / "cache" / "embeddings.sqlite"
    cache.parent.mkdir(parents=True, exist_ok=True)
    coordination = BrokerCoordination(client, keys, cache_scope="cache")
    choice = ProviderChoice(provider, requested="openai", name="openai", reason=None, error=None)
    return EmbeddingSupply(choice, EmbeddingCache(cache), coordinate=coordination), coordination


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
