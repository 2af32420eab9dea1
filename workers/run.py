"""Worker process: consumers for every queue, a sweeper, and an orderly end."""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

import dramatiq
import structlog
from dramatiq.middleware import TimeLimit
from dramatiq.worker import Worker

from memory.status.pulses import Pulses
from memory.telemetry.server import Route, TelemetryServer
from schemas.documents import Lane
from schemas.settings import Settings
from schemas.status import OutdatedState
from workers.actors import declare_actors
from workers.failures import Failures
from workers.health.health_store import HealthStore
from workers.health.heartbeat import Heartbeat
from workers.health.readiness import StallDetector, readiness
from workers.limits.coordination import coordinating
from workers.maintenance import SWEEP_SECONDS, sweep_until
from workers.middleware.metrics import JobMetrics
from workers.middleware.pulses import JobPulses
from workers.queue.broker import make_broker
from workers.queue.connection import IMPATIENT_SECONDS, connect, namespace
from workers.queue.home_lock import HomeLock
from workers.queue.job_queue import BrokerJobQueue
from workers.queue.names import VECTORS_QUEUE, Keys
from workers.runtime import Runtime
from workers.shutdown import DRAIN_SECONDS, drain

log = structlog.get_logger(__name__)

#: `M_MMAP_THRESHOLD` of glibc's malloc.h.
_M_MMAP_THRESHOLD = -3

#: Bytes of a memory block from which on it is returned to the system as soon as it is freed.
LARGE_BLOCK_BYTES = 256 * 1024


def run_workers(
    settings: Settings,
    stop: threading.Event,
    *,
    on_ready: Callable[[], None] | None = None,
    routes: Mapping[str, Route] | None = None,
    role: str = "work",
    pulses: Pulses | None = None,
    outdated: Callable[[], OutdatedState | None] = lambda: None,
) -> None:
    """Work until `stop` is set, then let running jobs end and close everything.

    `routes` are served beside `/metrics`, `/healthz` and `/readyz` on `workers.port`. `role` and `outdated`: see
    `ProcessState`. The threads report to `pulses`.

    Raises:
        UserError: the port cannot be opened, or workers of another home take from the queue.
    """
    give_back_large_blocks()
    client = connect(settings)
    keys = Keys(namespace(settings))
    claim = HomeLock(client, keys, settings)
    claim.take()
    broker = make_broker(client, keys)
    queue = BrokerJobQueue(client, keys, broker=broker)
    metrics = JobMetrics()
    pulses = pulses or Pulses(stalled_after_seconds=settings.workers.stalled_after_seconds)
    broker.pulses = pulses
    broker.add_middleware(JobPulses(pulses))
    # A client of `/readyz` must not wait long for a frozen broker.
    looking = StallDetector(connect(settings, answer_seconds=IMPATIENT_SECONDS), keys)
    ready = readiness(looking, stalled_after_seconds=settings.workers.stalled_after_seconds, problems=pulses.problems)
    with (
        _telemetry(settings, metrics, {"/readyz": ready, **(routes or {})}),
        coordinating(settings) as coordination,
    ):
        board = HealthStore(client, keys, counters=coordination.counters)
        runtime = Runtime(settings, queue, board, coordinate=coordination)
        # Dramatiq asks in this order before a job, and in the reverse one after it.
        broker.add_middleware(metrics, before=TimeLimit)
        broker.add_middleware(Failures(runtime), before=TimeLimit)
        life = Heartbeat(settings, role, pulses, asking=coordination.asking, outdated=outdated)
        declare_actors(broker, runtime)
        broker.emit_after("process_boot")
        # Each queue has its own threads: a long job does not hold up another queue.
        workers = [
            _start_worker(broker, {Lane.LIVE.value}, settings.workers.threads),
            _start_worker(broker, {Lane.BACKFILL.value}, settings.workers.threads),
            _start_worker(broker, {VECTORS_QUEUE}, settings.workers.threads),
        ]
        sweeper = threading.Thread(target=sweep_until, args=(stop, runtime, claim, pulses), name="sweeper", daemon=True)
        sweeper.start()
        life.start()
        threading.Thread(target=runtime.warm_up, name="warm-up", daemon=True).start()
        log.info("workers_started", threads=settings.workers.threads)
        if on_ready is not None:
            on_ready()
        stop.wait()
        pulses.close()
        log.info("workers_stopping")
        runtime.stopping.set()
        drained_by = time.monotonic() + DRAIN_SECONDS
        ended = drain(broker, workers, keys, seconds=DRAIN_SECONDS)
        sweeper.join(timeout=min(SWEEP_SECONDS, max(drained_by - time.monotonic(), 1.0)))
        life.stop()
        runtime.close(seconds=drained_by - time.monotonic(), in_use=not ended or sweeper.is_alive())
        runtime.publish_counts()
    claim.leave()
    broker.close()
    client.close()
    log.info("workers_stopped")


@contextmanager
def _telemetry(settings: Settings, metrics: JobMetrics, routes: Mapping[str, Route]) -> Iterator[None]:
    """Serve metrics on the port of the settings, if there is one."""
    if settings.workers.port is None:
        yield
        return
    server = TelemetryServer(settings.workers.host, settings.workers.port, metrics=metrics.scrape, routes=routes)
    server.start()
    try:
        yield
    finally:
        server.stop()


def _start_worker(broker: dramatiq.Broker, queues: set[str], threads: int) -> Worker:
    # The timeout bounds how long an idle thread takes to notice that it should stop.
    worker = Worker(broker, queues=queues, worker_threads=threads, worker_timeout=250)
    # Prefetched messages would wait behind a long job while another process is idle.
    worker.queue_prefetch = threads
    worker.start()
    return worker


def give_back_large_blocks() -> None:
    """Fix the size from which on glibc keeps memory blocks out of its heaps; without glibc, do nothing.

    By default glibc raises it up to 32 MiB with each large block that is freed
    (https://man7.org/linux/man-pages/man3/mallopt.3.html), and the process keeps the holes in the heaps of its threads:
    a backfill of 200 MB took 259 MB of memory instead of 226, at the same speed.
    """
    if sys.platform == "linux":
        with suppress(AttributeError, OSError):
            ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)
