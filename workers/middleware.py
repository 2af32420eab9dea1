"""Middleware that measures, traces and watches the jobs of a worker process."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from typing import Any

import dramatiq
import structlog
from opentelemetry.trace import SpanKind
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import generate_latest

from memory.status.processes import Pulses
from memory.telemetry import prometheus, tracing
from schemas.metrics import JOB_SECONDS, JOBS_RUNNING, WORKER_BUILD
from schemas.version import recalld_version
from workers.queue.names import TRACEPARENT

#: Option of a message whose job is over: its outcome (done, again, dropped).
OUTCOME = "outcome"

#: Option of a message whose job succeeded: the conditions that the job found to be over.
ENDED = "ended"

_current = threading.local()


class JobWatch(dramatiq.Middleware):
    """Prometheus metrics of one worker process; a span, a pulse and the name in the log lines of each job.

    It comes before every middleware that decides on outcomes. Thread-safe.
    """

    def __init__(self, pulses: Pulses) -> None:
        self._pulses = pulses
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        prometheus.gauge(WORKER_BUILD, self._registry).labels(recalld_version()).set(1)
        self._running = prometheus.gauge(JOBS_RUNNING, self._registry)
        self._seconds = prometheus.histogram(JOB_SECONDS, self._registry)

    def scrape(self) -> bytes:
        """Return all metrics in Prometheus text format."""
        return generate_latest(self._registry)

    def before_process_message(self, broker: dramatiq.Broker, message: dramatiq.MessageProxy) -> None:  # noqa: ARG002
        """Begin the span of a job."""
        actor, agent, job = message.actor_name, str(message.args[0]), str(message.message_id)
        structlog.contextvars.bind_contextvars(agent=agent, job_id=job)
        stack = ExitStack()
        parent, lane = message.options.get(TRACEPARENT), message.queue_name
        kind = SpanKind.CONSUMER
        span = stack.enter_context(tracing.span(actor, kind=kind, parent=parent, agent=agent, lane=lane, job=job))
        pulse, doing = self._pulses.of("job", thread=threading.get_ident()), f"{actor} of {agent}"
        _current.pulse = pulse, doing
        stack.callback(pulse.idle)
        pulse.busy(doing)
        self._running.labels(actor).inc()
        _current.job = stack, span, time.perf_counter()

    def after_process_message(
        self,
        broker: dramatiq.Broker,  # noqa: ARG002 - Dramatiq's signature
        message: dramatiq.MessageProxy,
        *,
        result: Any = None,  # noqa: ARG002
        exception: BaseException | None = None,
    ) -> None:
        """End the span of a job, and record its outcome."""
        stack, span, begin = _current.job
        _current.pulse = None
        outcome = str(message.options.get(OUTCOME, "done"))
        span.set_attribute("recalld.outcome", outcome)
        self._running.labels(message.actor_name).dec()
        self._seconds.labels(message.actor_name, outcome).observe(time.perf_counter() - begin)
        structlog.contextvars.unbind_contextvars("agent", "job_id")
        try:
            stack.__exit__(type(exception) if exception is not None else None, exception, None)
        except BaseException as again:
            if again is not exception:
                raise

    after_skip_message = after_process_message


def got_on(*, waits_for: str | None = None) -> None:
    """Record that the job in this thread begins its next step, which may wait for a provider (`waits_for`)."""
    if (own_pulse := getattr(_current, "pulse", None)) is not None:
        pulse, doing = own_pulse
        pulse.busy(doing if waits_for is None else f"{doing}: waits for {waits_for}")
