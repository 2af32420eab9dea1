"""A whole recalld on one machine, run as a user runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.forked import command_line
from tests.waiting import wait_until

REPOSITORY = Path(__file__).resolve().parents[1]

#: Debounce of the tests; the product's is 1.5 s.
DEBOUNCE_MS = 150


def recalld(
    *arguments: str,
    home: Path | None = None,
    environment: Mapping[str, str] | None = None,
    payload: str | None = None,
    folder: Path = REPOSITORY,
    timeout: float = 120,
) -> subprocess.CompletedProcess[str]:
    """Run one command, with `payload` as its input, and return what it printed; never raises for its exit code."""
    options = ["--home", str(home)] if home is not None else []
    variables = clean_environment(environment)
    return subprocess.run(
        command_line([*options, *arguments], variables),
        cwd=folder,
        env=variables,
        input=payload,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def started(
    *arguments: str,
    home: Path | None = None,
    environment: Mapping[str, str] | None = None,
    folder: Path = REPOSITORY,
    **options: Any,
) -> subprocess.Popen[Any]:
    """Start one command, which runs beside the test. `options` are those of `subprocess.Popen`."""
    home_option = ["--home", str(home)] if home is not None else []
    return subprocess.Popen(
        [sys.executable, "-m", "recalld", *home_option, *arguments],
        cwd=folder,
        env=clean_environment(environment),
        **options,
    )


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without what would change recalld's settings."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("RECALLD_")
        and not name.endswith("_API_KEY")
        # With compiled files a command starts in a third of the time.
        and name not in {"REDIS_URL", "OPENAI_BASE_URL", "PYTHONDONTWRITEBYTECODE"}
    }
    return {**kept, **(extra or {})}


class Daemon:
    """`recalld up` with a short debounce and, unless told otherwise, the deterministic stub provider."""

    def __init__(
        self,
        home: Path,
        workspace: Path,
        *,
        provider: str = "stub",
        config: str = "",
        environment: Mapping[str, str] | None = None,
        folder: Path = REPOSITORY,
    ) -> None:
        self.home = home
        self.folder = folder
        self.workspace = workspace
        self.environment = environment
        self.config = home.parent / f"{home.name}.toml"
        self.config.write_text(
            f'provider = "{provider}"\n{config}\n[sync]\nwatch_debounce_ms = {DEBOUNCE_MS}\n', encoding="utf-8"
        )
        self.process: subprocess.Popen[str] | None = None
        self.printed = home.parent / f"{home.name}.out"

    def __enter__(self) -> Daemon:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start it and wait until it answers."""
        before = len(self.said())
        with self.printed.open("a") as output:
            words = [*self.options(), "up", *self.up_options(), "--port", "0"]
            where = {"environment": self.environment, "folder": self.folder}
            self.process = started(*words, **where, stdout=output, stderr=subprocess.STDOUT, text=True)
        wait_until(lambda: self.running() and "Ctrl-C" in self.said()[before:], timeout=120, what=self.said())

    def stop(self) -> int:
        """Ctrl-C; returns the exit code."""
        if self.process is None:
            return 0
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        code = self.process.wait(timeout=120)
        self.process = None
        return code

    def kill(self) -> None:
        """kill -9 of the supervisor itself."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(timeout=60)
        self.process = None

    def running(self) -> bool:
        """True while it runs; an early end is an error with what it said."""
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError(f"up ended with {self.process.returncode}: {self.said()}")
        return True

    def said(self) -> str:
        """Everything that it printed."""
        return self.printed.read_text() if self.printed.exists() else ""

    def options(self) -> list[str]:
        return ["--config", str(self.config), "--home", str(self.home)]

    def run(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run another recalld command against the same home."""
        options = {"environment": self.environment, "folder": self.folder, **options}
        return recalld(*self.options(), *arguments, **options)

    def started(self, *arguments: str, **options: Any) -> subprocess.Popen[Any]:
        """Start another recalld command against the same home, which runs beside the test."""
        return started(*self.options(), *arguments, **options)

    def up_options(self) -> list[str]:
        """Return the options of `up` that name the agents."""
        return ["--workspace", str(self.workspace)]

    def search(self, query: str, *arguments: str) -> list[dict[str, Any]]:
        """The results of `recalld search --json`."""
        answer = self.run("search", query, "--json", *arguments)
        assert answer.returncode in {0, 3} or '"unavailable"' in answer.stdout, answer.stderr
        return list(json.loads(answer.stdout)["results"])

    def found(self, query: str, path: str) -> bool:
        """Return True if the query finds that document."""
        return any(result["path"] == path for result in self.search(query))

    def status(self) -> dict[str, Any]:
        """The first agent's part of `recalld status --json`."""
        answer = self.run("status", "--json")
        return dict(json.loads(answer.stdout)["agents"][0])

    def port(self) -> int:
        """Return the port of the registered query service."""
        return int(json.loads((self.home / "run" / "service.json").read_text())["port"])

    @contextmanager
    def beside(self, *arguments: str) -> Iterator[None]:
        """Run another long-running command in the same home until the block ends; it is up when the block begins."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        with self.started(*arguments, "--supervised", **pipes) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == b"ready\n"
            yield
            other.terminate()

    def children(self, name: str) -> list[int]:
        """Process ids of the children that run this command."""
        assert self.process is not None
        return [pid for pid in descendants(self.process.pid) if name in arguments_of(pid)]

    def broker_pid(self) -> int:
        """The private Valkey's process id."""
        folder = str(self.home / "broker")
        for entry in Path("/proc").iterdir():
            words = arguments_of(int(entry.name)) if entry.name.isdigit() else [""]
            if "valkey" in words[0] and any(folder in word for word in words):
                return int(entry.name)
        raise AssertionError("no broker runs")

    def write(self, path: str, text: str) -> Path:
        """Write a note of the workspace."""
        file = self.workspace / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return file


def children(pid: int) -> list[int]:
    """Processes right below this one."""
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):  # a thread that ends meanwhile
                found += map(int, (task / "children").read_text("ascii").split())
    return found


def descendants(pid: int) -> list[int]:
    """All processes below this one."""
    below = children(pid)
    return below + [deeper for child in below for deeper in descendants(child)]


def arguments_of(pid: int) -> Sequence[str]:
    """The command line of a process, empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0") or [""]
    except OSError:
        return [""]


def files_with(folder: Path, holds: Callable[[bytes], bool]) -> list[Path]:
    """The files below a folder whose content holds something. Processes may remove files there meanwhile."""
    files = []
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            if path.is_file() and holds(path.read_bytes()):
                files.append(path)
    return files


def processes_of(home: Path) -> list[int]:
    """The processes, besides this one, whose arguments name the home."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if pid != os.getpid() and any(str(home) in word for word in arguments_of(pid))]
