"""Structured logs on standard error: an event name and fields, one JSON object a line; coloured on a terminal.

No line holds a secret: whatever is logged, exceptions included, is redacted on its way out.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import structlog

from memory.redaction import redact


def configure_logs(*, level: int = logging.INFO) -> None:
    """Set up structlog and the libraries' own logging for this process."""
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer()
        if sys.stderr.isatty()
        else structlog.processors.JSONRenderer(ensure_ascii=False)
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            redact_fields,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        RedactingFormatter('{"level":"%(levelname)s","logger":"%(name)s","event":"%(message)s"}'),
    )
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    # Connection errors while the broker restarts are told once by us; the library would tell them per thread.
    logging.getLogger("dramatiq").setLevel(logging.ERROR)
    logging.getLogger("dramatiq.worker").setLevel(logging.CRITICAL + 1)


def redact_fields(
    _logger: object, _method: str, event: structlog.typing.EventDict
) -> structlog.typing.ProcessorReturnValue:
    """Mask secrets in every field, and in what fields are made of."""
    return {name: _redacted(value, name=name) for name, value in event.items()}


class RedactingFormatter(logging.Formatter):
    """What the libraries log, a traceback included, without secrets."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the formatted record."""
        return redact(super().format(record))


def _redacted(value: Any, *, name: str = "") -> Any:
    if isinstance(value, str):
        return _redacted_text(value, name)
    if isinstance(value, Mapping):
        return {key: _redacted(one, name=str(key)) for key, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [_redacted(one) for one in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    # An exception, a path, a model of pydantic's: rendered as the renderer would.
    return redact(repr(value))


def _redacted_text(text: str, name: str) -> str:
    """A field's name may be what tells that it is a secret: `password="..."`."""
    redacted = redact(text)
    if redacted != text or not name:
        return redacted
    before, after = f"{name} = '", "'"
    return redact(before + text + after).removeprefix(before).removesuffix(after)
