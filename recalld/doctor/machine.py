"""Checks of the machine: open files, watches, SQLite's parts, disk, clock, hooks. recalld can heal none of it."""

from __future__ import annotations

import json
import os
import resource
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path

import apsw

from memory.documents.agent_files import AgentFiles
from memory.documents.roots import existing_folder
from memory.status.home import tree_bytes
from memory.store.sqlite.connection import load_sqlite_vec
from producers.hook_payloads import OPENCLAW_EVENTS
from recalld.discover.openclaw_settings import is_hook_enabled
from recalld.doctor.finding import Finding, Level
from recalld.hooks.installation import is_ours, spawned
from recalld.runs.status import size
from recalld.settings.program_folders import ProgramFolders
from schemas.settings import Settings

#: Files that a process needs beside those of its agents' indexes: connections, models, watches.
_FILES_BESIDE, _FILES_AN_AGENT, _FILES_ENOUGH = 256, 8, 4096

#: Free bytes below which no index is built beside another one (`memory.index.generation_writer`), and below which
#: that is near.
_NO_SPACE, _LITTLE_SPACE = 50_000_000, 500_000_000

#: Seconds by which a clock may be wrong without consequences.
_CLOCK_SECONDS = 60.0

#: No right clock is before recalld was written (Unix time of 2025-01-01).
_EARLIEST = 1_735_689_600.0


def open_files(settings: Settings, *, limit: int | None = None) -> Finding:
    """Compare the files that a process may open with the files that the agents need."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if limit is None else limit
    wanted = min(_FILES_ENOUGH, _FILES_BESIDE + _FILES_AN_AGENT * len(settings.agents))
    if allowed == resource.RLIM_INFINITY or allowed >= wanted:
        return Finding.fine("open files", f"a process may open {'any number of' if allowed < 0 else allowed} files")
    return Finding(
        "open files",
        Level.WARNING,
        f"a process may open {allowed} files; with {len(settings.agents)} agents {wanted} are better",
        f"`ulimit -n {wanted}` before `recalld up`, or LimitNOFILE={wanted} in its systemd unit",
    )


def watches(settings: Settings, *, proc: Path = Path("/proc")) -> Finding:
    """Compare the inotify watches and instances that the system grants with those that the agents' folders need."""
    warning = partial(Finding, "watches", Level.WARNING)
    limits = proc / "sys" / "fs" / "inotify"
    try:
        most_watches = int((limits / "max_user_watches").read_text("ascii"))
        most_instances = int((limits / "max_user_instances").read_text("ascii"))
    except (OSError, ValueError):
        return Finding.fine("watches", f"{sys.platform} has no limit of inotify watches")
    watched = [agent for agent in settings.agents if agent.enabled and agent.sync.watch]
    files = [AgentFiles.of(settings, agent) for agent in watched]
    wanted = sum(len(_folders(one)) for one in files)
    taken_watches, taken_instances = _taken(proc)
    if wanted + taken_watches > most_watches:
        message = (
            f"{wanted} folders are to be watched and other programs have {taken_watches} of {most_watches} inotify "
            "watches; some folders will be polled"
        )
        return warning(message, _raise("max_user_watches", 2 * (wanted + taken_watches)))
    if taken_instances + 1 > most_instances:
        message = f"other programs have {taken_instances} of {most_instances} inotify instances; files will be polled"
        return warning(message, _raise("max_user_instances", 2 * (taken_instances + 1)))
    return Finding.fine(
        "watches", f"{wanted} folders to watch; {taken_watches} of {most_watches} inotify watches taken by others"
    )


