"""Spans by OpenTelemetry's API, which does nothing in a process without a tracer provider.

A span's attributes are ids, recalld's own names and counts: never a query, a path or the text of a user.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

#: Events that a job's span is linked to, at most: a backfill has thousands.
MOST_LINKS = 32

#: The tracer of the process's provider, also when that is set later.
TRACER = trace.get_tracer("recalld")

_PROPAGATOR = TraceContextTextMapPropagator()


@contextmanager
def span(
    name: str, *, kind: SpanKind = SpanKind.INTERNAL, parent: str | None = None, **facts: str | float
) -> Iterator[Span]:
    """Trace the block. `parent` is a `traceparent` from elsewhere; unset means the current span.

    An error ends the span as failed with the error's type. Its message is left out, because it may quote a user.
    """
    with TRACER.start_as_current_span(
        name,
        context=_context(parent) if parent is not None else None,
        kind=kind,
        attributes={f"recalld.{key}": value for key, value in facts.items()},
        record_exception=False,
        set_status_on_exception=False,
    ) as current:
        try:
            yield current
        except BaseException as error:
            current.set_status(Status(StatusCode.ERROR, type(error).__name__))
            raise


def is_traced() -> bool:
    """Return True if the current span is recorded."""
    return trace.get_current_span().is_recording()


def traceparent() -> str | None:
    """Return the current span as a `traceparent` (W3C Trace Context) for another process; None without one."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier)
    return carrier.get("traceparent")


def link(parents: Iterable[str]) -> None:
    """Link the current span to other traces, given as `traceparent`s."""
    current = trace.get_current_span()
    for parent in list(dict.fromkeys(parents))[:MOST_LINKS]:
        parent_span = trace.get_current_span(_context(parent)).get_span_context()
        if parent_span.is_valid and parent_span.trace_id != current.get_span_context().trace_id:
            current.add_link(parent_span)


def _context(parent: str) -> Context:
    return _PROPAGATOR.extract({"traceparent": parent})
