"""Checks of the home: the agents' indexes, and what dead processes left."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from memory.index.generation_writer import GenerationWriter
from memory.status.condition_texts import counted
from memory.status.run_files import is_alive, socket_path
from memory.store.errors import StoreCorrupt
from memory.transcripts.packing import beginnings
from recalld.doctor.finding import Finding, Level, of_check
from recalld.invocation import Invocation
from recalld.up.lock import RUN_FILES, daemon_pid, pids_of
from schemas.conditions import OF_FILES, Condition, ConditionCode, Param
from schemas.errors import RecalldError, UserError
from schemas.settings import AgentSettings, Settings
from schemas.status import AgentStatus, Status

#: Seconds for which a generation that no pointer names is left to its readers.
UNUSED_SECONDS = 600.0

#: Chunks of the newest transcripts that are compared, and the fewest messages to compare.
_NEWEST_CHUNKS = 2_000
_FEWEST_MESSAGES = 40

#: Share of messages from which on they look alike, and characters by which they do.
_ALIKE_SHARE = 0.25
_ALIKE_CHARACTERS = 40

#: Age of a draft whose writer has died: a living writer renames it at once.
_ABANDONED_SECONDS = 3600.0

_OF_BUILDS = frozenset({ConditionCode.BUILD_ABANDONED, ConditionCode.BUILD_STUCK})


def index_findings(invocation: Invocation, status: Status) -> Iterator[Finding]:
    """Yield the findings on the indexes of all agents of this deep status."""
    unwell = [f"`{state.role}` (process {state.pid})" for state in status.processes if state.problem is not None]
    # What to do before anything can be indexed.
    first = f"first see to {' and '.join(unwell)}, as above; indexing then goes on by itself" if unwell else None
    for agent in status.agents:
        found = list(_agent(invocation, invocation.settings.agent(agent.agent), agent, first=first))
        said = f"{agent.agent}: {agent.index.files} documents, {agent.index.chunks} chunks, all in agreement"
        yield from found or [Finding.fine("index", said)]


def _agent(
    invocation: Invocation, agent: AgentSettings, status: AgentStatus, *, first: str | None
) -> Iterator[Finding]:
    settings, name = invocation.settings, agent.id
    warning, problem = of_check("index", agent=name)
    if not agent.workspace.is_dir():
        covers = frozenset({*OF_FILES, ConditionCode.FILES_NOT_COMPARED})
        message = f"{name}: the workspace {agent.workspace} is not there"
        yield problem(message, "make it, or correct `workspace` in the settings", covers=covers)
        return
    indexing, generations = partial(_indexing, invocation, agent), GenerationWriter.at(settings, name)
    damaged, flaws = _is_damaged(generations), "; ".join(status.integrity or ())
    if status.integrity is None:
        action = "try again when the machine has less to do"
        yield warning(f"{name}: the check of the index did not end in time", action)
    if damaged:

        def set_aside() -> str:
            names = ", ".join(path.name for path in generations.set_aside_damaged()) or "nothing any more"
            return f"{name}: set aside {names}; {indexing(did='built again from files and cache')}"

        yield problem(
            f"{name}: the index is damaged and cannot be read ({flaws})",
            "`recalld doctor --fix` sets it aside, keeping the file, and builds it again from files and cache",
            heal=set_aside,
            covers=frozenset({ConditionCode.INDEX_UNREADABLE, ConditionCode.INDEX_OUTDATED}),
        )
    elif status.integrity:
        orphans = status.deep.orphan_rows if status.deep is not None else 0
        yield problem(
            f"{name}: the index does not hold together ({orphans} orphan rows: {flaws})",
            "`recalld doctor --fix` builds it anew beside this one, and carries over what only this one holds",
            heal=partial(indexing, fresh=True, did="built anew from files, cache and what it held"),
        )
    else:
        yield from _progress(status, warning, problem, indexing, first, runs=daemon_pid(settings.home) is not None)
        if (alike := alike_condition(name, beginnings(_newest_texts(generations)))) is not None:
            yield Finding.of("transcripts", Level.WARNING, alike, agent=name)
    if status.dead_letters:
        failed = f"{name}: {counted(len(status.dead_letters), 'document')} failed"
        action = "`recalld dead list` says why; mend and save them, or `recalld dead retry --all`"
        yield Finding("documents", Level.PROBLEM, failed, action, agent=name)
    unused, set_aside_before = generations.leftovers()
    old = [path for path in unused if _age(path) > UNUSED_SECONDS]
    if old:

        def sweep() -> str:
            generations.sweep(older_than_seconds=UNUSED_SECONDS, kept_corrupt=None)
            return f"{name}: removed {len(old)} unused index files"

        message = f"{name}: {len(old)} index files are left of builds that were abandoned or replaced"
        yield warning(message, "`recalld doctor --fix` removes them; so do workers after a while", heal=sweep)
    if set_aside_before:
        newest = set_aside_before[-1].name
        message = f"{name}: {len(set_aside_before)} damaged index files were set aside ({newest})"
        yield warning(message, "delete them when you have looked, or when everything is found again")


def _progress(
    status: AgentStatus,
    warning: Callable[..., Finding],
    problem: Callable[..., Finding],
    indexing: Callable[..., str],
    first: str | None,
    *,
    runs: bool,
) -> Iterator[Finding]:
    """Yield that a sound index lacks documents, or its build stands still."""
    name, disk, queue = status.agent, status.disk, status.queue
    if disk.missing + disk.stale + disk.vanished > len(status.dead_letters) + queue.pending:
        known = queue.reachable or first is None
        yield problem(
            f"{name}: {disk.missing} document{' is' if disk.missing == 1 else 's are'} missing in the index, "
            f"{disk.stale} stale, {disk.vanished} vanished, and "
            f"{'nothing is queued for them' if known else 'what is queued is not known'}",
            first or "`recalld doctor --fix` or `recalld index` brings it up to date",
            heal=partial(indexing, did="brought up to date") if first is None else None,
        )
    elif not queue.pending and status.index.building is not None and not runs:
        stands_still = any(trouble.code in _OF_BUILDS for trouble in status.troubles)
        yield (problem if stands_still else warning)(
            f"{name}: the build of a new generation was abandoned",
            "`recalld doctor --fix` or `recalld up` goes on with it",
            heal=partial(indexing, did="finished"),
            covers=_OF_BUILDS,
        )


def alike_condition(agent: str, messages: Iterable[str]) -> Condition | None:
    """Return the condition that a quarter of an agent's messages begin alike but for their numbers, else None."""
    counts = Counter(re.sub(r"\d+", "0", message)[:_ALIKE_CHARACTERS] for message in messages)
    total = counts.total()
    if total < _FEWEST_MESSAGES:
        return None
    beginning, found = counts.most_common(1)[0]
    if found <= total * _ALIKE_SHARE:
        return None
    params: dict[str, Param] = {"beginning": beginning, "percent": round(100 * found / total), "messages": total}
    return Condition(ConditionCode.MESSAGES_ALIKE, agent, params=params)


