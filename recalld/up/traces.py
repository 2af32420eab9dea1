"""Export of spans for the time of one long-running command."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version

from schemas.errors import UserError
from schemas.settings import Settings


@contextmanager
def traced(settings: Settings, part: str) -> Iterator[None]:
    """Send spans by OTLP over HTTP if the settings say so; the last ones are sent at the end.

    The variables of OpenTelemetry (OTEL_EXPORTER_OTLP_ENDPOINT) say where to. `part` is `serve`, `work` or `watch`.

    Raises:
        UserError: tracing is on and OpenTelemetry's SDK is not installed.
    """
    if not settings.tracing.enabled:
        yield
        return
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise UserError(
            "tracing.enabled needs OpenTelemetry: install recalld with its extra `otel`, or leave tracing off",
            exit_code=2,
        ) from None
    resource = Resource.create({"service.name": f"recalld-{part}", "service.version": version("recalld")})
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    try:
        yield
    finally:
        provider.shutdown()
