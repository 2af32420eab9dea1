"""Honest status: what is on disk, in the index and in the queue, compared.

`agent_status` looks once; the service keeps what it said for a second (`memory.service.agents`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from memory.agent_files import AgentFiles, Scan
from memory.answering import answering, sides_in_trouble
from memory.build_progress import build_progress
from memory.disk_comparison import compare
from memory.embedding.batch_ledger import texts_in_jobs
from memory.embedding.selection import ProviderChoice
from memory.fingerprint import NO_VECTORS, fingerprint
from memory.generations import Generations
from memory.home_state import broker_state, cache_state, disk_use, versions
from memory.hooks_state import read_hooks_state
from memory.process_states import process_states, process_troubles
from memory.progress import LOOKED_AFTER_SECONDS, vector_progress
from memory.search.readers import SharedReader
from memory.spending import spending
from memory.store.options import StoreOptions
from memory.store.reader import IndexedFile, StoreReader, VectorBackend
from memory.taking_over import provider_of
from memory.version import recalld_version
from memory.watch_state import WatchState, read_watch_state
from schemas.documents import DocumentKey
from schemas.errors import RecalldError
from schemas.ports import EndpointCondition, EndpointState, Pending, PendingReader
from schemas.settings import AgentSettings, Settings
from schemas.status import (
    AgentStatus,
    Availability,
    DeadLetter,
    DeepFindings,
    EndpointStatus,
    IndexState,
    QueueState,
    Status,
    TroubleState,
    WatchingState,
)

#: A document that waits for longer than this makes status not ok: work that takes longer is behind, or stuck.
PENDING_TOO_LONG_SECONDS = 60.0

#: Notes of documents that are listed; the rest is counted.
_MAX_NOTES = 50

#: How a finding about rows that belong to nothing, or that lack what belongs to them, begins (`StoreReader.check`).
_ORPHANS = re.compile(r"(\d+) (?:rows of|chunks without|ready chunks without|marks of|stale chunks of) ")

Lease = Callable[[], AbstractContextManager[StoreReader | None]]


@dataclass(frozen=True, slots=True)
class StatusSources:
    """Where an agent's status comes from.

    `lease` opens the answering generation. `pending` is None when this process has no way to ask the
    queue; `queue_expected` makes a queue that does not answer a trouble (it is none when nothing is supposed to
    run); `provider_failure` is why the provider is not asked at the moment.
    """

    files: AgentFiles
    generations: Generations
    lease: Lease
    pending: PendingReader | None
    queue_expected: bool
    choice: ProviderChoice
    provider_failure: str | None = None


@dataclass(frozen=True, slots=True)
class _Index:
    state: IndexState
    files: dict[DocumentKey, IndexedFile]
    dead_letters: tuple[DeadLetter, ...]
    vector_search: Availability
    text_search: Availability
    integrity: tuple[str, ...] | None
    trouble: str | None


def agent_status(
    settings: Settings, agent: AgentSettings, sources: StatusSources, *, deep: bool = False
) -> AgentStatus:
    """Compare disk, index and queue of one agent. Never raises for a broken part: it is what status is for.

    `ok` is False when a document is missing, stale or vanished and no job for it waits; when one waits for
    longer than a minute; when vectors wait and none comes in; and when anything failed, is in trouble or
    could not be looked at.
    """
    now = time.time()
    # The queue first, the disk last: a document indexed in between then looks up to date, never forgotten.
    pending = sources.pending.pending(agent.id) if sources.pending is not None else None
    index = _index(settings, agent, sources, deep=deep)
    scan = sources.files.scan()
    watch = read_watch_state(settings.home, agent.id)
    disk = compare(
        scan,
        index.files,
        files=sources.files,
        sessions=agent.sync.sessions,
        now=now,
        watched=watch is not None and watch.mode != "off" and pending is not None,
    )
    endpoint = _endpoint(sources)
    troubles = _troubles(agent, sources, scan, index, endpoint, now)
    progress = sources.pending.vector_progress(agent.id) if sources.pending is not None else None
    in_jobs = texts_in_jobs(settings.home, agent.id, looked_within_seconds=LOOKED_AFTER_SECONDS)
    vectors, vectors_stuck = vector_progress(
        index.state,
        progress,
        agent,
        sources.choice,
        now,
        in_batch_jobs=min(in_jobs, index.state.vectors_pending),
        # Nothing runs, as far as one can see, or nothing may leave.
        held_back=pending is None or (endpoint is not None and endpoint.condition is not EndpointCondition.OK),
    )
    queue = _queue(pending, now=now)
    mode, degraded = answering(
        index.state,
        sources.choice,
        vectors=index.vector_search,
        text=index.text_search,
        by_text=agent.query.hybrid.enabled,
    )
    healthy = (
        not troubles
        and not index.dead_letters
        and not index.integrity
        and not vectors_stuck
        and (index.state.identity_matches or index.state.building is not None)
        and disk.missing + disk.stale + disk.vanished <= queue.pending
        and (queue.oldest_seconds or 0.0) <= PENDING_TOO_LONG_SECONDS
        and (queue.reachable or not sources.queue_expected)
        # Vectors that wait while nothing runs will wait for ever.
        and (queue.reachable or not index.state.vectors_pending or sources.choice.provider is None)
    )
    choice = sources.choice
    return AgentStatus(
        agent=agent.id,
        ok=healthy,
        workspace=str(agent.workspace),
        provider=choice.name,
        requested_provider=choice.requested,
        model=choice.provider.model if choice.provider is not None else None,
        provider_reason=choice.error or choice.reason,
        endpoint=_shown(endpoint),
        usage=spending(sources.pending, agent.id, agent) if sources.pending is not None else (),
        disk=disk,
        index=_with_build(index.state, sources, scan, rate=progress.rate if progress is not None else 0.0),
        queue=queue,
        vectors=vectors,
        vector_search=index.vector_search,
        text_search=index.text_search,
        mode=mode,
        degraded=degraded,
        watch=watch.sentence if watch is not None else None,
        watching=_watching(watch),
        dead_letters=index.dead_letters,
        notes=_notes(index),
        troubles=tuple(troubles),
        integrity=index.integrity,
        deep=_deep(sources, index),
    )


def build_status(settings: Settings, pending: PendingReader | None, *, deep: bool = False) -> Status:
    """The status of all agents in `settings`, for a process that looks once and ends.

    Nothing needs to run for it to be ok: a queue that does not answer is said, and no trouble by itself.
    """
    agents = tuple(_look_once(settings, agent, pending, deep=deep) for agent in settings.agents if agent.enabled)
    return whole_status(settings, agents, pending)


def whole_status(settings: Settings, agents: tuple[AgentStatus, ...], pending: PendingReader | None) -> Status:
    """The agents' statuses and what they share: a process that is not well makes none of them ok."""
    everybody = len(agents) == len(settings.agents) > 1
    processes = process_states(pending.processes) if pending is not None else ()
    unwell = process_troubles(processes)
    if unwell:
        agents = tuple(_with(agent, unwell) for agent in agents)
    broker = broker_state(settings, pending)
    return Status(
        ok=all(agent.ok for agent in agents),
        version=recalld_version(),
        home=str(settings.home),
        agents=agents,
        usage=spending(pending, "*", settings) if pending is not None and everybody else (),
        cache=cache_state(settings, pending),
        processes=processes,
        broker=broker,
        disk_use=disk_use(settings),
        versions=versions(broker),
        hooks=read_hooks_state(settings.home),
    )


