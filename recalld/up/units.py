"""`recalld up` as a service of the user: a unit of systemd, or an agent of launchd on macOS."""

from __future__ import annotations

import os
import plistlib
import pwd
import re
import shlex
import shutil
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from memory.http.whole_files import write_whole
from recalld.settings.places import absolute
from recalld.up.detached import UP_LOG
from schemas.errors import UserError

#: Seconds for a start, which waits until everything is ready, or for an orderly end.
_COMMAND_SECONDS = 180.0

#: States of a service that runs.
RUNNING = frozenset(("active", "activating", "reloading", "running"))

#: Variables with keys and settings for the unit of systemd: NAME=value, a line each.
ENVIRONMENT_FILE = "~/.config/recalld/environment"


class ServiceManager(ABC):
    """Starter of `recalld up` at login or boot, and again after a failure. One service for each user."""

    #: File that describes the service.
    file: Path

    def home(self) -> Path | None:
        """Return the home of the installed service, None without one.

        Raises:
            UserError: the file was not written by recalld, or cannot be read.
        """
        try:
            home = self._home_in(self.file.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UserError(f"{self.file} cannot be read ({error.strerror})") from None
        if home is None:
            raise UserError(f"{self.file} was not written by recalld and stays as it is; move it away first")
        return Path(home)

    def install(self, command: Sequence[str], *, home: Path, search_path: str) -> None:
        """Write the file for `command`, which names the home, and start it, or start it again.

        Raises:
            UserError: the service of another home is installed, or this one does not start. A new one is removed again.
        """
        before = self.home()
        if before not in (None, home):
            raise UserError(
                f"the service runs {before}; first `recalld service remove --home {shlex.quote(str(before))}`"
            )
        try:
            (home / UP_LOG).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(self.file, self.text(command, home=home, search_path=search_path), mode=0o644)
        except OSError as error:
            raise UserError(f"{self.file} cannot be written ({error.strerror})") from None
        try:
            self._start()
        except UserError:
            if before is None:
                with suppress(UserError):
                    self._unload()
                self.file.unlink(missing_ok=True)
            raise

    def remove(self) -> None:
        """Stop the service and remove its file. Raises UserError."""
        self._unload()
        self.file.unlink(missing_ok=True)

    @abstractmethod
    def text(self, command: Sequence[str], *, home: Path, search_path: str) -> bytes:
        """Return the content of the file."""

    @abstractmethod
    def state(self) -> str:
        """Return the state in the system's word (see `RUNNING`)."""

    @abstractmethod
    def boot_sentence(self) -> str:
        """Return a sentence about when it starts."""

    @abstractmethod
    def _home_in(self, text: bytes) -> str | None:
        """Return the home in a file of ours, None for another file."""

    @abstractmethod
    def _start(self) -> None: ...

    @abstractmethod
    def _unload(self) -> None: ...


def service_manager() -> ServiceManager:
    """Return the service manager of this system."""
    return Launchd() if sys.platform == "darwin" else Systemd()


class Systemd(ServiceManager):
    """A unit of the user's own systemd."""

    def __init__(self) -> None:
        self.file = Path(absolute("~/.config/systemd/user/recalld.service"))

    def text(self, command: Sequence[str], *, home: Path, search_path: str) -> bytes:
        """Return the unit."""
        program, *arguments = (_quoted(word) for word in command)
        words = [program, *(word.replace("$", "$$") for word in arguments)]
        environment = _quoted(f"PATH={search_path}")
        return _UNIT.format(
            home=str(home).replace("\n", " "),
            command=" ".join(words),
            environment=environment,
            file=ENVIRONMENT_FILE.replace("~", "%h"),
        ).encode("utf-8", "surrogateescape")

    def state(self) -> str:
        return self._systemctl("show", "--property=ActiveState", "--value", self.file.name)

    def boot_sentence(self) -> str:
        user = pwd.getpwuid(os.getuid()).pw_name
        with suppress(UserError):
            if run_program("loginctl", "show-user", user, "--property=Linger", "--value") == "yes":
                return "It runs from boot on, without a login (linger is on)."
        return "It runs while you are logged in; `loginctl enable-linger` lets it run from boot on, without a login."

    def _home_in(self, text: bytes) -> str | None:
        match = re.search(rb"^# Home: (.+)$", text, re.MULTILINE)
        return os.fsdecode(match[1]) if match else None

    def _start(self) -> None:
        self._systemctl("daemon-reload")
        self._systemctl("enable", self.file.name)
        self._systemctl("restart", self.file.name)

    def _unload(self) -> None:
        self._systemctl("disable", "--now", self.file.name)
        self.file.unlink(missing_ok=True)
        self._systemctl("daemon-reload")

    def _systemctl(self, *arguments: str) -> str:
        return run_program("systemctl", "--user", *arguments)


class Launchd(ServiceManager):
    """An agent of the user's launchd."""

    def __init__(self) -> None:
        self.file = Path(absolute("~/Library/LaunchAgents/recalld.plist"))
        self._domain = f"gui/{os.getuid()}"

    def text(self, command: Sequence[str], *, home: Path, search_path: str) -> bytes:
        """Return the property list."""
        return plistlib.dumps(
            {
                "Label": "recalld",
                "ProgramArguments": list(command),
                "EnvironmentVariables": {"PATH": search_path},
                "RunAtLoad": True,
                # `recalld stop` ends it with code 0, until the next login.
                "KeepAlive": {"SuccessfulExit": False},
                "ExitTimeOut": 150,
                "Umask": 0o077,
                "StandardOutPath": str(home / UP_LOG),
                "StandardErrorPath": str(home / UP_LOG),
            }
        )

    def state(self) -> str:
        try:
            text = run_program("launchctl", "print", f"{self._domain}/recalld")
        except UserError:
            return "not loaded"
        match = re.search(r"^\s*state = (.+)$", text, re.MULTILINE)
        return match[1] if match else "unknown"

    def boot_sentence(self) -> str:
        return "It starts when you log in."

    def _home_in(self, text: bytes) -> str | None:
        try:
            command = plistlib.loads(text)["ProgramArguments"]
            return str(command[command.index("--home") + 1]) if command[1] == "up" else None
        except (ValueError, KeyError, IndexError, AttributeError, TypeError, plistlib.InvalidFileException):
            return None

    def _start(self) -> None:
        with suppress(UserError):
            run_program("launchctl", "bootout", f"{self._domain}/recalld")
        run_program("launchctl", "bootstrap", self._domain, str(self.file))

    def _unload(self) -> None:
        if self.state() != "not loaded":
            run_program("launchctl", "bootout", f"{self._domain}/recalld")


def run_program(program: str, *arguments: str) -> str:
    """Run a program of the system's service manager. Return its output.

    Raises:
        UserError: it is not there, fails, or takes too long.
    """
    path = shutil.which(program)
    if path is None:
        raise UserError(f"there is no {program} on this machine; `recalld up --detach` runs without it until a reboot")
    typed = f"`{shlex.join([program, *arguments])}`"
    try:
        done = subprocess.run(  # noqa: S603 - a fixed program with our own words
            [path, *arguments],
            check=False,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_COMMAND_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise UserError(f"{typed} did not end within {_COMMAND_SECONDS:.0f} s") from None
    if done.returncode != 0:
        words = " ".join((done.stderr or done.stdout).split()) or f"exit code {done.returncode}"
        raise UserError(f"{typed} failed: {words.rstrip('.')}; `recalld up --detach` runs without it until a reboot")
    return done.stdout.strip()


def _quoted(word: str) -> str:
    """Return a word as systemd reads it (systemd.syntax(7)): in quotes, with % doubled."""
    for character, escaped in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("%", "%%")):
        word = word.replace(character, escaped)
    return f'"{word}"'


_UNIT = """\
# Written by `recalld service install`, which writes it anew.
# Home: {home}
[Unit]
Description=recalld: searchable memory of agents
StartLimitIntervalSec=0

[Service]
# It reports when it is ready, and twice a minute that it works. Without a report systemd restarts it.
Type=notify
WatchdogSec=60
WatchdogSignal=SIGTERM
TimeoutStartSec=120
ExecStart={command}
Environment={environment}
# Keys and settings: NAME=value, a line each. Mode 0600.
EnvironmentFile=-{file}
Restart=on-failure
RestartSec=5
# `up` stops its processes in order, each kind within 30 seconds.
KillMode=mixed
TimeoutStopSec=150
UMask=0077
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native

[Install]
WantedBy=default.target
"""
