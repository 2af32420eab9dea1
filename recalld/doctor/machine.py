"""Checks of the machine: files, watches, SQLite, disk, clock, redaction patterns, and the hooks of programs."""

from __future__ import annotations

import json
import os
import resource
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import apsw

from memory.documents.agent_files import AgentFiles
from memory.documents.roots import existing_folder
from memory.redaction import REWRITING, is_costly
from memory.status.home import tree_bytes
from memory.store.sqlite.connection import load_sqlite_vec
from producers.hook_events import OPENCLAW_EVENTS
from recalld.discover.openclaw import is_hook_enabled
from recalld.doctor.finding import Finding, Level
from recalld.hooks.installation import our_commands, spawned
from recalld.runs.status import size
from recalld.settings.program_folders import ProgramFolders
from recalld.wiring import BrokerSide
from schemas.errors import BrokerUnavailable, RecalldError
from schemas.settings import Settings, StoreSettings

#: Files that a process needs beside those of its agents' indexes: connections, models, watches.
_FILES_BESIDE, _FILES_AN_AGENT, _FILES_ENOUGH = 256, 8, 4096

#: Free bytes below which no index is built beside another one (`memory.index.file_generation_writer`), and below which
#: that is near.
_NO_SPACE, _LITTLE_SPACE = 50_000_000, 500_000_000

#: Seconds by which a clock may be wrong without consequences.
_CLOCK_SECONDS = 60.0

#: No right clock is before recalld was written (Unix time of 2025-01-01).
_EARLIEST = 1_735_689_600.0


def findings(settings: Settings) -> Iterator[Finding]:
    """Yield findings that need only the settings and this machine."""
    yield open_files(settings)
    yield watches(settings)
    yield from sqlite_parts(settings)
    yield disk(settings)
    yield from pattern_findings(settings)


def open_files(settings: Settings, *, limit: int | None = None) -> Finding:
    """Compare the files that a process may open with the files that the agents need."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if limit is None else limit
    better = min(_FILES_ENOUGH, _FILES_BESIDE + _FILES_AN_AGENT * len(settings.agents))
    if allowed == resource.RLIM_INFINITY or allowed >= better:
        return Finding("open files", f"a process may open {'any number of' if allowed < 0 else allowed} files")
    state = f"a process may open {allowed} files; with {len(settings.agents)} agents {better} are better"
    action = f"`ulimit -n {better}` before `recalld up`, or LimitNOFILE={better} in its systemd unit"
    return Finding("open files", state, Level.WARNING, action)


def watches(settings: Settings, *, limits: Path = Path("/proc/sys/fs/inotify")) -> Finding:
    """Compare the inotify watches that the system grants a user with those that the agents' folders need."""
    try:
        most = int((limits / "max_user_watches").read_text("ascii"))
    except (OSError, ValueError):
        return Finding("watches", f"{sys.platform} has no limit of inotify watches")
    folders = sum(
        _folders(AgentFiles.of(settings, agent)) for agent in settings.agents if agent.enabled and agent.sync.watch
    )
    if folders <= most:
        return Finding("watches", f"{folders} folders to watch; {most} inotify watches for all programs together")
    state = f"{folders} folders are to be watched with {most} inotify watches; some folders will be polled"
    enough = f"`sysctl fs.inotify.max_user_watches={1 << (2 * folders - 1).bit_length()}`"
    return Finding("watches", state, Level.WARNING, f"{enough}, and in /etc/sysctl.d to keep it")


def _folders(files: AgentFiles) -> int:
    """Return the number of folders that have to be watched for an agent."""
    folders = {existing_folder(os.fspath(root.path)) for root in files.watch_roots()}
    files.scan(entering=folders.add)
    return len(folders)


def sqlite_parts(settings: Settings) -> Iterator[Finding]:
    """Try the parts of SQLite for both kinds of search."""
    vector, sqlite_version = settings.store.vector, f"SQLite {apsw.sqlite_lib_version()}"
    connection = apsw.Connection(":memory:")
    try:
        connection.execute("CREATE VIRTUAL TABLE probe USING fts5(text)")
        yield Finding("keywords", f"{sqlite_version} has FTS5")
    except apsw.SQLError:
        action = "install apsw from its wheel: `pip install --force-reinstall --only-binary :all: apsw`"
        yield Finding("keywords", f"{sqlite_version} has no FTS5: nothing is found by its words", Level.PROBLEM, action)
    reason = load_sqlite_vec(connection, vector.extension_path)
    connection.close()
    if reason is not None and vector.enabled and vector.extension_path is not None:
        yield Finding("vectors", reason, Level.WARNING, "correct store.vector.extension_path, or take it out")
        return
    state = "sqlite-vec writes them" if reason is None else f"in plain tables ({reason})"
    searched = f"{state}, numpy {version('numpy')} searches them"
    yield Finding("vectors", searched if vector.enabled else "store.vector.enabled = false")


def disk(settings: Settings, *, free: int | None = None) -> Finding:
    """Compare the free space with the need of new documents, and of the largest index built anew beside itself."""
    home = next(folder for folder in (settings.home, *settings.home.parents) if folder.exists())
    try:
        with tempfile.TemporaryFile(dir=home):
            pass
    except OSError:
        action = "correct its permissions, or choose another --home"
        return Finding("disk", f"{home} cannot be written", Level.PROBLEM, action)
    free = shutil.disk_usage(home).free if free is None else free
    folder = settings.indexes_path
    largest = max(map(tree_bytes, folder.iterdir()), default=0) if os.access(folder, os.R_OK | os.X_OK) else 0
    state, enough = f"{size(free)} are free for {home}", max(_LITTLE_SPACE, 2 * largest)
    if free >= enough:
        return Finding("disk", state)
    action = f"keep {size(enough)} free"
    if free < _NO_SPACE:
        beside = ", and no new index can be built beside the present one" if largest else ""
        state += f": what does not fit into that is not indexed{beside}"
        return Finding("disk", state, Level.PROBLEM, action)
    anew = f"changed settings build an index anew beside the old one (the largest takes {size(largest)})"
    return Finding("disk", f"{state}; {anew}", Level.WARNING, action)


