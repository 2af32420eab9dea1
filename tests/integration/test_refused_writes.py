"""A broker that refuses writes for a while: nobody who works ends of it, and no message is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from schemas.settings import Settings
from tests.waiting import wait_until
from tests.working import Workers
from workers.queue.broker import DoorbellBroker, make_broker, message
from workers.queue.connection import BrokerAway
from workers.queue.job_queue import BrokerJobQueue
from workers.queue.names import INDEX_PENDING

pytestmark = pytest.mark.usefixtures("broker_server")


class Refusing:
    """Refuses some of the library's commands of a queue, once `error` is set and until it is None again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error: redis.RedisError | None = None
        self.refused: list[str] = []
        self._patch = monkeypatch

    def commands(self, commands: set[str], queue: str) -> None:
        really = redis.Redis.execute_command

        def execute(client: redis.Redis, *arguments: Any, **options: Any) -> Any:
            # EVALSHA, script, number of keys, namespace, command of the library, time, queue
            if self.error is not None and arguments[4:5] and arguments[4] in commands and arguments[6] == queue:
                self.refused.append(arguments[4])
                raise self.error
            return really(client, *arguments, **options)  # type: ignore[no-untyped-call]

        self._patch.setattr(redis.Redis, "execute_command", execute)


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """Ids of the jobs that began."""
    jobs: list[str | None] = []
    started = BrokerJobQueue.started

    def noted(queue: BrokerJobQueue, *arguments: str, job: str = "", **options: Any) -> Any:
        jobs.append(job)
        return started(queue, *arguments, job=job, **options)

    monkeypatch.setattr(BrokerJobQueue, "started", noted)
    return jobs


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dramatiq.worker.CONSUMER_RESTART_DELAY_SECS", 0.1)
    monkeypatch.setattr("dramatiq.worker.POST_PROCESS_MESSAGE_RETRY_DELAY_SECS", 0.1)


def held_job(workers: Workers) -> str:
    """Enqueue a job for later; return its id once a worker holds it."""
    delayed = make_broker(workers.client, workers.keys).enqueue(
        message(INDEX_PENDING, "live", "main", "live"), delay=6_000
    )
    held = f"{workers.keys.dramatiq}:__acks__.*.live.DQ"
    wait_until(lambda: list(workers.client.scan_iter(held)), what="a worker holds it")
    return delayed.message_id


def is_left(workers: Workers) -> int:
    """Messages of the queue, delayed and given up ones too."""
    asked: Any = workers.client
    keys = workers.keys
    given_up = asked.zcard(f"{keys.dramatiq}:live.XQ")
    return int(asked.hlen(keys.messages("live")) + asked.hlen(keys.delayed_messages("live")) + given_up)


@pytest.mark.parametrize(
    ("setting", "value", "healthy"),
    [
        ("maxmemory", "1", "0"),
        ("replicaof", "127.0.0.1 1", "no one"),
        pytest.param("min-replicas-to-write", "1", "0", marks=pytest.mark.long),
    ],
)
def test_consumers_outlive_a_server_without_writes_and_go_on_with_delayed_jobs(
    setting: str, value: str, healthy: str, settings: Settings, begun: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[str] = []
    consume = DoorbellBroker.consume

    def noted(broker: DoorbellBroker, queue_name: str, *arguments: Any, **options: Any) -> Any:
        taken.append(queue_name)
        return consume(broker, queue_name, *arguments, **options)

    monkeypatch.setattr(DoorbellBroker, "consume", noted)
    with Workers(settings) as workers:
        asked: Any = workers.client

        def turn(wanted: str) -> None:
            asked.replicaof(*wanted.split()) if setting == "replicaof" else asked.config_set(setting, wanted)

        delayed = held_job(workers)
        before = {queue: taken.count(queue) for queue in taken}
        turn(value)
        try:
            wait_until(lambda: all(taken.count(queue) > count + 2 for queue, count in before.items()))
        finally:
            turn(healthy)
        wait_until(lambda: delayed in begun)
        wait_until(lambda: not is_left(workers))


@pytest.mark.long
@pytest.mark.parametrize(
    ("commands", "queue", "error"),
    [
        ({"fetch", "requeue"}, "live.DQ", redis.ResponseError("MISCONF")),
        ({"enqueue"}, "live", redis.ResponseError("MISCONF")),
        ({"ack"}, "live.DQ", redis.TimeoutError("no answer")),
        ({"ack"}, "live", redis.TimeoutError("no answer")),
    ],
    ids=["taking", "when its time comes", "when it was delayed", "when it is done"],
)
def test_a_delayed_job_comes_and_is_over_whatever_was_refused_meanwhile(
    commands: set[str],
    queue: str,
    error: redis.RedisError,
    settings: Settings,
    begun: list[str | None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refusing = Refusing(monkeypatch)
    refusing.commands(commands, queue)
    with Workers(settings) as workers:
        delayed = held_job(workers)
        refusing.error = error
        wait_until(lambda: commands <= set(refusing.refused) and len(refusing.refused) > 2, what="all was refused")
        refusing.error = None
        wait_until(lambda: delayed in begun)
        wait_until(lambda: not is_left(workers))


@pytest.mark.parametrize("lost", [BrokerAway("no answer"), None], ids=["a lost connection", "asked again"])
def test_a_job_whose_message_was_in_an_answer_that_was_lost_comes_all_the_same(
    lost: BrokerAway | None, settings: Settings, begun: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.queue.dramatiq_fixes.LOOK_SECONDS", 0.2)
    answers: list[object] = []

    def fetching(broker: DoorbellBroker) -> Callable[..., Any]:
        really = broker._dispatch("fetch")  # type: ignore[no-untyped-call]

        def fetch(queue_name: str, *arguments: Any) -> Any:
            answer = really(queue_name, *arguments)
            if queue_name != "live" or not answer or answers:
                return answer
            answers.append(answer)
            if lost is not None:
                raise lost
            return []

        return fetch

    monkeypatch.setattr(DoorbellBroker, "do_fetch", property(fetching), raising=False)
    with Workers(settings) as workers:
        job = make_broker(workers.client, workers.keys).enqueue(message(INDEX_PENDING, "live", "main", "live"))
        wait_until(lambda: job.message_id in begun)
        assert len(answers) == 1
        wait_until(lambda: not is_left(workers))
        assert begun.count(job.message_id) == 1
