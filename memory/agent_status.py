"""Honest status of one agent: what is on disk, in the index and in the queue, compared.

`agent_status` looks once; the service keeps what it said for a second (`memory.service.agents`).
"""

from __future__ import annotations

import time

from memory.documents.agent_files import Scan
from memory.documents.comparison import compare
from memory.documents.unmounted_folders import with_emptied
from memory.embedding.batch_jobs.batch_ledger import texts_in_jobs
from memory.file_troubles import file_troubles
from memory.progress import LOOKED_AFTER_SECONDS, vector_progress
from memory.standing_still import build_troubles, clock_troubles, silence_troubles, vector_troubles
from memory.status.answering import answering, lacking_troubles, no_prefixes, sides_in_trouble, trouble_of
from memory.status.cost import spending
from memory.status.index import (
    IndexLook,
    absent_documents,
    deep_findings,
    forgotten_transcripts,
    look_into_index,
    with_build,
)
from memory.status.run_files import WatchState, read_watch_state
from memory.status.sources import StatusSources
from memory.wire_forms import endpoint_status, queue_state, trouble_state
from schemas.conditions import ConditionCode
from schemas.ports import EndpointCondition, EndpointState
from schemas.settings import AgentSettings, Settings
from schemas.status import AgentStatus, TroubleState, WatchingState

#: A document that waits for longer than this makes status not ok: work that takes longer is behind, or stuck.
PENDING_TOO_LONG_SECONDS = 60.0

#: Notes of documents that are listed; the rest is counted.
_MAX_NOTES = 50

#: What is said of a document whose dead letter was dropped.
_LEFT_OUT = "left out, for its dead letter was dropped; it is read again when it changes, or by `recalld dead retry`"


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
    index = look_into_index(settings, agent, sources, deep=deep)
    scan = sources.files.scan(but=index.known)
    absent = absent_documents(sources, index.known)
    scan = with_emptied(scan, sources.files, absent)
    watch = read_watch_state(settings.home, agent.id)
    disk = compare(
        scan,
        index.known,
        absent,
        forgotten_transcripts(sources, absent, scan),
        sessions=agent.sync.sessions,
        now=now,
        watched=watch is not None and watch.mode != "off" and pending is not None,
        left_out=index.left_out,
    )
    endpoint = _endpoint(sources)
    troubles = _troubles(agent, sources, scan, index, endpoint, now)
    progress = sources.pending.vector_progress(agent.id) if sources.pending is not None else None
    if all(trouble.part != f"provider {sources.choice.name}" for trouble in troubles):
        troubles += silence_troubles(endpoint, progress, provider=sources.choice.name, now=now)
    in_jobs = texts_in_jobs(settings.home, agent.id, looked_within_seconds=LOOKED_AFTER_SECONDS)
    vectors, stuck_since = vector_progress(
        index.state,
        progress,
        agent,
        sources.choice,
        now,
        in_batch_jobs=min(in_jobs, index.state.vectors_pending),
        # Nothing runs, as far as one can see, or nothing may leave.
        held_back=pending is None or (endpoint is not None and endpoint.condition is not EndpointCondition.OK),
    )
    queue = queue_state(pending, now=now)
    state = with_build(index.state, sources, scan, rate=progress.rate if progress is not None else 0.0)
    troubles += vector_troubles(index.state, stuck_since, troubles, now=now)
    troubles += [*clock_troubles(pending, now=now), *build_troubles(state, queue, in_batch_jobs=in_jobs, now=now)]
    mode, degraded = answering(
        index.state,
        sources.queries or sources.choice,
        vectors=index.vector_search,
        text=index.text_search,
        by_text=agent.query.hybrid.enabled,
    )
    healthy = (
        not troubles
        and not index.dead_letters
        and not index.integrity
        and (index.state.identity_matches or index.state.building is not None)
        and disk.missing + disk.stale + disk.vanished <= queue.pending
        and (queue.oldest_seconds or 0.0) <= PENDING_TOO_LONG_SECONDS
        and (queue.reachable or not sources.queue_expected)
        # Vectors that wait while nothing runs will wait for ever.
        and (queue.reachable or not index.state.vectors_pending or sources.choice.provider is None)
    )
    choice = sources.choice
    advice = no_prefixes(agent.id, agent, choice, chunks=index.state.chunks)
    return AgentStatus(
        agent=agent.id,
        ok=healthy,
        workspace=str(agent.workspace),
        provider=choice.name,
        requested_provider=choice.requested,
        model=choice.provider.model if choice.provider is not None else None,
        provider_reason=choice.error or choice.reason,
        endpoint=endpoint_status(endpoint),
        usage=spending(sources.pending, agent.id, agent) if sources.pending is not None else (),
        disk=disk,
        index=state,
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
        advice=() if advice is None else (trouble_of("embedding", advice, now=now),),
        integrity=index.integrity,
        deep=deep_findings(sources, index),
    )


def _troubles(
    agent: AgentSettings,
    sources: StatusSources,
    scan: Scan,
    index: IndexLook,
    endpoint: EndpointState | None,
    now: float,
) -> list[TroubleState]:
    told = sources.pending.troubles(agent.id) if sources.pending is not None else ()
    troubles, told = file_troubles(scan.problems, told, now)
    if index.trouble is not None:
        troubles.append(TroubleState(part="index", message=index.trouble, since=now))
    else:
        troubles += sides_in_trouble(text=index.text_search, now=now)
    troubles += lacking_troubles(agent.id, sources.choice, index.state, now=now)
    if told:
        known = {trouble.part for trouble in troubles}
        troubles += [
            trouble_state(trouble)
            for trouble in told
            # What this process's SQLite lacks was found out anew just now.
            if not (trouble.part in known and trouble.part in {"keywords", "vectors"})
        ]
    if endpoint is not None and endpoint.condition is EndpointCondition.STOPPED:
        # A query may have found out while no worker has anything to embed.
        part = f"provider {sources.choice.name}"
        if all(trouble.part != part for trouble in troubles):
            code = ConditionCode.VECTORS_WAIT
            troubles.append(TroubleState(part=part, message=endpoint.reason or "refuses", since=now, code=code))
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


def _notes(index: IndexLook) -> tuple[str, ...]:
    noted = [
        f"{file.key.path}: {note}" for file in sorted(index.noted, key=lambda file: file.key) for note in file.notes
    ]
    failed = {(letter.source, letter.path) for letter in index.dead_letters}
    out = sorted(key.path for key in index.left_out if (key.source, key.path) not in failed)
    notes = [*(f"{path}: {_LEFT_OUT}" for path in out), *noted]
    if len(notes) > _MAX_NOTES:
        notes = [*notes[:_MAX_NOTES], f"... and {len(notes) - _MAX_NOTES} more"]
    if index.unfinished is not None:
        notes.append(index.unfinished)
    state = index.state
    if state.vectors_refused:
        notes.append(f"{state.vectors_refused} chunks were refused by the provider: found by keywords only")
    if not state.identity_matches and state.building is not None:
        notes.append("a new generation is being built for changed settings; the old one answers meanwhile")
    return tuple(notes)