def _with(agent: AgentStatus, unwell: Sequence[TroubleState]) -> AgentStatus:
    watch = agent.watch
    if watch is not None and any(trouble.part == "watch" for trouble in unwell):
        watch = f"{watch}, but the process that watches is not well"
    return agent.model_copy(update={"ok": False, "troubles": (*agent.troubles, *unwell), "watch": watch})


def _look_once(settings: Settings, agent: AgentSettings, pending: PendingReader | None, *, deep: bool) -> AgentStatus:
    generations = Generations(settings.indexes_path / agent.id, StoreOptions.of(settings.store))
    choice = provider_of(settings, agent)
    reader = SharedReader(generations)
    try:
        sources = StatusSources(
            files=AgentFiles.of(settings, agent),
            generations=generations,
            lease=reader.lease,
            pending=pending,
            queue_expected=False,
            choice=choice,
        )
        return agent_status(settings, agent, sources, deep=deep)
    finally:
        reader.close()
        if choice.provider is not None:
            choice.provider.close()


def _index(settings: Settings, agent: AgentSettings, sources: StatusSources, *, deep: bool) -> _Index:
    broken = Availability(available=False, reason="the index cannot be read")
    try:
        with sources.lease() as reader:
            if reader is None:
                nothing = Availability(available=True)
                return _Index(_no_index(sources), {}, (), nothing, nothing, () if deep else None, None)
            return _look(settings, agent, sources, reader, deep=deep)
    except RecalldError as error:
        return _Index(_no_index(sources), {}, (), broken, broken, (str(error),) if deep else None, str(error))


