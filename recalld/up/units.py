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
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from memory.http.whole_files import write_whole
from recalld.settings.places import absolute
from recalld.up.detached import UP_LOG
from schemas.errors import UserError

#: Seconds for a start, which waits until everything is ready, or for an orderly end.
_COMMAND_SECONDS = 180.0

#: Variables with keys and settings for the unit of systemd.
ENVIRONMENT_FILE = "~/.config/recalld/environment"

_SYSTEMCTL = ("systemctl", "--user")


@dataclass(frozen=True, slots=True)
class Service:
    """Service of one user that runs `recalld up` for one home, with the commands that manage it.

    It is started at login or boot, and again after a failure.
    """

    file: Path
    starting: tuple[tuple[str, ...], ...]
    stopping: tuple[tuple[str, ...], ...]
    status: tuple[str, ...]

    @property
    def is_launchd(self) -> bool:
        """True if launchd manages it."""
        return self.file.suffix == ".plist"

    def home(self) -> Path | None:
        """Return the home of the installed service, None without one.

        Raises:
            UserError: the file was not written by recalld, or cannot be read.
        """
        try:
            match = re.search(rb"Home: file://([^\s<]+)", self.file.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UserError(f"{self.file} cannot be read ({error.strerror})") from None
        if match is None:
            raise UserError(f"{self.file} was not written by recalld and stays as it is; move it away first")
        return Path(unquote(match[1].decode()))

    def install(self, command: Sequence[str], *, home: Path) -> None:
        """Write the file for `command`, and start the service, or start it again.

        Raises:
            UserError: the service of another home is installed, or this one does not start; then it is removed again.
        """
        before = self.home()
        if before not in (None, home):
            raise UserError(
                f"the service runs {before}; first `recalld service remove --home {shlex.quote(str(before))}`"
            )
        if before is not None:
            self.remove()
        try:
            (home / UP_LOG).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(self.file, (_plist if self.is_launchd else _unit)(command, home=home), mode=0o644)
        except OSError as error:
            raise UserError(f"{self.file} cannot be written ({error.strerror})") from None
        try:
            for arguments in self.starting:
                run_program(*arguments)
        except UserError:
            with suppress(UserError):
                self.remove()
            raise

    def remove(self) -> None:
        """Stop the service and remove its file. Raises UserError."""
        for arguments in self.stopping if self.state() != "not loaded" else ():
            run_program(*arguments)
        self.file.unlink(missing_ok=True)
        if not self.is_launchd:
            run_program(*_SYSTEMCTL, "daemon-reload")

    def state(self) -> str:
        """Return the state in the system's word: "active" of systemd, "running" of launchd."""
        try:
            text = run_program(*self.status)
        except UserError:
            return "not loaded"
        values = {name.strip(): value.strip() for name, _, value in (line.partition("=") for line in text.splitlines())}
        return values.get("ActiveState") or values.get("state") or "unknown"

    def start_sentence(self) -> str:
        """Return a sentence about when it starts."""
        linger = ("loginctl", "show-user", pwd.getpwuid(os.getuid()).pw_name, "--property=Linger", "--value")
        with suppress(UserError):
            if not self.is_launchd and run_program(*linger) == "yes":
                return "It runs from boot on, without a login (linger is on)."
        advice = "" if self.is_launchd else "; `loginctl enable-linger` lets it run from boot on, without a login"
        return f"It runs while you are logged in{advice}."


def systemd() -> Service:
    """Return the user unit."""
    name = "recalld.service"
    return Service(
        Path(absolute(f"~/.config/systemd/user/{name}")),
        starting=((*_SYSTEMCTL, "daemon-reload"), (*_SYSTEMCTL, "enable", "--now", name)),
        stopping=((*_SYSTEMCTL, "disable", "--now", name),),
        status=(*_SYSTEMCTL, "show", "--property=ActiveState", name),
    )


def launchd() -> Service:
    """Return the agent of launchd."""
    file, domain = absolute("~/Library/LaunchAgents/recalld.plist"), f"gui/{os.getuid()}"
    return Service(
        Path(file),
        starting=(("launchctl", "bootstrap", domain, file),),
        stopping=(("launchctl", "bootout", f"{domain}/recalld"),),
        status=("launchctl", "print", f"{domain}/recalld"),
    )


def service_here() -> Service:
    """Return the service of this system, installed or not."""
    return launchd() if sys.platform == "darwin" else systemd()


def run_program(program: str, *arguments: str) -> str:
    """Run a program of the system's service manager. Return its output.

    Raises:
        UserError: it is not there, fails, or takes too long.
    """
    path, typed = shutil.which(program), f"`{shlex.join([program, *arguments])}`"
    advice = "`recalld up --detach` runs without it until a reboot"
    if path is None:
        raise UserError(f"there is no {program} on this machine; {advice}")
    try:
        done = subprocess.run(  # noqa: S603 - a fixed program with our own words
            [path, *arguments], check=False, capture_output=True, text=True, errors="replace", timeout=_COMMAND_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise UserError(f"{typed} did not end within {_COMMAND_SECONDS:.0f} s") from None
    if done.returncode != 0:
        words = " ".join((done.stderr or done.stdout).split()) or f"exit code {done.returncode}"
        raise UserError(f"{typed} failed: {words.rstrip('.')}; {advice}")
    return done.stdout.strip()


def _unit(command: Sequence[str], *, home: Path) -> bytes:
    program, *arguments = (_quoted(word) for word in command)
    words = " ".join([program, *(word.replace("$", "$$") for word in arguments)])
    path, file = _quoted(f"PATH={os.pathsep.join(os.get_exec_path())}"), ENVIRONMENT_FILE.replace("~", "%h")
    return _UNIT.format(home=home.as_uri(), command=words, path=path, file=file).encode("utf-8", "surrogateescape")


def _quoted(word: str) -> str:
    """Return a word as systemd reads it (systemd.syntax(7)): in quotes, with % doubled."""
    for character, escaped in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("%", "%%")):
        word = word.replace(character, escaped)
    return f'"{word}"'


def _plist(command: Sequence[str], *, home: Path) -> bytes:
    """Return the property list. launchd throws away standard output; errors and, without it, messages go to the log."""
    return plistlib.dumps(
        {
            "Comment": f"Home: {home.as_uri()}",
            "Label": "recalld",
            "ProgramArguments": list(command),
            "EnvironmentVariables": {"PATH": os.pathsep.join(os.get_exec_path())},
            "RunAtLoad": True,
            "KeepAlive": {"SuccessfulExit": False},  # `recalld stop` ends it with code 0, until the next login
            "ExitTimeOut": 150,
            "Umask": 0o077,
            "StandardErrorPath": str(home / UP_LOG),
        }
    )


_UNIT = """\
# Written by `recalld service install`, which writes it anew. Home: {home}
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
Environment={path}
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
