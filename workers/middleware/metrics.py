"""Prometheus metrics of one worker process: its jobs and its use of the machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import generate_latest

from memory.telemetry import prometheus
from schemas.metrics import JOB_SECONDS, JOBS_RUNNING, WORKER_BUILD
from schemas.version import recalld_version


class JobMetrics:
    """Registry of one worker process. Thread-safe."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        prometheus.gauge(WORKER_BUILD, self._registry).labels(recalld_version()).set(1)
        self._running = prometheus.gauge(JOBS_RUNNING, self._registry)
        self._seconds = prometheus.histogram(JOB_SECONDS, self._registry)

    @contextmanager
    def job(self, actor: str) -> Iterator[Callable[[str], None]]:
        """Measure a job of this actor. Call the yielded function with the outcome, unless the job is done."""
        outcome = "done"

        def ended(how: str) -> None:
            nonlocal outcome
            outcome = how

        begun = time.perf_counter()
        self._running.labels(actor).inc()
        try:
            yield ended
        finally:
            self._running.labels(actor).dec()
            self._seconds.labels(actor, outcome).observe(time.perf_counter() - begun)

    def scrape(self) -> bytes:
        """Return all metrics in Prometheus text format."""
        return generate_latest(self._registry)