def sqlite_parts(settings: Settings) -> Iterator[Finding]:
    """Try the parts of SQLite for both kinds of search."""
    connection = apsw.Connection(":memory:")
    try:
        try:
            connection.execute("CREATE VIRTUAL TABLE probe USING fts5(text)")
            yield Finding.fine("keywords", f"SQLite {apsw.sqlite_lib_version()} has FTS5")
        except apsw.SQLError:
            yield Finding(
                "keywords",
                Level.PROBLEM,
                f"SQLite {apsw.sqlite_lib_version()} has no FTS5: nothing is found by its words",
                "install apsw from its wheel: `pip install --force-reinstall --only-binary :all: apsw`",
            )
        reason = load_sqlite_vec(connection, settings.store.vector.extension_path)
    finally:
        connection.close()
    if not settings.store.vector.enabled:
        yield Finding.fine("vectors", "store.vector.enabled = false")
        return
    if reason is None:
        yield Finding.fine("vectors", f"sqlite-vec writes them, numpy {version('numpy')} searches them")
    elif settings.store.vector.extension_path is None:
        yield Finding.fine("vectors", f"in plain tables, numpy {version('numpy')} searches them ({reason})")
    else:
        yield Finding("vectors", Level.WARNING, reason, "correct store.vector.extension_path, or take it out")


def disk(settings: Settings, *, free: int | None = None) -> Finding:
    """Compare the free space with the need of new documents, and of the largest index built anew beside itself."""
    home = next(folder for folder in (settings.home, *settings.home.parents) if folder.exists())
    if not _may_write(home):
        return Finding(
            "disk", Level.PROBLEM, f"{home} cannot be written", "correct its permissions, or choose another --home"
        )
    if free is None:
        stat = os.statvfs(home)
        free = stat.f_bavail * stat.f_frsize
    largest = max((tree_bytes(folder) for folder in _children(settings.indexes_path)), default=0)
    if free < _NO_SPACE:
        beside = ", and no new index can be built beside the present one" if largest else ""
        message = f"{size(free)} are free for {home}: what does not fit into that is not indexed{beside}"
        return Finding("disk", Level.PROBLEM, message, f"keep {size(max(_LITTLE_SPACE, 2 * largest))} free")
    if free < max(_LITTLE_SPACE, 2 * largest):
        message = (
            f"{size(free)} are free for {home}; changed settings build an index anew beside the old one "
            f"(the largest takes {size(largest)})"
        )
        return Finding("disk", Level.WARNING, message, f"keep {size(max(_LITTLE_SPACE, 2 * largest))} free")
    return Finding.fine("disk", f"{size(free)} are free for {home}")


def clock(settings: Settings, *, broker_seconds_ahead: float | None, now: float | None = None) -> Finding:
    """Compare the clock with the broker's and with the files' own times."""
    now = time.time() if now is None else now
    action = "set the clock (`timedatectl set-ntp true`)"
    if now < _EARLIEST:
        return Finding("clock", Level.PROBLEM, f"the clock says {time.strftime('%Y-%m-%d', time.gmtime(now))}", action)
    if broker_seconds_ahead is not None and abs(broker_seconds_ahead) > _CLOCK_SECONDS:
        message = f"the clocks of this machine and of the broker differ by {abs(broker_seconds_ahead):.0f} s"
        both = "set both (`timedatectl set-ntp true`): waiting times and limits a minute go by them"
        return Finding("clock", Level.WARNING, message, both)
    newest = _newest(settings)
    if newest - now > _CLOCK_SECONDS:
        return Finding(
            "clock",
            Level.WARNING,
            f"a file was last written {newest - now:.0f} s in the future: the clock went back, or that file came from "
            "another machine",
            f"{action}, or `touch` the file",
        )
    if broker_seconds_ahead is None:
        return Finding.fine("clock", "the clock agrees with the files; the broker's is not known")
    return Finding.fine("clock", "the clock agrees with the broker and the files")


