"""The agents' indexes: whether they hold together, hold what the disk holds, and nobody's files lie beside them."""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from memory.index.generation_writer import GenerationWriter
from memory.store.errors import StoreCorrupt
from memory.store.options import StoreOptions
from memory.transcripts.packing import beginnings
from recalld.doctor.finding import Finding, Level
from recalld.invocation import Invocation
from recalld.up.lock import daemon_pid
from schemas.conditions import OF_FILES, Condition, ConditionCode
from schemas.errors import RecalldError, UserError
from schemas.settings import AgentSettings, Settings
from schemas.status import AgentStatus, Status

#: Seconds for which a generation that no pointer names is left to those who may still read it.
UNUSED_SECONDS = 600.0

#: Chunks of the newest transcripts that are looked at, and messages in them below which nothing is said of them.
_NEWEST_CHUNKS = 2_000
_FEWEST_MESSAGES = 40

#: Share of messages from which on they look alike, and characters by which they do.
_ALIKE_SHARE = 0.25
_ALIKE_CHARACTERS = 40

_OF_BUILDS = frozenset({ConditionCode.BUILD_ABANDONED, ConditionCode.BUILD_STUCK})


def index_findings(invocation: Invocation, status: Status) -> Iterator[Finding]:
    """All agents of this deep status."""
    for agent in status.agents:
        found = list(_agent(invocation, invocation.settings.agent(agent.agent), agent, first=_first(status)))
        yield from found or [
            Finding.fine(
                "index", f"{agent.agent}: {agent.index.files} documents, {agent.index.chunks} chunks, all in agreement"
            )
        ]


def _first(status: Status) -> str | None:
    """What has to be seen to before anything can be indexed; what waits is then indexed by itself."""
    unwell = [f"`{state.role}` (process {state.pid})" for state in status.processes if state.problem is not None]
    return f"first see to {' and '.join(unwell)}, as said above; then it is indexed by itself" if unwell else None


def _agent(
    invocation: Invocation, agent: AgentSettings, status: AgentStatus, *, first: str | None
) -> Iterator[Finding]:
    settings = invocation.settings
    if not agent.workspace.is_dir():
        yield Finding(
            "index",
            Level.PROBLEM,
            f"{agent.id}: the workspace {agent.workspace} is not there",
            "make it, or correct `workspace` in the settings",
            agent=agent.id,
            covers=frozenset({*OF_FILES, ConditionCode.FILES_NOT_COMPARED}),
        )
        return
    sound = True
    if status.integrity is None:
        yield Finding(
            "index",
            Level.WARNING,
            f"{agent.id}: whether the index holds together could not be found out in the time there was",
            "try again when the machine has less to do",
            agent=agent.id,
        )
    if _is_damaged(settings, agent):
        sound = False
        yield Finding(
            "index",
            Level.PROBLEM,
            f"{agent.id}: the index is damaged and cannot be read ({'; '.join(status.integrity or ())})",
            "`recalld doctor --fix` sets it aside, keeping the file, and builds it again from files and cache",
            agent=agent.id,
            heal=_setting_aside(invocation, agent),
            covers=frozenset({ConditionCode.INDEX_UNREADABLE, ConditionCode.INDEX_OUTDATED}),
        )
    elif status.integrity:
        sound = False
        orphans = status.deep.orphan_rows if status.deep is not None else 0
        yield Finding(
            "index",
            Level.PROBLEM,
            f"{agent.id}: the index does not hold together ({orphans} orphan rows: {'; '.join(status.integrity)})",
            "`recalld doctor --fix` builds it anew beside this one, and carries over what only this one holds",
            agent=agent.id,
            heal=_indexing(invocation, agent, fresh=True, did="built anew from files, cache and what it held"),
        )
    known = status.queue.reachable or first is None
    disk, behind = status.disk, status.disk.missing + status.disk.stale + status.disk.vanished
    if sound and behind > len(status.dead_letters) + status.queue.pending:
        yield Finding(
            "index",
            Level.PROBLEM,
            f"{agent.id}: {disk.missing} document{' is' if disk.missing == 1 else 's are'} missing in the index, "
            f"{disk.stale} stale, {disk.vanished} vanished, and "
            f"{'nothing is queued for them' if known else 'what is queued is not known'}",
            first or "`recalld doctor --fix` or `recalld index` brings it up to date",
            agent=agent.id,
            heal=_indexing(invocation, agent, fresh=False, did="brought up to date") if first is None else None,
        )
    elif sound and not status.queue.pending and status.index.building is not None and daemon_pid(settings.home) is None:
        stands_still = any(trouble.code in _OF_BUILDS for trouble in status.troubles)
        yield Finding(
            "index",
            Level.PROBLEM if stands_still else Level.WARNING,
            f"{agent.id}: the build of a new generation was abandoned",
            "`recalld doctor --fix` or `recalld up` goes on with it",
            agent=agent.id,
            heal=_indexing(invocation, agent, fresh=False, did="finished"),
            covers=_OF_BUILDS,
        )
    if status.dead_letters:
        failed = len(status.dead_letters)
        yield Finding(
            "documents",
            Level.PROBLEM,
            f"{agent.id}: {failed} document{'' if failed == 1 else 's'} failed",
            "`recalld dead list` says why; mend and save them, or `recalld dead retry --all`",
            agent=agent.id,
        )
    if sound and (alike := alike_condition(agent.id, beginnings(_newest_texts(settings, agent)))) is not None:
        yield Finding.of("transcripts", Level.WARNING, alike, agent=agent.id)
    yield from _unused(settings, agent)


