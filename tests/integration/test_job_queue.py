"""Messages and their sweeper on a real Valkey."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
import redis

from memory.status.run_files import born, is_the_same
from schemas.documents import DocumentKey, Lane
from schemas.settings import Settings
from tests.daemon import REPOSITORY
from workers.queue import job_queue
from workers.queue.connection import connect
from workers.queue.job_queue import BrokerJobQueue
from workers.queue.names import INDEX_PENDING, Keys
from workers.queue.pending import LIVE_DOCUMENTS, Waiting
from workers.queue.private_server import BrokerServer

A = DocumentKey("memory", "MEMORY.md")
B = DocumentKey("memory", "memory/b.md")


@pytest.fixture
def queue(client: redis.Redis, keys: Keys) -> BrokerJobQueue:
    return BrokerJobQueue(client, keys)


def messages(client: redis.Redis, keys: Keys, name: str) -> list[dict[str, Any]]:
    return [json.loads(raw) for raw in client.hvals(keys.messages(name))]


def test_a_thousand_changes_of_one_agent_are_one_message(
    queue: BrokerJobQueue, client: redis.Redis, keys: Keys
) -> None:
    for number in range(20):
        queue.mark_changed("main", [DocumentKey("memory", f"memory/{i}.md") for i in range(50)], lane=Lane.LIVE)
        assert number < 20
    assert [(m["actor_name"], m["args"]) for m in messages(client, keys, "live")] == [(INDEX_PENDING, ["main", "live"])]


def test_one_job_at_a_time_works_on_an_agents_live_documents_and_then_calls_the_next(
    queue: BrokerJobQueue, client: redis.Redis, keys: Keys
) -> None:
    assert queue.started(INDEX_PENDING, "main", "live", job="first")
    assert queue.started(INDEX_PENDING, "main", "live", job="first"), "delivered again after its process died"
    assert queue.started(INDEX_PENDING, "main", "backfill", job="second")
    assert queue.started(INDEX_PENDING, "other", "live", job="second")
    assert not queue.started(INDEX_PENDING, "main", "live", job="second")
    queue.mark_changed("main", [A], lane=Lane.LIVE)
    assert not queue.others_wait(Lane.LIVE), "nothing that would be in vain"
    queue.ended("main", seconds=1.0)
    assert len(messages(client, keys, "live")) == 1
    assert queue.started(INDEX_PENDING, "main", "live", job="long")
    assert 0 < client.ttl(keys.queued(INDEX_PENDING, "main", "live")) <= job_queue.LIVE_JOB_SECONDS
    client.delete(keys.queued(INDEX_PENDING, "main", "live"))  # as when that time is over
    queue.mark_changed("main", [B], lane=Lane.LIVE)
    assert len(messages(client, keys, "live")) == 2
    assert queue.started(INDEX_PENDING, "main", "live", job="next")
    queue.ended("main", seconds=20.0, failed=True)
    assert not queue.started(INDEX_PENDING, "main", "live", job="long"), "another one is at work"
    queue.ended("main", seconds=1.0, failed=True)
    queue.marks.claim("main", lane=Lane.LIVE, job="other", limit=2)
    queue.ended("main", seconds=1.0)
    assert len(messages(client, keys, "live")) == 2, "a failed job comes again, and nothing waits after another one"


def test_what_a_job_that_is_gone_kept_others_from_is_found_by_the_sweeper(
    queue: BrokerJobQueue, client: redis.Redis, keys: Keys
) -> None:
    queue.started(INDEX_PENDING, "main", "live", job="gone")
    queue.mark_changed("main", [A], lane=Lane.LIVE)
    assert not queue.started(INDEX_PENDING, "main", "live", job="second")
    assert queue.sweep() == 1
    assert queue.started(INDEX_PENDING, "main", "live", job="third")


def test_more_documents_than_an_agent_may_have_in_the_live_lane_wait_in_the_other_one(
    queue: BrokerJobQueue, client: redis.Redis, keys: Keys
) -> None:
    def few(name: str) -> list[DocumentKey]:
        return [DocumentKey("memory", f"memory/{name}-{number}.md") for number in range(LIVE_DOCUMENTS // 4)]

    # A storm comes in small portions.
    for name in ("a", "b", "c", "d", "e", "f"):
        queue.mark_changed("noisy", few(name), lane=Lane.LIVE)
    waiting = queue.marks.waiting("noisy")
    assert (waiting.live, waiting.backfill) == (LIVE_DOCUMENTS, 2 * len(few("")))
    assert [len(messages(client, keys, lane)) for lane in ("live", "backfill")] == [1, 1]
    queue.mark_changed("quiet", [A], lane=Lane.LIVE)
    assert queue.marks.waiting("quiet").live == 1
    # A folder comes as a whole, and a note of the same agent a moment later.
    queue.mark_changed("other", [key for name in "abcde" for key in few(name)], lane=Lane.LIVE)
    queue.mark_changed("other", [A], lane=Lane.LIVE)
    assert queue.marks.waiting("other") == Waiting(live=1, backfill=5 * len(few("")), running=0)


def test_a_lost_message_is_sent_again(queue: BrokerJobQueue, client: redis.Redis, keys: Keys) -> None:
    queue.mark_changed("main", [A], lane=Lane.LIVE)
    assert queue.sweep() == 0
    client.delete(keys.messages("live"), f"{keys.dramatiq}:live")
    assert queue.sweep() == 1
    assert len(messages(client, keys, "live")) == 1
    assert queue.sweep() == 0


def test_a_lost_flag_does_not_strand_a_mark(queue: BrokerJobQueue, client: redis.Redis, keys: Keys) -> None:
    queue.marks.mark("main", [A], lane=Lane.BACKFILL, now=time.time())
    assert queue.sweep() == 1
    assert len(messages(client, keys, "backfill")) == 1


def test_documents_of_a_job_whose_message_is_gone_wait_again(queue: BrokerJobQueue) -> None:
    queue.mark_changed("main", [A, B], lane=Lane.LIVE)
    queue.marks.claim("main", lane=Lane.LIVE, job="gone", limit=2)
    assert queue.sweep() >= 2
    assert queue.marks.waiting("main").live == 2


def test_documents_of_a_living_job_are_left_to_it(queue: BrokerJobQueue, client: redis.Redis, keys: Keys) -> None:
    queue.mark_changed("main", [A], lane=Lane.LIVE)
    job = str(messages(client, keys, "live")[0]["message_id"])
    queue.marks.claim("main", lane=Lane.LIVE, job=job, limit=1)
    assert queue.sweep() == 0
    assert queue.marks.waiting("main").running == 1


def test_the_epoch_changes_when_the_server_lost_its_data(queue: BrokerJobQueue, client: redis.Redis) -> None:
    before = queue.epoch()
    assert before == queue.epoch()
    client.flushall()
    assert queue.epoch() not in {before, None}


def test_the_private_server_keeps_its_marks_over_a_restart(
    settings: Settings, broker_server: BrokerServer, queue: BrokerJobQueue
) -> None:
    queue.mark_changed("main", [A], lane=Lane.LIVE)
    second = BrokerServer(settings)
    second.ensure()
    assert not second.owned, "a server that has an owner is used, not taken"
    broker_server.stop()
    assert not second.answers()
    second.ensure()
    try:
        assert second.owned
        assert queue.marks.pending("main").documents == 1
    finally:
        second.stop()


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


@pytest.mark.long
def test_a_server_that_stands_still_is_killed_at_the_end_also_one_that_was_adopted(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.queue.private_server.STOP_SECONDS", 0.2)
    code = (
        "import os, sys; from schemas.settings import Settings; from workers.queue.private_server import BrokerServer\n"
        f"server = BrokerServer(Settings(home={str(settings.home)!r})); server.ensure(); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=False)
    heir = BrokerServer(settings)
    heir.ensure()
    with connect(settings) as client:
        pid = int(client.info("server")["process_id"])
    when_born = born(pid)
    os.kill(pid, signal.SIGSTOP)
    heir.stop()
    assert not is_the_same(pid, when_born)


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


def test_a_worker_that_died_before_the_clock_was_set_back_is_not_taken_to_live_until_then(
    queue: BrokerJobQueue, client: redis.Redis, keys: Keys
) -> None:
    client.zadd(keys.heartbeats, {"dead": (time.time() + 3600) * 1000, "ahead": (time.time() + 5) * 1000})
    queue.sweep()
    signs = {name.decode(): score / 1000 for name, score in client.zrange(keys.heartbeats, 0, -1, withscores=True)}
    assert signs["dead"] <= time.time()
    assert signs["ahead"] > time.time() + 1, "the clocks of machines differ a little"
