"""The command `qmd`: run in a folder of its own, with time limits, bounded output, and noise around its answers."""

from __future__ import annotations

import json
import os
import re
import selectors
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memory.backends.backend import BackendFailed

#: Characters of output that are read; a command that prints more is ended.
MAX_OUTPUT = 200_000

#: Words of errors that go away: the index is locked, or the machine is busy.
_BUSY = re.compile(r"SQLITE_BUSY|database is locked|timed out", re.IGNORECASE)

_HEADER = re.compile(r"@@ -(\d+),(\d+) @@[^\n]*\n?")


class QmdFailed(BackendFailed):
    """The command failed. `is_busy` if it may work in a moment."""

    def __init__(self, message: str, *, is_busy: bool = False) -> None:
        super().__init__(message)
        self.is_busy = is_busy


@dataclass(frozen=True, slots=True)
class QmdHit:
    """A found passage: lines `start` to `end` (1-based) of the file `path` in a collection."""

    collection: str
    path: str
    start: int
    end: int
    score: float
    text: str


def program_of(command: str) -> str:
    """Return the path of the command.

    Raises:
        QmdFailed: it is not installed.
    """
    program = shutil.which(command)
    if program is None:
        raise QmdFailed(f"the command {command} is not installed; npm has it as @tobilu/qmd")
    return program


class QmdCommand:
    """Runs the command for one agent. Its configuration and its index lie in `folder`, apart from the user's own."""

    def __init__(self, command: str, folder: Path, workspace: Path) -> None:
        self._command = command
        self._workspace = workspace
        # The rest of the environment is this process's.
        self._environment = (
            f"XDG_CONFIG_HOME={folder / 'config'}",
            f"XDG_CACHE_HOME={folder / 'cache'}",
            f"QMD_CONFIG_DIR={folder / 'config' / 'qmd'}",
            "NO_COLOR=1",
        )
        self._running: set[subprocess.Popen[bytes]] = set()
        self._stopped = threading.Event()
        self.configuration = folder / "config" / "qmd" / "index.yml"

    def stop(self) -> None:
        """End what runs, and let nothing more run."""
        self._stopped.set()
        for process in tuple(self._running):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)

    def run(self, *arguments: str, timeout_seconds: float) -> str:
        """Return what the command prints.

        Raises:
            QmdFailed: it cannot be started, fails, prints too much, or takes longer; then it is killed.
        """
        program = program_of(self._command)
        try:
            process = subprocess.Popen(  # noqa: S603 - the command of the settings, without a shell
                ["/usr/bin/env", *self._environment, program, *arguments],
                cwd=self._workspace,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise QmdFailed(f"{self._command} cannot be started: {error.strerror}") from error
        what = f"{self._command} {arguments[0]}"
        self._running.add(process)
        try:
            if self._stopped.is_set():
                raise QmdFailed(f"{what} was ended")
            printed, errors = _outputs(process, what, until=time.monotonic() + timeout_seconds)
        finally:
            self._running.discard(process)
            _kill(process)
        if process.returncode != 0:
            lines = (errors.strip() or printed.strip()).splitlines()
            reason = lines[-1] if lines else f"exit code {process.returncode}"
            raise QmdFailed(f"{what} failed: {reason[:300]}", is_busy=bool(_BUSY.search(errors)))
        return printed


def _outputs(process: subprocess.Popen[bytes], what: str, *, until: float) -> tuple[str, str]:
    streams = [stream for stream in (process.stdout, process.stderr) if stream is not None]
    read = {stream.fileno(): bytearray() for stream in streams}
    with selectors.DefaultSelector() as selector:
        for descriptor in read:
            selector.register(descriptor, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(max(0.0, until - time.monotonic()))
            if not ready:
                raise QmdFailed(f"{what} timed out", is_busy=True)
            for key, _ in ready:
                piece = os.read(key.fd, 65_536)
                if not piece:
                    selector.unregister(key.fd)
                read[key.fd] += piece
                if len(read[key.fd]) > MAX_OUTPUT:
                    raise QmdFailed(f"{what} printed more than {MAX_OUTPUT:,} characters")
    try:
        process.wait(max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise QmdFailed(f"{what} timed out", is_busy=True) from None
    printed, errors = (bytes(data).decode("utf-8", "replace") for data in read.values())
    return printed, errors


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End the command and what it started, and take its exit code."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def read_hits(printed: str) -> list[QmdHit]:
    """Return the hits in what a search printed: the first JSON array in it.

    Raises:
        QmdFailed: there is none.
    """
    if not printed.strip() or "no results" in printed.lower():
        return []
    decoder = json.JSONDecoder()
    for start in (match.start() for match in re.finditer(r"\[", printed)):
        try:
            found, _ = decoder.raw_decode(printed, start)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, list) and all(isinstance(entry, dict) for entry in found):
            return [hit for entry in found if (hit := _hit(entry)) is not None]
    raise QmdFailed("qmd printed something else than results")


def _hit(entry: dict[str, Any]) -> QmdHit | None:
    file, snippet = entry.get("file"), entry.get("snippet")
    match = re.fullmatch(r"qmd://([^/]+)/(.+)", file) if isinstance(file, str) else None
    if match is None or not isinstance(snippet, str):
        return None
    header = _HEADER.match(snippet)
    text = (snippet[header.end() :] if header else snippet).rstrip("\n")
    start = int(header[1]) if header else max(1, _number(entry.get("line"), 1))
    return QmdHit(match[1], match[2], start, start + text.count("\n"), float(_number(entry.get("score"), 0)), text)


def _number(value: object, otherwise: int) -> Any:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else otherwise


def documents_of(printed: Sequence[str]) -> tuple[int | None, int | None]:
    """Return the numbers of files and of embedded chunks that `qmd status` prints, in lines."""
    text = "\n".join(printed)
    files, vectors = (re.search(rf"^\s*{name}:\s+(\d+)", text, re.MULTILINE) for name in ("Total", "Vectors"))
    return (int(files[1]) if files else None, int(vectors[1]) if vectors else None)