def store(settings: StoreSettings) -> Finding:
    """Ask the PostgreSQL of a fleet's store, as this user, for all that the store needs."""
    try:
        from memory.store.postgres.connection import Database

        facts = Database.of(settings).check()
    except RecalldError as error:
        return Finding("store", str(error), Level.PROBLEM)
    server = f"PostgreSQL {facts.server // 10_000} with pgvector {facts.pgvector} and schema {facts.number}"
    return Finding("store", f"{server}, as {facts.user}, whom row security holds to one tenant at a time")


def pattern_findings(settings: Settings) -> Iterator[Finding]:
    """Try each list of redaction patterns that an agent has, once."""
    lists = {agent.redaction.patterns: agent.id for agent in reversed(settings.agents) if agent.redaction.patterns}
    for patterns, agent in lists.items():
        slow = [place for place, pattern in enumerate(patterns, start=1) if is_costly(pattern)]
        if not slow:
            yield Finding("redaction", f"redaction.patterns of {agent}: all are quick")
        for place in slow:
            message = (
                f"pattern {place} of redaction.patterns of {agent} takes more than 0.2 s of processor time for one "
                "line of 1,000 characters: documents with such lines are not indexed"
            )
            yield Finding("redaction", message, Level.WARNING, REWRITING, (agent,))


def clock(*, broker_seconds_ahead: float | None, now: float | None = None) -> Finding:
    """Compare the clock with the broker's."""
    now = time.time() if now is None else now
    if now < _EARLIEST:
        date = time.strftime("%Y-%m-%d", time.gmtime(now))
        return Finding("clock", f"the clock says {date}", Level.PROBLEM, "set it (`timedatectl set-ntp true`)")
    if broker_seconds_ahead is None:
        return Finding("clock", "it is a date of recalld's time; the broker's is not known")
    if abs(broker_seconds_ahead) <= _CLOCK_SECONDS:
        return Finding("clock", "the clock agrees with the broker's")
    state = f"the clocks of this machine and of the broker differ by {abs(broker_seconds_ahead):.0f} s"
    action = "set both (`timedatectl set-ntp true`): waiting times and limits a minute go by them"
    return Finding("clock", state, Level.WARNING, action)


def seconds_ahead(side: BrokerSide) -> float | None:
    """Return the seconds by which the broker's clock is ahead; None when the broker does not answer."""
    client: Any = side.client
    try:
        before = time.time()
        seconds, micros = client.time()
        return float(seconds + micros / 1e6 - (before + time.time()) / 2)
    except BrokerUnavailable:
        return None


def hook_findings(folders: ProgramFolders) -> Iterator[Finding]:
    """Yield a finding on each program that has hooks of recalld."""
    for program, file in folders.hook_files.items():
        try:
            commands = our_commands(json.loads(file.read_text("utf-8-sig")), program)
            programs = [shlex.split(command)[0] for command in commands]
        except FileNotFoundError:
            continue
        except (OSError, ValueError, AttributeError, TypeError, IndexError, RecursionError):
            yield Finding("hooks", f"{file} cannot be read as settings of {program}", Level.WARNING, "mend it")
            continue
        if programs:
            action = f"`recalld hook install {program}` corrects it"
            yield _hook_finding(file, program, programs[0], len(programs), action)
    for state in folders.openclaw:
        if (folder := state / "hooks" / "recalld").is_dir():
            yield _openclaw(folder, enabled=is_hook_enabled(state, folders.openclaw_config, "recalld"))


def _hook_finding(file: Path, program: str, program_path: str, events: int, action: str) -> Finding:
    if shutil.which(Path(program_path).expanduser()) is not None:
        return Finding("hooks", f"{program} calls recalld at {events} events")
    state = f"{file} calls a recalld that is not there any more: {program_path}"
    return Finding("hooks", state, Level.PROBLEM, action)


def _openclaw(folder: Path, *, enabled: bool) -> Finding:
    """Check the hook in one of OpenClaw's state folders, and that OpenClaw's settings enable it."""
    again = "`recalld hook install openclaw` prints what belongs there; then restart OpenClaw's gateway"
    try:
        described, handler = ((folder / name).read_text("utf-8") for name in ("HOOK.md", "handler.ts"))
        command = spawned(handler)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "they are not the files that recalld prints"
        return Finding("hooks", f"the hook in {folder} cannot work: {why}", Level.PROBLEM, again)
    if missing := [event for event in OPENCLAW_EVENTS if event not in described]:
        state = f"{folder / 'HOOK.md'} does not ask for {', '.join(missing)}"
        return Finding("hooks", state, Level.WARNING, again)
    if not enabled:
        action = "`openclaw hooks enable recalld`, then restart OpenClaw's gateway"
        return Finding("hooks", f"OpenClaw's settings do not enable the hook in {folder}", Level.WARNING, action)
    return _hook_finding(folder / "handler.ts", "openclaw", command[0], len(OPENCLAW_EVENTS), again)
