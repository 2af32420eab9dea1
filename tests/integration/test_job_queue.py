"""Messages and their sweeper on a real Valkey."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
import redis

from schemas.documents import DocumentKey, Lane
from schemas.settings import Settings
from tests.daemon import REPOSITORY
from workers.queue.broker import make_broker, message
from workers.queue.job_queue import BrokerJobQueue
from workers.queue.names import COMPLETE_GENERATION, EMBED_PENDING, INDEX_PENDING, POLL_BATCH_JOBS, Keys
from workers.queue.pending import LIVE_DOCUMENTS, Waiting
from workers.queue.private_server import BrokerServer

A = DocumentKey("memory", "MEMORY.md")
B = DocumentKey("memory", "memory/b.md")


@pytest.fixture
def queue(client: redis.Redis, keys: Keys) -> BrokerJobQueue:
    return BrokerJobQueue(client, keys)


def messages(client: redis.Redis, keys: Keys, name: str) -> list[dict[str, Any]]:
    return [json.loads(raw) for raw in client.hvals(keys.messages(name))]


def test_what_a_job_that_is_gone_kept_others_from_is_found_by_the_sweeper(
    queue: BrokerJobQueue, client: redis.Redis, keys: Keys
) -> None:
    queue.started(INDEX_PENDING, "main", "live", job="gone")
    queue.mark_changed("main", [A], lane=Lane.LIVE)
    assert not queue.started(INDEX_PENDING, "main", "live", job="second")
    assert queue.sweep() == 1
    assert queue.started(INDEX_PENDING, "main", "live", job="third")


def test_documents_beyond_an_agents_share_of_the_live_lane_wait_in_the_other(
    queue: BrokerJobQueue, client: redis.Redis, keys: Keys
) -> None:
    def few(name: str) -> list[DocumentKey]:
        return [DocumentKey("memory", f"memory/{name}-{number}.md") for number in range(LIVE_DOCUMENTS // 4)]

    # A storm comes in small portions.
    for name in ("a", "b", "c", "d", "e", "f"):
        queue.mark_changed("noisy", few(name), lane=Lane.LIVE)
    waiting = queue.pending_set.waiting("noisy")
    assert (waiting.live, waiting.backfill) == (LIVE_DOCUMENTS, 2 * len(few("")))
    assert [len(messages(client, keys, lane)) for lane in ("live", "backfill")] == [1, 1]
    queue.mark_changed("quiet", [A], lane=Lane.LIVE)
    assert queue.pending_set.waiting("quiet").live == 1
    # A folder comes as a whole, and a note of the same agent a moment later.
    queue.mark_changed("other", [key for name in "abcde" for key in few(name)], lane=Lane.LIVE)
    queue.mark_changed("other", [A], lane=Lane.LIVE)
    assert queue.pending_set.waiting("other") == Waiting(live=1, backfill=5 * len(few("")), running=0)


def test_a_lost_message_is_sent_again(queue: BrokerJobQueue, client: redis.Redis, keys: Keys) -> None:
    queue.mark_changed("main", [A], lane=Lane.LIVE)
    assert queue.sweep() == 0
    client.delete(keys.messages("live"), f"{keys.dramatiq}:live")
    assert queue.sweep() == 1
    assert len(messages(client, keys, "live")) == 1
    assert queue.sweep() == 0


def test_documents_of_a_job_whose_message_is_gone_wait_again(queue: BrokerJobQueue) -> None:
    queue.mark_changed("main", [A, B], lane=Lane.LIVE)
    queue.pending_set.claim("main", lane=Lane.LIVE, job="gone", limit=2)
    assert queue.sweep() >= 2
    assert queue.pending_set.waiting("main").live == 2


def test_a_server_whose_owner_was_killed_is_adopted_and_stopped_by_the_next_one(settings: Settings) -> None:
    code = (
        "import os, sys; from schemas.settings import Settings; from workers.queue.private_server import BrokerServer\n"
        f"server = BrokerServer(Settings(home={str(settings.home)!r})); server.ensure(); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=False)
    heir = BrokerServer(settings)
    assert heir.answers(), "the server outlives its owner"
    heir.ensure()
    assert heir.owned
    heir.stop()
    assert not heir.answers()


def test_a_damaged_broker_file_is_set_aside(settings: Settings, broker_server: BrokerServer) -> None:
    broker_server.stop()
    folder = settings.home / "broker" / "appendonlydir"
    for file in folder.iterdir():
        file.write_bytes(b"this is no append-only file" * 100)
    again = BrokerServer(settings)
    again.ensure()
    try:
        assert again.answers()
        assert list((settings.home / "broker").glob("damaged-*"))
    finally:
        again.stop()


def test_a_lost_request_for_vectors_is_made_again(queue: BrokerJobQueue, client: redis.Redis, keys: Keys) -> None:
    queue.request_vectors("main")
    queue.request_vectors("main")
    assert len(messages(client, keys, "vectors")) == 1
    client.delete(keys.messages("vectors"), f"{keys.dramatiq}:vectors")
    flag = keys.queued("embed_pending", "main", "vectors")
    assert 0 < client.ttl(flag) <= 60
    client.delete(flag)  # as when that time is over
    queue.request_vectors("main")
    assert len(messages(client, keys, "vectors")) == 1


@pytest.mark.parametrize(
    ("actor", "name"),
    [
        (INDEX_PENDING, "live"),
        (INDEX_PENDING, "backfill"),
        (EMBED_PENDING, "vectors"),
        (POLL_BATCH_JOBS, "vectors"),
        (COMPLETE_GENERATION, "backfill"),
    ],
)
def test_a_message_of_any_kind_delayed_before_the_clock_was_set_back_is_replaced(
    queue: BrokerJobQueue, client: redis.Redis, keys: Keys, actor: str, name: str
) -> None:
    broker = make_broker(client, keys)
    arguments = ["main", name] if actor == INDEX_PENDING else ["main"]
    broker.enqueue(message(actor, name, *arguments), delay=60_000)
    assert queue.may_retry(actor, "main", name, job="old", seconds=60.0)
    assert queue.sweep() == 0
    [(message_id, raw)] = client.hgetall(keys.delayed_messages(name)).items()
    body = json.loads(raw)
    body["options"]["delayed_at"] += 86_400_000
    client.hset(keys.delayed_messages(name), message_id, json.dumps(body))
    assert queue.sweep() == 1
    [new] = messages(client, keys, name)
    assert (new["actor_name"], new["args"]) == (actor, arguments)
    assert queue.may_retry(actor, "main", name, job="new", seconds=60.0)
    assert queue.sweep() == 0


def test_a_sweep_is_due_though_the_servers_clock_was_set_back(
    queue: BrokerJobQueue, client: redis.Redis, keys: Keys
) -> None:
    queue.mark_changed("main", [A], lane=Lane.LIVE)
    assert queue.sweep(every_seconds=5.0) == 0
    client.delete(keys.messages("live"), f"{keys.dramatiq}:live")
    assert queue.sweep(every_seconds=5.0) == 0, "it was swept a moment ago"
    client.expire(keys.sweeper, 86_400)
    assert queue.sweep(every_seconds=5.0) == 1