def hook_findings(folders: ProgramFolders) -> Iterator[Finding]:
    """Yield a finding on each program that has hooks of recalld."""
    for program, file in (
        ("claude-code", folders.claude_code / "settings.json"),
        ("codex", folders.codex / "hooks.json"),
    ):
        try:
            hooks = json.loads(file.read_text("utf-8-sig")).get("hooks", {})
            handlers = [handler for groups in hooks.values() for group in groups for handler in group.get("hooks", [])]
        except FileNotFoundError:
            continue
        except (OSError, ValueError, AttributeError, TypeError, RecursionError):
            yield Finding("hooks", Level.WARNING, f"{file} cannot be read as settings of {program}", "mend it")
            continue
        commands = [handler["command"] for handler in handlers if is_ours(handler, program)]
        if not commands:
            continue
        broken = [command for command in commands if not _runs(command)]
        if broken:
            yield Finding(
                "hooks",
                Level.PROBLEM,
                f"{file} calls a recalld that is not there any more: {broken[0]}",
                f"`recalld hook install {program}` corrects it",
            )
        else:
            yield Finding.fine("hooks", f"{program} calls recalld at {len(commands)} events")
    for state in folders.openclaw:
        yield from _openclaw(state, folders.openclaw_config)


def _openclaw(state: Path, moved: Path | None) -> Iterator[Finding]:
    """Check the hook in one of OpenClaw's state folders, and that OpenClaw's settings enable it."""
    folder = state / "hooks" / "recalld"
    if not folder.is_dir():
        return
    again = "`recalld hook install openclaw` prints what belongs there; then restart OpenClaw's gateway"
    try:
        described, handler = ((folder / name).read_text("utf-8") for name in ("HOOK.md", "handler.ts"))
        called = spawned(handler)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "they are not the files that recalld prints"
        yield Finding("hooks", Level.PROBLEM, f"the hook in {folder} cannot work: {why}", again)
        return
    missing = [event for event in OPENCLAW_EVENTS if event not in described]
    if shutil.which(Path(called[0]).expanduser()) is None:
        message = f"{folder / 'handler.ts'} calls a recalld that is not there any more: {called[0]}"
        yield Finding("hooks", Level.PROBLEM, message, again)
    elif missing:
        yield Finding("hooks", Level.WARNING, f"{folder / 'HOOK.md'} does not ask for {', '.join(missing)}", again)
    elif not is_hook_enabled(state, moved, "recalld"):
        action = "`openclaw hooks enable recalld`, then restart OpenClaw's gateway"
        yield Finding("hooks", Level.WARNING, f"OpenClaw's settings do not enable the hook in {folder}", action)
    else:
        yield Finding.fine("hooks", f"openclaw calls recalld at {len(OPENCLAW_EVENTS)} events")


def _runs(command: str) -> bool:
    try:
        first = shlex.split(command)[0]
    except (ValueError, IndexError):
        return False
    return shutil.which(Path(first).expanduser()) is not None


def _folders(files: AgentFiles) -> set[str]:
    """Return the folders that have to be watched for an agent."""
    found = {existing_folder(str(root.path)) for root in files.watch_roots()}
    files.scan(entering=found.add)
    return found


def _taken(proc: Path) -> tuple[int, int]:
    """Count watches and instances of this user's other programs. A watcher of recalld is not among them."""
    watches = instances = 0
    for process in _children(proc):
        if not process.name.isdigit() or _is_watcher(process):
            continue
        for info in _children(process / "fdinfo"):
            try:
                marks = info.read_text("ascii", "replace").count("inotify wd:")
                kind = (process / "fd" / info.name).readlink().name
            except OSError:
                continue
            watches += marks
            instances += kind == "anon_inode:inotify"
    return watches, instances


def _is_watcher(process: Path) -> bool:
    try:
        words = (process / "cmdline").read_bytes().split(b"\0")
        return process.stat().st_uid != os.getuid() or (b"watch" in words and any(b"recalld" in word for word in words))
    except OSError:
        return True


def _newest(settings: Settings) -> float:
    newest = 0.0
    for agent in settings.agents:
        documents = AgentFiles.of(settings, agent).scan().documents
        newest = max([newest, *(stat.mtime_ns / 1e9 for stat in documents.values())])
    return newest


def _may_write(folder: Path) -> bool:
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _children(folder: Path) -> Sequence[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _raise(name: str, number: int) -> str:
    rounded = 1 << max(7, (number - 1).bit_length())
    return f"`sysctl fs.inotify.{name}={rounded}`, and in /etc/sysctl.d to keep it"