def _newest_texts(generations: GenerationWriter) -> Iterator[str]:
    """Yield the chunks of the newest transcripts in the answering index, as far as it can be read."""
    with contextlib.suppress(RecalldError):
        reader = generations.open_reader()
        if reader is None:
            return
        with contextlib.closing(reader):
            transcripts = [file for file in reader.files() if file.key.is_transcript]
            room = _NEWEST_CHUNKS
            for file in sorted(transcripts, key=lambda file: file.stat.mtime_ns, reverse=True):
                rows = reader.chunk_rows([chunk.id for chunk in reader.chunks_of(file.key)[:room]])
                yield from (row.text for row in rows.values())
                room -= len(rows)
                if room <= 0:
                    return


def _is_damaged(generations: GenerationWriter) -> bool:
    for pointed in (generations.current, generations.next):
        try:
            name = pointed()
            reader = generations.open_named(name) if name is not None else None
            if reader is not None:
                reader.close()
        except StoreCorrupt:
            return True
        except RecalldError:
            continue  # unreadable is not damaged: its permissions, or another version's
    return False


def _indexing(invocation: Invocation, agent: AgentSettings, *, did: str, fresh: bool = False) -> str:
    from recalld.runs.index import run_index

    # Progress goes to the user, the doctor's findings to the reader of the output.
    with contextlib.redirect_stdout(sys.stderr):
        code = run_index(replace(invocation, agent=agent.id), fresh=fresh, as_json=False)
    if code:
        raise UserError(f"{agent.id}: not everything could be indexed; `recalld status` says what")
    return f"{agent.id}: {did}"


def _age(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0


def leftovers(settings: Settings) -> Iterator[Finding]:
    """Yield a finding on each stale file of the home; healing removes the file."""
    warning, _ = of_check("leftovers")
    stale = list(_stale(settings))
    for path in stale:
        message = f"{path} is of a process that is gone"
        yield warning(message, "`recalld doctor --fix` removes it", heal=partial(_remove, settings, path))
    aside = settings.home / "spool" / "damaged"
    kept = len(list(aside.glob("*.json")))
    if kept:
        action = "look at them and delete them; what they were about is found by comparing files and index"
        yield warning(f"{kept} events that could not be read were set aside in {aside}", action)
    if not stale and not kept:
        yield Finding.fine("leftovers", "no stale locks, sockets or drafts")


def _stale(settings: Settings) -> Iterator[Path]:
    home, run = settings.home, settings.home / "run"
    for entry in (run / name for name in RUN_FILES):
        if (pids := pids_of(entry)) and not any(map(is_alive, pids)):
            yield entry
    if settings.broker.url is None and (home / "broker").is_dir():
        path = socket_path(home)
        if path.is_socket() and not _listens(path):
            yield path
    drafts = [*run.glob(".*.json.*"), *(home / "spool").glob(".*.json"), *home.glob("namespace.*")]
    yield from (draft for draft in sorted(drafts) if _age(draft) > _ABANDONED_SECONDS)


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(2.0)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            return False
        except OSError:
            pass  # a listener may be busy
        return True


def _remove(settings: Settings, path: Path) -> str:
    if path not in _stale(settings):
        return f"left {path}: it is in use again"
    path.unlink(missing_ok=True)
    return f"removed {path}"
