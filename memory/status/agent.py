"""Status of one agent: disk, index and queue, compared.

`agent_status` looks once. The service keeps its result for a second (`memory.service.agents`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace

from memory.documents.agent_files import Scan
from memory.documents.comparison import compare, with_emptied
from memory.embedding.batch_jobs.batch_ledger import texts_in_jobs
from memory.redaction import redact
from memory.status.answering import answering, no_prefixes, no_vectors
from memory.status.condition_texts import part_of, text_of
from memory.status.home import spending
from memory.status.index import (
    IndexLook,
    StatusSources,
    absent_documents,
    deep_findings,
    forgotten_transcripts,
    look_into_index,
    with_build,
)
from memory.status.run_files import read_watch_state
from memory.status.vectors import LOOKED_AFTER_SECONDS, vector_progress
from schemas.conditions import EXPLAIN_VECTORS, OF_PROVIDER, Condition, ConditionCode, Param
from schemas.ports import Pending, VectorProgress
from schemas.search import ConditionState
from schemas.settings import AgentSettings, Settings
from schemas.status import AgentStatus, EndpointCondition, EndpointStatus, IndexState, QueueState, TroubleState

#: A mark may be made by another machine, whose clock differs by less than this.
_CLOCK_SECONDS = 5.0

#: An endpoint that owes an answer for so long while no vector joins the index is silent.
SILENCE_SECONDS = 60.0

#: A build with nothing left in the queue is looked at by the workers every five minutes.
BUILD_SECONDS = 900.0

#: A document that waits for longer than this makes status not ok: work that takes longer is behind, or stuck.
PENDING_TOO_LONG_SECONDS = 60.0

#: Notes of documents that are listed; the rest is counted.
_MAX_NOTES = 50

#: Note of a document whose dead letter was dropped.
_LEFT_OUT = "left out, for its dead letter was dropped; it is read again when it changes, or by `recalld dead retry`"


def agent_status(
    settings: Settings, agent: AgentSettings, sources: StatusSources, *, deep: bool = False
) -> AgentStatus:
    """Compare disk, index and queue of one agent. Never raises for a broken part: status reports it.

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
    progress = sources.pending.vector_progress(agent.id) if sources.pending is not None else None
    found = _conditions(agent, sources, scan, index, now)
    found += endpoint_conditions(endpoint, progress, found, provider=sources.choice.name, now=now)
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
    queue = QueueState.of(pending, now=now)
    state = with_build(index.state, sources, scan, rate=progress.rate if progress is not None else 0.0)
    if stuck_since is not None and not any(one.code in EXPLAIN_VECTORS for one in found):
        params: dict[str, Param] = {
            "chunks": index.state.vectors_pending,
            "minutes": round((now - stuck_since) / 60),
        }
        found.append(Condition(ConditionCode.VECTORS_STUCK, agent.id, stuck_since, params))
    found += clock_conditions(pending, now=now)
    found += build_conditions(state, queue, in_batch_jobs=in_jobs, now=now)
    mode, lacks = answering(
        index.state,
        sources.queries or sources.choice,
        vectors=index.vector_search,
        text=index.text_search,
        by_text=agent.query.hybrid.enabled,
    )
    healthy = (
        not found
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
        endpoint=endpoint,
        usage=spending(sources.pending, agent.id, agent) if sources.pending is not None else (),
        disk=disk,
        index=state,
        queue=queue,
        vectors=vectors,
        vector_search=index.vector_search,
        text_search=index.text_search,
        mode=mode,
        degraded=tuple(map(text_of, lacks)),
        conditions=tuple(ConditionState(**one.body()) for one in lacks),
        watch=watch.sentence if watch is not None else None,
        watching=watch,
        dead_letters=index.dead_letters,
        notes=_notes(index),
        troubles=tuple(trouble_of(one, now=now) for one in found),
        advice=() if advice is None else (trouble_of(advice, now=now),),
        integrity=index.integrity,
        deep=deep_findings(sources, index),
    )


def trouble_of(condition: Condition, *, now: float) -> TroubleState:
    """Return a condition as status shows it; one without a beginning was found just now."""
    body = condition.body() | {"since": condition.since if condition.since is not None else now}
    return TroubleState(part=part_of(condition), message=text_of(condition), **body)


def condition_of(trouble: TroubleState) -> Condition:
    """Return the condition that status shows."""
    return Condition(ConditionCode(trouble.code), trouble.subject, trouble.since, trouble.params)