def _no_index(sources: StatusSources) -> IndexState:
    return IndexState(generation=sources.generations.current(), building=sources.generations.next())


def _with_build(state: IndexState, sources: StatusSources, scan: Scan, *, rate: float) -> IndexState:
    if state.building is None:
        return state
    try:
        # Imported transcripts are not in the scan, but in the generation that answers.
        documents = max(len(scan.documents), state.files)
        return state.model_copy(update={"build": build_progress(sources.generations, documents=documents, rate=rate)})
    except RecalldError:
        return state  # a worker sets it aside and begins anew


def _look(
    settings: Settings, agent: AgentSettings, sources: StatusSources, reader: StoreReader, *, deep: bool
) -> _Index:
    counts = reader.counts()
    provider = sources.choice.provider
    wanted = fingerprint(agent, provider.identity if provider is not None else NO_VECTORS)
    files = {file.key: file for file in reader.files()}
    dead_letters = tuple(
        DeadLetter(
            source=row.key.source,
            path=row.key.path,
            reason=row.reason,
            error_class=row.error_class,
            attempts=row.attempts,
            first_at=row.first_at,
            last_at=row.last_at,
        )
        for row in reader.dead_letters()
    )
    state = IndexState(
        files=counts.files,
        chunks=counts.chunks,
        vectors_ready=counts.vectors_ready,
        vectors_pending=counts.vectors_pending,
        vectors_refused=counts.vectors_refused,
        generation=sources.generations.current(),
        building=sources.generations.next(),
        identity=reader.meta("identity"),
        # A provider that cannot be had leaves the index as it is: its identity is not known, so it is not wrong.
        identity_matches=sources.choice.error is not None or reader.meta("fingerprint") == wanted.digest,
        last_commit_at=counts.last_commit_at,
        disk_bytes=counts.disk_bytes,
    )
    return _Index(
        state=state,
        files=files,
        dead_letters=dead_letters,
        vector_search=_vector_search(settings, sources, reader),
        text_search=_text_search(reader),
        integrity=tuple(reader.check()) if deep else None,
        trouble=None,
    )


def _vector_search(settings: Settings, sources: StatusSources, reader: StoreReader) -> Availability:
    choice = sources.choice
    if not settings.store.vector.enabled:
        return Availability(available=False, reason="store.vector.enabled = false")
    if choice.provider is None:
        return Availability(available=False, reason=choice.error or choice.reason or "provider = none: keywords only")
    if sources.provider_failure is not None:
        return Availability(available=False, reason=sources.provider_failure)
    if reader.vector_backend is VectorBackend.OFF:
        return Availability(available=False, reason=reader.vector_reason)
    return Availability(available=True, reason=reader.vector_reason)


