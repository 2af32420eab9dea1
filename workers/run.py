"""Worker process: consumers for every queue, a sweeper, and an orderly end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress

import dramatiq
import structlog
from dramatiq.common import iter_queue
from dramatiq.middleware import TimeLimit
from dramatiq.worker import Worker

from memory.status.processes import Pulses
from memory.telemetry.server import Route, TelemetryServer, readiness
from schemas.errors import BrokerUnavailable, UserError
from schemas.settings import Settings
from schemas.status import OutdatedState
from workers.actors import declare_actors
from workers.claims import coordinating
from workers.failures import Failures, memory_limit
from workers.health.health_store import HealthStore
from workers.health.heartbeat import Heartbeat
from workers.maintenance import SWEEP_SECONDS, sweep_until
from workers.middleware import JobWatch
from workers.queue.broker import DoorbellBroker, make_broker
from workers.queue.connection import IMPATIENT_SECONDS, connect, namespace
from workers.queue.job_queue import BrokerJobQueue
from workers.queue.names import QUEUES, Keys
from workers.queue.queue_tenancy import QueueTenancy
from workers.runtime import TIMING, Runtime, Timing

log = structlog.get_logger(__name__)

#: Seconds for running jobs to end at a shutdown. Their unfinished documents wait again.
DRAIN_SECONDS = 20.0

#: Seconds between two rounds of waking consumers.
_RING_SECONDS = 0.05

#: Seconds for consumers to end after the jobs: one may wait for the broker.
_CONSUMER_SECONDS = 3.0


def run_workers(
    settings: Settings,
    stop: threading.Event,
    *,
    on_ready: Callable[[], None] | None = None,
    routes: Mapping[str, Route] | None = None,
    role: str = "work",
    pulses: Pulses | None = None,
    outdated: Callable[[], OutdatedState | None] = lambda: None,
    timing: Timing = TIMING,
) -> None:
    """Work until `stop` is set, then let running jobs end and close everything.

    `routes` are served beside `/metrics`, `/healthz` and `/readyz` on `workers.port`. `role` and `outdated`: see
    `ProcessState`. The threads report to `pulses`. Tests shorten the `timing`.

    Raises:
        UserError: the port cannot be opened, workers of another home take from the queue, or memory ran out.
    """
    client = connect(settings)
    keys = Keys(namespace(settings))
    tenancy = QueueTenancy(client, keys, settings)
    tenancy.take()
    broker = make_broker(client, keys)
    queue = BrokerJobQueue(client, keys)
    limit = settings.workers.stalled_after_seconds
    broker.pulses = pulses = pulses or Pulses(stalled_after_seconds=limit)
    watch = JobWatch(pulses)
    # A client of `/readyz` must not wait long for a frozen broker.
    looking = HealthStore(connect(settings, answer_seconds=IMPATIENT_SECONDS), keys)
    ready = readiness(looking.broker, looking.stalled_seconds, stalled_after_seconds=limit, problems=pulses.problems)
    served: AbstractContextManager[object] = nullcontext()
    if settings.workers.port is not None:
        pages = {"/readyz": ready, **(routes or {})}
        served = TelemetryServer(settings.workers.host, settings.workers.port, metrics=watch.scrape, routes=pages)
    sharing = coordinating(
        settings, keeps=True, first_pause_seconds=timing.first_pause, unusual_seconds=timing.late_answer
    )
    with served, sharing as coordination:
        health = HealthStore(client, keys, counters=coordination.counters)
        runtime = Runtime(settings, queue, health, coordinate=coordination, timing=timing)
        # Dramatiq asks in this order before a job, and in the reverse one after it.
        broker.add_middleware(watch, before=TimeLimit)
        failures = Failures(runtime, stop)
        broker.add_middleware(failures, before=TimeLimit)
        heartbeat = Heartbeat(
            settings, role, pulses, beat_seconds=timing.heartbeat, in_flight=coordination.in_flight, outdated=outdated
        )
        declare_actors(broker, runtime)
        broker.emit_after("process_boot")
        # Each queue has its own threads: a long job does not hold up another queue.
        workers = [_start_worker(broker, {queue}, settings.workers.threads) for queue in QUEUES]
        sweeper = threading.Thread(
            target=sweep_until, args=(stop, runtime, tenancy, pulses), name="sweeper", daemon=True
        )
        sweeper.start()
        heartbeat.start()
        threading.Thread(target=runtime.warm_up, name="warm-up", daemon=True).start()
        log.info("workers_started", threads=settings.workers.threads)
        if on_ready is not None:
            on_ready()
        stop.wait()
        pulses.close()
        log.info("workers_stopping")
        runtime.stopping.set()
        drained_by = time.monotonic() + DRAIN_SECONDS
        all_ended = drain(broker, workers, keys, seconds=DRAIN_SECONDS)
        sweeper.join(timeout=min(SWEEP_SECONDS, max(drained_by - time.monotonic(), 1.0)))
        heartbeat.stop()
        runtime.close(seconds=drained_by - time.monotonic(), in_use=not all_ended or sweeper.is_alive())
        runtime.health.counters.flush()
        with suppress(OSError):
            runtime.note_usage()
    tenancy.leave()
    broker.close()
    client.close()
    log.info("workers_stopped")
    if failures.ends:
        raise UserError(f"no memory left for this worker ({memory_limit()}): it ends, and another one goes on")


def _start_worker(broker: dramatiq.Broker, queues: set[str], threads: int) -> Worker:
    # The timeout bounds how long an idle thread takes to notice that it should stop.
    worker = Worker(broker, queues=queues, worker_threads=threads, worker_timeout=250)
    # Prefetched messages would wait behind a long job while another process is idle.
    worker.queue_prefetch = threads
    worker.start()
    return worker


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
        with suppress(dramatiq.BrokerError):
            for worker in workers:
                _give_back_the_not_begun(worker)
                for queue in worker.consumers:
                    broker.ring(queue)
        stoppers[0].join(timeout=_RING_SECONDS)
        stoppers[-1].join(timeout=_RING_SECONDS)
    with suppress(BrokerUnavailable):
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
        message_ids = sorted(broker.client.smembers(keys.taken(broker.broker_id, queue)))
        if message_ids:
            broker.do_requeue(queue, *message_ids)
            broker.ring(queue)
            log.info("jobs_given_back", queue=queue, jobs=len(message_ids))