def endpoint_conditions(
    endpoint: EndpointStatus | None,
    progress: VectorProgress | None,
    found: Iterable[Condition],
    *,
    provider: str,
    now: float,
) -> Iterator[Condition]:
    """Yield that the endpoint refuses, or leaves requests without an answer; nothing where the reason was `found`.

    A slow endpoint is no condition as long as vectors come in.
    """
    if endpoint is None or any(one.code in OF_PROVIDER and one.subject == provider for one in found):
        return
    if endpoint.condition is EndpointCondition.STOPPED:
        # A query may have found out while no worker has anything to embed.
        yield Condition(ConditionCode.PROVIDER_REFUSES, provider, params={"error": endpoint.reason or "refuses"})
    elif endpoint.since is not None:
        still_since = max(endpoint.since, progress.at if progress is not None else 0.0)
        if now - still_since > SILENCE_SECONDS:
            params: dict[str, Param] = {"reason": endpoint.reason or "a request was not answered"}
            yield Condition(ConditionCode.PROVIDER_SILENT, provider, endpoint.since, params)


def clock_conditions(pending: Pending | None, *, now: float) -> Iterator[Condition]:
    """Yield that a document waits since a time that is still to come."""
    if pending is not None and pending.oldest_at is not None and pending.oldest_at - now > _CLOCK_SECONDS:
        yield Condition(ConditionCode.CLOCK_DIFFERS, params={"seconds": pending.oldest_at - now})


def build_conditions(index: IndexState, queue: QueueState, *, in_batch_jobs: int, now: float) -> Iterator[Condition]:
    """Yield that the new generation gets no further: until it is whole, the old one answers."""
    build = index.build
    if index.building is None:
        return
    if not queue.reachable:
        yield Condition(ConditionCode.BUILD_ABANDONED, since=build.last_change_at if build is not None else None)
    elif build is not None and build.last_change_at is not None and not queue.pending and not in_batch_jobs:
        still = now - build.last_change_at
        if still > BUILD_SECONDS:
            params: dict[str, Param] = {
                "minutes": round(still / 60),
                "files": build.files,
                "of_files": build.of_files,
                "vectors": build.vectors_pending,
            }
            yield Condition(ConditionCode.BUILD_STUCK, since=build.last_change_at, params=params)


def unreported(status: AgentStatus) -> Iterator[Condition]:
    """Yield why an agent is not ok, where its figures show it and no trouble of its status says so."""
    queue, index = status.queue, status.index
    if (queue.oldest_seconds or 0.0) > PENDING_TOO_LONG_SECONDS:
        params: dict[str, Param] = {"documents": queue.pending, "seconds": queue.oldest_seconds or 0.0}
        yield Condition(ConditionCode.DOCUMENTS_WAIT, status.agent, params=params)
    if not index.identity_matches and index.building is None:
        yield Condition(ConditionCode.INDEX_OUTDATED, status.agent)
    if index.vectors_pending and not queue.reachable and status.model is not None:
        yield Condition(ConditionCode.VECTORS_UNATTENDED, status.agent, params={"chunks": index.vectors_pending})


def _conditions(
    agent: AgentSettings, sources: StatusSources, scan: Scan, index: IndexLook, now: float
) -> list[Condition]:
    reported = sources.pending.conditions(agent.id) if sources.pending is not None else ()
    # Files were looked at just now; their conditions began when a comparison reported them first.
    since = {(one.code, one.subject): one.since for one in reported}
    found = [replace(one, since=since.get((one.code, redact(one.subject)), now)) for one in scan.problems]
    if index.trouble is not None:
        found.append(Condition(ConditionCode.INDEX_UNREADABLE, agent.id, params={"error": index.trouble}))
    elif not index.text_search.available:
        found.append(Condition(ConditionCode.KEYWORDS_UNAVAILABLE, params={"error": str(index.text_search.reason)}))
    state = index.state
    lacking = no_vectors(
        agent.id, sources.choice, files=state.files, ready=state.vectors_ready, pending=state.vectors_pending
    )
    found += [lacking] if lacking is not None else []
    known = {(one.code, one.subject) for one in found} | {(one.code, redact(one.subject)) for one in found}
    return found + [one for one in reported if (one.code, one.subject) not in known]


def _endpoint(sources: StatusSources) -> EndpointStatus | None:
    provider = sources.choice.provider
    if provider is None or sources.pending is None:
        return None
    return sources.pending.endpoint(provider.account, provider.model)


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
