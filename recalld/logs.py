"""Structured logs on standard error: an event name and fields, one JSON object a line; coloured on a terminal."""

from __future__ import annotations

import logging
import sys

import structlog


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
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(
        level=logging.WARNING,
        stream=sys.stderr,
        format='{"level":"%(levelname)s","logger":"%(name)s","event":"%(message)s"}',
    )
    # Connection errors while the broker restarts are told once by us; the library would tell them per thread.
    logging.getLogger("dramatiq").setLevel(logging.ERROR)
    logging.getLogger("dramatiq.worker").setLevel(logging.CRITICAL + 1)
