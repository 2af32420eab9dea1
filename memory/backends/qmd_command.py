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
from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel, Field, ValidationError

from memory.backends.backend import BackendFailed
from memory.http.whole_files import write_whole
from memory.redaction import redact

#: Characters of output that are read; a command that prints more is ended.
MAX_OUTPUT = 200_000

_HEADER = re.compile(r"@@ -(\d+),(\d+) @@[^\n]*\n?")
#: A list of objects, or an empty one. Each other bracket of the noise above would be read for nothing.
_HITS = re.compile(r'\[(?=\s*(?:\{\s*["}]|\]))')
_COUNTS = {name: re.compile(rf"^[^\S\n]*{name}:\s+(\d+)", re.MULTILINE) for name in ("Total", "Vectors")}


class QmdFailed(BackendFailed):
    """The command is missing or failed."""


class QmdHit(BaseModel):
    """Found passage as the command prints it. `file`: qmd://<collection>/<path>."""

    file: str = Field(pattern="^qmd://[^/]+/.+$")
    snippet: str
    line: int = 1
    score: float = 0.0

    @property
    def place(self) -> tuple[str, str]:
        """Return the collection and the path in it."""
        collection, _, path = self.file.removeprefix("qmd://").partition("/")
        return collection, path

    @property
    def passage(self) -> tuple[int, str]:
        """Return the number of the first line (1-based), and the text."""
        header = _HEADER.match(self.snippet)
        text = self.snippet[header.end() if header else 0 :].rstrip("\n")
        return int(header[1]) if header else max(1, self.line), text


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
        self._configuration = folder / "config" / "qmd" / "index.yml"

    def configure(self, content: str) -> None:
        """Write the configuration."""
        write_whole(self._configuration, content.encode(), synced=False)

    def stop(self) -> None:
        """Kill the running commands, and let no further one run."""
        self._stopped.set()
        for process in tuple(self._running):
            _kill(process)

    def run(self, *arguments: str, timeout_seconds: float) -> str:
        """Return the output of the command.

        Raises:
            QmdFailed: it cannot be started, fails, prints too much, or takes longer; then it is killed.
        """
        command_name = f"{self._command} {arguments[0]}"
        call = ["/usr/bin/env", *self._environment, program_of(self._command), *arguments]
        pipe = subprocess.PIPE
        with subprocess.Popen(  # noqa: S603 - the command of the settings, without a shell
            call, cwd=self._workspace, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, start_new_session=True
        ) as process:
            self._running.add(process)
            try:
                if self._stopped.is_set():
                    raise QmdFailed(f"{command_name} was ended")
                printed, errors = _outputs(process, until=time.monotonic() + timeout_seconds)
                code = process.wait(timeout_seconds)
            except (TimeoutError, subprocess.TimeoutExpired):
                raise QmdFailed(f"{command_name} timed out") from None
            except OverflowError:
                raise QmdFailed(f"{command_name} printed more than {MAX_OUTPUT:,} characters") from None
            finally:
                self._running.discard(process)
                _kill(process)
        if code != 0:
            # Output of a command that was killed is progress.
            reason = _reason(errors.strip() or printed) if code > 0 else ""
            raise QmdFailed(f"{command_name} failed: {reason or f'exit code {code}'}")
        return printed


def _outputs(process: subprocess.Popen[bytes], *, until: float) -> tuple[str, str]:
    """Return both outputs of a command at their end. Raise TimeoutError, or OverflowError for more than is read."""
    read = {stream: bytearray() for stream in (process.stdout, process.stderr) if stream is not None}
    with selectors.DefaultSelector() as selector:
        for stream in read:
            selector.register(stream, selectors.EVENT_READ, read[stream])
        while selector.get_map():
            ready = selector.select(max(0.0, until - time.monotonic()))
            if not ready:
                raise TimeoutError
            for key, _ in ready:
                piece = os.read(key.fd, 65_536)
                key.data.extend(piece)
                if len(key.data) > MAX_OUTPUT:
                    raise OverflowError
                if not piece:
                    selector.unregister(key.fileobj)
    printed, errors = (data.decode("utf-8", "replace") for data in read.values())
    return printed, errors


def _reason(printed: str) -> str:
    """Return the line that names the error, without secrets and cut: the first line behind source code and a stack."""
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    error_lines = (line for line in lines if (line.partition(":")[0].split() or [""])[0].lower().endswith("error"))
    plain_lines = (line for line in lines if not line.startswith(("at ", "(node:", "node:")))
    return redact(next(error_lines, None) or next(plain_lines, ""))[:300]


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the command and its child processes."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def read_hits(printed: str) -> list[QmdHit]:
    """Return the hits in the output of a search: its first JSON array of objects, or none if it says so.

    Raises:
        QmdFailed: there is neither.
    """
    begin = _HITS.search(printed)
    if begin is None and (not printed.strip() or "no results" in printed.lower()):
        return []
    try:
        entries, _ = json.JSONDecoder().raw_decode(printed, begin.start() if begin else len(printed))
    except (ValueError, RecursionError):
        raise QmdFailed("qmd printed something else than results") from None
    hits = []
    for entry in entries:
        with suppress(ValidationError):
            hits.append(QmdHit.model_validate(entry))
    return hits


def count_of(name: str, printed: str) -> int | None:
    """Return the number of files ("Total") or embedded chunks ("Vectors") that `qmd status` prints."""
    count = _COUNTS[name].search(printed)
    return int(count[1]) if count else None