def _text_search(reader: StoreReader) -> Availability:
    try:
        reader.search_text("a", 1)
    except RecalldError as error:
        return Availability(available=False, reason=str(error))
    return Availability(available=True)


def _queue(pending: Pending | None, *, now: float) -> QueueState:
    if pending is None:
        return QueueState(reachable=False)
    oldest = max(0.0, now - pending.oldest_at) if pending.oldest_at is not None else None
    return QueueState(
        pending=pending.documents,
        running=pending.running,
        oldest_seconds=round(oldest, 3) if oldest is not None else None,
    )


def _troubles(
    agent: AgentSettings,
    sources: StatusSources,
    scan: Scan,
    index: _Index,
    endpoint: EndpointState | None,
    now: float,
) -> list[TroubleState]:
    troubles = [TroubleState(part="files", message=problem, since=now) for problem in scan.problems]
    if index.trouble is not None:
        troubles.append(TroubleState(part="index", message=index.trouble, since=now))
    else:
        troubles += sides_in_trouble(vectors=index.vector_search, text=index.text_search, now=now)
    if sources.choice.error is not None:
        troubles.append(TroubleState(part="embedding", message=sources.choice.error, since=now))
    if sources.pending is not None:
        known = {trouble.part for trouble in troubles}
        troubles += [
            TroubleState(part=trouble.part, message=trouble.message, since=trouble.since)
            for trouble in sources.pending.troubles(agent.id)
            # What is wrong with the files was found out anew just now.
            if not set(trouble.message.split("; ")) <= set(scan.problems)
            # And what this process's SQLite lacks.
            and not (trouble.part in known and trouble.part in {"keywords", "vectors"})
        ]
    if endpoint is not None and endpoint.condition is EndpointCondition.STOPPED:
        # A query may have found out while no worker has anything to embed.
        part = f"provider {sources.choice.name}"
        if all(trouble.part != part for trouble in troubles):
            troubles.append(TroubleState(part=part, message=endpoint.reason or "refuses", since=now))
    return troubles


def _endpoint(sources: StatusSources) -> EndpointState | None:
    provider = sources.choice.provider
    if provider is None or sources.pending is None:
        return None
    return sources.pending.endpoint(provider.account, provider.model)


def _watching(watch: WatchState | None) -> WatchingState | None:
    if watch is None:
        return None
    return WatchingState(
        mode=watch.mode,
        reason=watch.reason,
        overflows=watch.overflows,
        last_event_at=watch.last_event_at,
        last_compared_at=watch.last_compared_at,
    )


def _deep(sources: StatusSources, index: _Index) -> DeepFindings | None:
    """The numbers that the findings of a deep look begin with, and the files that nobody uses."""
    if index.integrity is None:
        return None
    unused, damaged = sources.generations.leftovers()
    counts = (_ORPHANS.match(finding) for finding in index.integrity)
    return DeepFindings(
        orphan_rows=sum(int(count.group(1)) for count in counts if count is not None),
        unused_files=len(unused),
        damaged_files=len(damaged),
    )


def _shown(endpoint: EndpointState | None) -> EndpointStatus | None:
    if endpoint is None:
        return None
    return EndpointStatus(condition=endpoint.condition, until=endpoint.until, reason=endpoint.reason)


def _notes(index: _Index) -> tuple[str, ...]:
    notes = [f"{key.path}: {note}" for key, file in sorted(index.files.items()) for note in file.notes]
    if len(notes) > _MAX_NOTES:
        notes = [*notes[:_MAX_NOTES], f"... and {len(notes) - _MAX_NOTES} more"]
    state = index.state
    if state.vectors_refused:
        notes.append(f"{state.vectors_refused} chunks were refused by the provider: found by keywords only")
    if not state.identity_matches and state.building is not None:
        notes.append("a new generation is being built for changed settings; the old one answers meanwhile")
    return tuple(notes)