def alike_condition(agent: str, messages: Iterable[str]) -> Condition | None:
    """Return that more than a quarter of an agent's messages begin alike but for their numbers; None if they do not."""
    counts = Counter(re.sub(r"\d+", "0", message)[:_ALIKE_CHARACTERS] for message in messages)
    total = counts.total()
    if total < _FEWEST_MESSAGES:
        return None
    beginning, found = counts.most_common(1)[0]
    if found <= total * _ALIKE_SHARE:
        return None
    params: dict[str, str | int | float] = {
        "beginning": beginning,
        "percent": round(100 * found / total),
        "messages": total,
    }
    return Condition(ConditionCode.MESSAGES_ALIKE, agent, params=params)


def _newest_texts(settings: Settings, agent: AgentSettings) -> Iterator[str]:
    """Yield the chunks of the newest transcripts in the index that answers, as far as it can be read."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.suppress(RecalldError))
        reader = _writer(settings, agent).open_reader()
        if reader is None:
            return
        stack.callback(reader.close)
        transcripts = [file for file in reader.files() if file.key.is_transcript]
        room = _NEWEST_CHUNKS
        for file in sorted(transcripts, key=lambda file: file.stat.mtime_ns, reverse=True):
            rows = reader.chunk_rows([chunk.id for chunk in reader.chunks_of(file.key)[:room]])
            yield from (row.text for row in rows.values())
            room -= len(rows)
            if room <= 0:
                return


def _unused(settings: Settings, agent: AgentSettings) -> Iterator[Finding]:
    generations = _writer(settings, agent)
    unused, damaged = generations.leftovers()
    old = [path for path in unused if _age(path) > UNUSED_SECONDS]
    if old:

        def sweep() -> str:
            generations.sweep_unused(older_than_seconds=UNUSED_SECONDS)
            return f"{agent.id}: removed {len(old)} index files that nobody used"

        yield Finding(
            "index",
            Level.WARNING,
            f"{agent.id}: {len(old)} index files are left of builds that were abandoned or replaced",
            "`recalld doctor --fix` removes them; so do workers after a while",
            agent=agent.id,
            heal=sweep,
        )
    if damaged:
        yield Finding(
            "index",
            Level.WARNING,
            f"{agent.id}: {len(damaged)} damaged index files were set aside ({damaged[-1].name})",
            "delete them when you have looked, or when everything is found again",
            agent=agent.id,
        )


def _is_damaged(settings: Settings, agent: AgentSettings) -> bool:
    generations = _writer(settings, agent)
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


def _setting_aside(invocation: Invocation, agent: AgentSettings) -> Callable[[], str]:
    index = _indexing(invocation, agent, fresh=False, did="built again from files and cache")

    def heal() -> str:
        moved = _writer(invocation.settings, agent).set_aside_damaged()
        names = ", ".join(path.name for path in moved) or "nothing any more"
        return f"{agent.id}: set aside {names}; {index()}"

    return heal


def _indexing(invocation: Invocation, agent: AgentSettings, *, fresh: bool, did: str) -> Callable[[], str]:
    def heal() -> str:
        from recalld.runs.index import run_index

        # Progress belongs to the person, the doctor's findings to whoever reads the output.
        with contextlib.redirect_stdout(sys.stderr):
            code = run_index(replace(invocation, agent=agent.id), fresh=fresh, as_json=False)
        if code:
            raise UserError(f"{agent.id}: not everything could be indexed; `recalld status` says what")
        return f"{agent.id}: {did}"

    return heal


def _writer(settings: Settings, agent: AgentSettings) -> GenerationWriter:
    return GenerationWriter(settings.indexes_path / agent.id, StoreOptions.of(settings.store))


def _age(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0
