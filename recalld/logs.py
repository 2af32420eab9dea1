"""Structured logs on standard error: an event name and fields, one JSON object a line; coloured on a terminal.

No line holds a secret: every field and exception is redacted on its way out. No line quotes a document: callers log
names and counts. A foreign exception's message may quote a document, so only its type and its frames are logged.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TextIO, cast

import structlog
from structlog.typing import EventDict, Processor

from memory.redaction import redact
from recalld.terminal_text import printable, printable_answer
from schemas.errors import RecalldError

#: Fields that hold tracebacks.
_OF_SEVERAL_LINES = frozenset(("exception", "stack"))

#: Types whose messages are made of names of files, errors of the system and our own words.
_SPEAKING = (RecalldError, OSError)

#: Fields that hold an error's words.
_FIELDS = ("error", "message", "reason")

#: Foreign words in our own messages, and their replacement in logs.
_FOREIGN = (
    # memory.embedding.providers.endpoint: a provider's own sentence.
    (re.compile(r"\((HTTP \d{3}): (?:.*\)|.*)", re.DOTALL), r"(\1)"),
    # An unexpected error: the type is enough.
    (re.compile(r"\b(unexpected \w+|failed on it: \w+|failed: \w+Error): .*", re.DOTALL), r"\1"),
)


def configure_logs(*, level: int = logging.INFO, process: str | None = None) -> None:
    """Set up structlog and the libraries' own logging for this process.

    `process` is in every line as that, with its id: logs of several processes end up in one place.
    """
    log = cast(TextIO, _Unfailing(sys.stderr))
    terminal = sys.stderr.isatty()
    renderer: Processor = (
        structlog.dev.ConsoleRenderer() if terminal else structlog.processors.JSONRenderer(ensure_ascii=False)
    )
    fields: dict[str, object] = {"process": process, "pid": os.getpid()} if process is not None else {}
    chain: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso"),
        lambda _logger, _method, event: {**fields, **event},
        _describe_exceptions,
        redact_fields,
        *((_without_commands,) if terminal else ()),
    ]
    structlog.configure(
        processors=[*chain, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(log),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(log)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(processors=[renderer], foreign_pre_chain=[_name_library, *chain])
    )
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    # recalld logs a restart of the broker once; the library would log it once a thread.
    logging.getLogger("dramatiq").setLevel(logging.ERROR)
    logging.getLogger("dramatiq.worker").setLevel(logging.CRITICAL + 1)
    # A caller of the store gets the error of a connection that cannot be replaced.
    logging.getLogger("psycopg.pool").setLevel(logging.ERROR)


class _Unfailing:
    """Stream that never raises: a log on a full disk must not end the logging thread."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):  # ValueError: it was closed
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()


# Processors of structlog


def _name_library(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Return a library's record as an event: its message is a field, redacted like every other one."""
    name, error = event["_record"].name, event.get("exc_info")
    return {"event": "library", "logger": name, "message": event["event"], "exc_info": error}


def _describe_exceptions(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Replace `exc_info` by `exception`, and remove foreign words from errors."""
    exc_info = event.pop("exc_info", None)
    error = exc_info[1] if isinstance(exc_info, tuple) else sys.exc_info()[1] if exc_info is True else exc_info
    if isinstance(error, BaseException):
        event["exception"] = describe(error)
    for field in _FIELDS:
        if isinstance(event.get(field), str):
            event[field] = without_foreign_words(event[field])
    return event


def redact_fields(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Mask secrets in every field, nested ones included."""
    return {name: _redacted(value, name) for name, value in event.items()}


def _without_commands(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Remove terminal control characters, which a file's name may have."""
    return {
        name: printable(value) if name in _OF_SEVERAL_LINES and isinstance(value, str) else printable_answer(value)
        for name, value in event.items()
    }


def _redacted(value: Any, name: str = "") -> Any:
    if isinstance(value, Mapping):
        return {key: _redacted(entry, str(key)) for key, entry in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
        return [_redacted(entry) for entry in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    # An exception, a path, a model of pydantic's: rendered as the renderer would.
    text = value if isinstance(value, str) else repr(value)
    redacted = redact(text)
    if redacted != text or not name or text is not value:
        return redacted
    # A field's name may mark a secret: `password = '...'`.
    before, after = f"{name} = '", "'"
    return redact(before + text + after).removeprefix(before).removesuffix(after)


def without_foreign_words(text: str) -> str:
    """Return a sentence of ours without its quotations."""
    for pattern, replacement in _FOREIGN:
        text = pattern.sub(replacement, text)
    return text


def describe(error: BaseException) -> str:
    """Return the tracebacks of an exception and of its causes, the last one last, without foreign messages."""
    parts: list[str] = []
    ids: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in ids:
        ids.add(id(current))
        frames = "".join(traceback.format_tb(current.__traceback__))
        words = f": {without_foreign_words(str(current))}" if isinstance(current, _SPEAKING) else ""
        parts.insert(0, f"Traceback (most recent call last):\n{frames}{type(current).__qualname__}{words}")
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return "\n\n".join(parts)
