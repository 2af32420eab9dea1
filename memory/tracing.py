"""Optional tracing by OpenTelemetry: off, and free, until `switch_on`.

One place for all rooms, so that nobody else imports the library. A span's attributes are ids, names of ours and
counts: never a query, a path or what somebody wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal, Protocol

from schemas.errors import UserError
from schemas.version import recalld_version

#: What a span is in the way of an event: leaving something in the queue, taking it from there, answering, or neither.
Role = Literal["producer", "consumer", "server", "internal"]

#: Events that a job's span is linked to, at most: a backfill has thousands.
MOST_LINKS = 32


class Span(Protocol):
    """What can be said of something while it happens."""

    def set_attribute(self, key: str, value: str | float) -> None:
        """Add a fact."""


class _NoSpan:
    def set_attribute(self, key: str, value: str | float) -> None:
        pass


_NO_SPAN = _NoSpan()
_tracer: Any = None


def switch_on(part: str, *, provider: Any = None) -> Callable[[], None]:
    """Trace from now on in this process; returns what sends the last spans and ends it.

    Args:
        part: what this process is: `serve`, `work` or `watch`.
        provider: a `TracerProvider`; unset means the SDK's, which sends by OTLP over HTTP to where the variables of
            OpenTelemetry say (OTEL_EXPORTER_OTLP_ENDPOINT).

    Raises:
        UserError: OpenTelemetry is not installed.
    """
    global _tracer  # noqa: PLW0603 - a process traces or it does not
    made = provider or _exporting(part)
    _tracer = made.get_tracer("recalld", recalld_version())

    def switch_off() -> None:
        global _tracer  # noqa: PLW0603 - see above
        _tracer = None
        if provider is None:
            made.shutdown()

    return switch_off


def is_on() -> bool:
    """Whether this process traces."""
    return _tracer is not None


def span(
    name: str, *, role: Role = "internal", parent: str | None = None, **facts: str | float
) -> AbstractContextManager[Span]:
    """While something happens. `parent` is a `traceparent` from elsewhere; unset means the span around this one.

    What is raised inside ends the span as failed, with the error's type and nothing of its message.
    """
    return nullcontext(_NO_SPAN) if _tracer is None else _started(name, role, parent, facts)


def here() -> str | None:
    """The span around this, as a `traceparent` (W3C Trace Context) to hand on; None when nothing is traced."""
    if _tracer is None:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier.get("traceparent")


def link(parents: Iterable[str]) -> None:
    """Say that the span around this also comes from these, given as `traceparent`s."""
    if _tracer is None:
        return
    from opentelemetry import trace

    around = trace.get_current_span()
    for parent in list(dict.fromkeys(parents))[:MOST_LINKS]:
        context = trace.get_current_span(_context(parent)).get_span_context()
        if context.is_valid and context.trace_id != around.get_span_context().trace_id:
            around.add_link(context)


@contextmanager
def _started(name: str, role: Role, parent: str | None, facts: dict[str, str | float]) -> Iterator[Span]:
    from opentelemetry.trace import SpanKind, Status, StatusCode

    with _tracer.start_as_current_span(
        name,
        context=_context(parent) if parent is not None else None,
        kind=SpanKind[role.upper()],
        attributes={f"recalld.{key}": value for key, value in facts.items()},
        # A message may quote what it is about.
        record_exception=False,
        set_status_on_exception=False,
    ) as current:
        try:
            yield current
        except BaseException as error:
            current.set_status(Status(StatusCode.ERROR, type(error).__name__))
            raise


def _context(parent: str) -> Any:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract({"traceparent": parent})


def _exporting(part: str) -> Any:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise UserError(
            "tracing.enabled needs OpenTelemetry: install recalld with its extra `otel`, or leave tracing off",
            exit_code=2,
        ) from None
    resource = Resource.create({"service.name": f"recalld-{part}", "service.version": recalld_version()})
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider
