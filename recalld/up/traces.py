"""Tracing for the time of one long-running command."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from memory import tracing
from schemas.settings import Settings


@contextmanager
def traced(settings: Settings, part: str) -> Iterator[None]:
    """Trace if the settings say so; the last spans are sent at the end.

    Raises:
        UserError: tracing is on and OpenTelemetry is not installed.
    """
    if not settings.tracing.enabled:
        yield
        return
    switch_off = tracing.switch_on(part)
    try:
        yield
    finally:
        switch_off()
