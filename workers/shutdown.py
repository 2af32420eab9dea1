"""Shutdown of a worker process: running jobs get some time, and unfinished messages go back to the queue.

Messages that were fetched and not begun go back at once, those of unfinished jobs at the deadline. Another process can
take them without waiting for a lease to expire.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress

import dramatiq
import redis
import structlog
from dramatiq.common import iter_queue
from dramatiq.worker import Worker

from workers.queue.broker import DoorbellBroker
from workers.queue.names import QUEUES, Keys

log = structlog.get_logger(__name__)

#: Seconds for running jobs to end at a shutdown. Their unfinished documents wait again.
DRAIN_SECONDS = 20.0

#: Seconds between two rounds of waking consumers.
_RING_SECONDS = 0.05

#: Seconds for consumers to end after the jobs: one may wait for the broker.
_CONSUMER_SECONDS = 3.0


def drain(broker: DoorbellBroker, workers: Sequence[Worker], keys: Keys, *, seconds: float = DRAIN_SECONDS) -> bool:
    """Let running jobs of all queues end, then give back the unfinished ones. Return True if all jobs ended.

    No message is fetched any more. Another process takes a message that was given back, and its job gets the documents
    that this one held (`PendingSet.recover_crashed`).
    """
    broker.draining = True
    deadline = time.monotonic() + seconds
    stoppers = [
        threading.Thread(target=worker.stop, kwargs={"timeout": int(seconds * 1000)}, daemon=True) for worker in workers
    ]
    for thread in stoppers:
        thread.start()
    while any(thread.is_alive() for thread in stoppers) and time.monotonic() < deadline + _CONSUMER_SECONDS:
        with suppress(redis.RedisError, dramatiq.BrokerError):
            for worker in workers:
                _give_back_the_not_begun(worker)
                for queue in worker.consumers:
                    broker.ring(queue)
        stoppers[0].join(timeout=_RING_SECONDS)
        stoppers[-1].join(timeout=_RING_SECONDS)
    with suppress(redis.RedisError):
        _give_back_all(broker, keys)
    return not any(thread.is_alive() for worker in workers for thread in worker.workers)


def _give_back_the_not_begun(worker: Worker) -> None:
    for item in iter_queue(worker.work_queue):  # type: ignore[no-untyped-call]
        message = item.message
        worker.consumers[message.queue_name].requeue_messages([message])
        worker.work_queue.task_done()


def _give_back_all(broker: DoorbellBroker, keys: Keys) -> None:
    """Give back messages that this process took and did not acknowledge. Later acknowledgements have no effect."""
    for queue in [name for canonical in QUEUES for name in (canonical, f"{canonical}.DQ")]:
        taken = sorted(broker.client.smembers(keys.taken(broker.broker_id, queue)))
        if taken:
            broker.do_requeue(queue, *taken)
            broker.ring(queue)
            log.info("jobs_given_back", queue=queue, jobs=len(taken))
