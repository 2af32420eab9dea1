"""Logs of a home: entries of all processes in the order of their times, and those that come."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from heapq import nlargest
from itertools import chain
from pathlib import Path
from typing import Any

#: Seconds between two looks at the ends of the logs.
_LOOK_SECONDS = 0.3


@dataclass(frozen=True, slots=True, order=True)
class LogEntry:
    """Entry of a process. `at` is Unix time; a line without a time has that of the line before it."""

    at: float
    process: str
    number: int
    line: str

    @property
    def fields(self) -> dict[str, Any]:
        """Fields of the entry. A line that is none, such as an error message, is an event."""
        with suppress(ValueError):
            if isinstance(fields := json.loads(self.line), dict):
                return fields
        return {"event": self.line}

    def as_json(self) -> dict[str, Any]:
        """Return the fields, with process and time in any case."""
        at = datetime.fromtimestamp(self.at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return {"timestamp": at, **self.fields, "process": self.process}


def log_names(home: Path, process: str | None = None) -> list[str]:
    """Return the names of processes that have a log: those that `process` means (`work`: all workers), else all."""
    return list(_files(home, process))


def entries(home: Path, process: str | None, *, number: int, follow: bool) -> Iterator[LogEntry]:
    """Yield the last entries, by time, `number` 0: all; then, without an end, those that are written from now on."""
    read: dict[Path, int] = {}
    before = (
        entry
        for name, file in _files(home, process).items()
        if (copy := file.with_suffix(".log.1")).exists()
        for entry in _entries(name, copy, copy.read_bytes())
    )
    first = chain(before, _new_entries(home, process, read))
    yield from sorted(nlargest(number, first) if number else first)
    while follow:
        time.sleep(_LOOK_SECONDS)
        yield from sorted(_new_entries(home, process, read))


def _new_entries(home: Path, process: str | None, read: dict[Path, int]) -> Iterator[LogEntry]:
    """Yield the entries behind the bytes that were read, and count them as read."""
    for name, file in _files(home, process).items():
        with file.open("rb") as log:
            beginning = read.get(file, 0)
            log.seek(beginning if beginning <= file.stat().st_size else 0)  # it was moved to .log.1
            beginning, text = log.tell(), log.read()
        entry_lines = text[: text.rfind(b"\n") + 1]
        read[file] = beginning + len(entry_lines)
        yield from _entries(name, file, entry_lines)


def _files(home: Path, process: str | None = None) -> dict[str, Path]:
    """Return the logs of a process, `work` of all workers, or of all processes, by name."""
    files = {file.stem: file for file in sorted((home / "log").glob("*.log"))}
    return {name: file for name, file in files.items() if process in (None, name, name.partition("-")[0])}


def _entries(name: str, file: Path, text: bytes) -> Iterator[LogEntry]:
    lines = [line for line in text.decode("utf-8", "replace").splitlines() if line.strip()]
    times = [_time(line) for line in lines]
    at = next((time for time in times if time is not None), file.stat().st_mtime)
    for number, line in enumerate(lines):
        at = times[number] or at
        yield LogEntry(at, name, number, line)


def _time(line: str) -> float | None:
    try:
        return datetime.fromisoformat(json.loads(line)["timestamp"]).timestamp()
    except (ValueError, KeyError, TypeError):
        return None
