"""Status of one agent: its disk, index and queue, compared.

`agent_status` looks once. The service keeps its result for a second (`memory.service.agents`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import UTC, date, datetime
from pathlib import Path

from memory.chunking.curated import CURATED_FILES, unreadable_directives
from memory.documents.agent_files import AgentFiles
from memory.documents.imports import backfill_halt
from memory.documents.notes import every_note
from memory.documents.scan import printable
from memory.embedding.batch_jobs.ledger_reader import texts_in_jobs
from memory.embedding.prices import cost_of
from memory.embedding.selection import NO_VECTORS, ProviderChoice
from memory.index.fingerprint import embedding_of, fingerprint
from memory.index.provider import embeds_sentences, provider_for_queries, provider_of
from memory.redaction import redact
from memory.status.condition_texts import part_of, text_of
from memory.status.index import UNREADABLE, IndexLook, StatusSources, build_progress, deep_findings, look_into_index
from memory.status.run_files import USAGE_PATH, read_derived, read_watch_state
from memory.status.vectors import (
    LOOKED_AFTER_SECONDS,
    held_vectors,
    missing_gpu,
    no_vectors,
    unread_scripts,
    useless_answers,
    vector_progress,
)
from schemas.conditions import EXPLAIN_VECTORS, OF_PROVIDER, Condition, ConditionCode, Param
from schemas.documents import MEMORY_SOURCE, DocumentKey
from schemas.errors import RecalldError
from schemas.ports import Pending, PendingReader, Usage, VectorProgress
from schemas.search import Mode
from schemas.settings import AgentSettings, MemorySettings, Settings
from schemas.status import (
    AgentStatus,
    Availability,
    DiskState,
    EndpointCondition,
    EndpointStatus,
    IndexState,
    QueueState,
    Spent,
    TroubleState,
    UsageState,
)

#: An endpoint that owes an answer for so long while no vector joins the index is silent.
SILENCE_SECONDS = 60.0

#: A build with nothing left in the queue is looked at by the workers every five minutes.
BUILD_SECONDS = 900.0

#: Notes, and folders, that are looked at where an agent has no document.
_MOST_NOTES, _MOST_FOLDERS = 10_000, 2_000

#: Conditions of work that waits, which are none while a user pauses it.
_OF_PAUSE = {
    *(ConditionCode.DOCUMENTS_WAIT, ConditionCode.VECTORS_STUCK, ConditionCode.VECTORS_UNATTENDED),
    ConditionCode.BUILD_STUCK,
}

#: A document that waits for longer than this makes status not ok: work that takes longer is behind, or stuck.
PENDING_TOO_LONG_SECONDS = 60.0


def agent_status(
    settings: Settings, agent: AgentSettings, sources: StatusSources, *, deep: bool = False
) -> AgentStatus:
    """Compare disk, index and queue of one agent. Never raises for a broken part: status reports it.

    `ok` is False if there is a condition: a document is missing, stale or vanished and no job for it waits; one waits
    for longer than a minute; vectors wait and none comes in; anything failed, or could not be looked at.
    """
    now, choice, queue = time.time(), provider_of(settings, agent), sources.pending
    provider = choice.provider
    # The queue first, the disk last: a document indexed in between then looks up to date, never forgotten.
    pending, progress = queue.pending(agent.id), queue.vector_progress(agent.id)
    watch = read_watch_state(settings.home, agent.id)
    index = look_into_index(sources, fingerprint=fingerprint(agent, choice.identity).digest, deep=deep)
    disk = index.comparison.disk_state(
        sources.files,
        sync=agent.sync,
        now=now,
        watched=watch is not None and watch.mode != "off" and (pending is not None or sources.sent_to is not None),
        held_back=pending is not None and pending.held_back,
    )
    vector_search = _vector_search(choice, index, sources.provider_failure)
    state, backlog = index.state, queue_state(pending, now=now)
    if state.building is not None:
        with suppress(RecalldError):  # a worker sets a damaged one aside and begins anew
            # Imported transcripts are not in the scan, but in the generation that answers.
            documents = max(index.comparison.scan.count, state.files)
            build = build_progress(sources.generations, documents=documents, rate=progress.rate)
            state = state.model_copy(update={"build": build})
    may_hold = state.vectors_held or state.building
    cost_of_held = held_vectors(agent, provider, sources.generations) if may_hold else None
    endpoint = queue.endpoint(provider.account, provider.model) if provider is not None else None
    in_jobs = texts_in_jobs(settings, agent.id, looked_within_seconds=LOOKED_AFTER_SECONDS)
    vectors, stuck_since = vector_progress(
        state,
        progress,
        agent,
        provider,
        now,
        in_batch_jobs=min(in_jobs, state.vectors_pending),
        # Nothing runs, as far as one can see, or nothing may leave.
        held_back=pending is None or (endpoint is not None and endpoint.condition is not EndpointCondition.OK),
    )
    if embeds_sentences(agent, provider):
        sentences = dict(zip(("sentences_ready", "sentences_wanted"), index.sentences, strict=True))
        vectors = vectors.model_copy(update=sentences)
    conditions = _conditions(agent, choice, sources, index, now)
    conditions += endpoint_conditions(endpoint, progress, conditions, provider=choice.name, now=now)
    useless = useless_answers(settings.home, agent, provider, chunks=state.chunks)
    if useless is not None and not _is_explained(conditions, useless.subject):
        conditions.append(useless)
    if stuck_since is not None and not any(condition.code in EXPLAIN_VECTORS for condition in conditions):
        params: dict[str, Param] = {"chunks": state.vectors_pending, "minutes": round((now - stuck_since) / 60)}
        conditions.append(Condition(ConditionCode.VECTORS_STUCK, agent.id, stuck_since, params))
    conditions += figure_conditions(
        agent.id, state, backlog, in_batch_jobs=in_jobs, embeds=provider is not None, now=now
    )
    if not (index.comparison.scan.count or state.files) and index.comparison.scan.complete:
        conditions.append(no_documents(agent))
    if (halt := backfill_halt(settings.home, agent.id)) == "paused":
        conditions = [condition for condition in conditions if condition.code not in _OF_PAUSE]
    halted = Condition(ConditionCode.BACKFILL_HALTED, agent.id, params={"halt": halt}) if halt else None
    mode, limits = _answering(
        state,
        provider_for_queries(settings, agent),
        vectors=vector_search,
        text=index.text_search,
        by_text=agent.query.hybrid.enabled,
    )
    conditions += _look_conditions(agent.id, index, disk, backlog, queue_expected=sources.queue_expected)
    return AgentStatus(
        agent=agent.id,
        ok=not conditions,
        workspace=str(agent.workspace),
        provider=choice.name,
        requested_provider=choice.requested,
        model=provider.model if provider is not None else None,
        provider_reason=choice.explanation,
        endpoint=endpoint,
        usage=spending(queue, agent.id, agent, home=settings.home),
        disk=disk,
        index=state,
        queue=backlog,
        vectors=vectors,
        vector_search=vector_search,
        text_search=index.text_search,
        mode=mode,
        degraded=tuple(map(text_of, limits)),
        conditions=limits,
        watch=watch.sentence if watch is not None else None,
        watching=watch,
        dead_letters=index.dead_letters,
        notes=index.notes,
        troubles=in_words(conditions, now=now),
        advice=in_words(
            [
                *directive_conditions(agent, sources.files),
                *filter(None, [unread_scripts(agent.id, state), missing_gpu(agent.id, provider), cost_of_held, halted]),
            ],
            now=now,
        ),
        integrity=index.integrity,
        deep=deep_findings(sources, index.integrity),
    )


def queue_state(pending: Pending | None, *, now: float) -> QueueState:
    """Return an agent's backlog at Unix time `now`; `pending` is None while the broker does not answer."""
    if pending is None:
        return QueueState(reachable=False)
    return QueueState(pending=pending.documents, running=pending.running, oldest_seconds=pending.oldest_seconds(now))


def spending(reader: PendingReader, agent: str, memory: MemorySettings, *, home: Path) -> tuple[UsageState, ...]:
    """Return the cost of an agent ("*": of all agents) in total and today (UTC), the most asked model first.

    Dollars are the tokens' cost by `memory`'s price or the list price; None without a price. Where the broker has
    no usage, files of the home tell it.
    """

    def spent(usage: Usage) -> Spent:
        cost = cost_of(memory, usage)
        dollars = round(cost, 6) if cost is not None else None
        return Spent.model_validate(usage, from_attributes=True).model_copy(update={"dollars": dollars})

    days = None, datetime.now(UTC).date()
    ever, of_day = (reader.usage(agent, day=day) or _kept_usage(home, agent, day=day) for day in days)
    today = {(usage.provider, usage.model): usage for usage in of_day}
    return tuple(
        UsageState(
            provider=usage.provider,
            model=usage.model,
            total=spent(usage),
            today=spent(today.get((usage.provider, usage.model), Usage(usage.provider, usage.model))),
        )
        for usage in ever
    )


def _kept_usage(home: Path, agent: str, *, day: date | None) -> Sequence[Usage]:
    """Return the usage that workers noted last and that of commands since, as `PendingReader.usage` does."""
    sums: dict[tuple[str, str], Counter[str]] = {}
    with suppress(AttributeError, KeyError, TypeError):
        usages = (read_derived(home / USAGE_PATH) or {}).get(str(day or "ever"), {}).get(agent, [])
        spool = [read_derived(path) for path in (home / "spool").glob("*.json")]
        for spooled in (content["usage"] for content in spool if content and "usage" in content):
            shares = {**spooled["agents"], "*": spooled["usage"]}
            usages += [shares[agent]] if agent in shares and (day is None or spooled["day"] == str(day)) else []
        for usage in usages:
            sums.setdefault((usage.pop("provider"), usage.pop("model")), Counter()).update(usage)
    return [Usage(provider, model, **counts) for (provider, model), counts in sums.items()]


def in_words(conditions: Iterable[Condition], *, now: float) -> tuple[TroubleState, ...]:
    """Return conditions as answers show them. A condition without a beginning began `now`."""
    dated = (condition if condition.since is not None else replace(condition, since=now) for condition in conditions)
    return tuple(
        TroubleState(**asdict(condition), part=part_of(condition), message=text_of(condition)) for condition in dated
    )


def with_conditions(agent: AgentStatus, conditions: Iterable[Condition], *, now: float) -> AgentStatus:
    """Return an agent's status with more conditions. `ok` is True only without any."""
    troubles = (*agent.troubles, *in_words(conditions, now=now))
    return agent.model_copy(update={"ok": not troubles, "troubles": troubles})


def endpoint_conditions(
    endpoint: EndpointStatus | None,
    progress: VectorProgress,
    conditions: Iterable[Condition],
    *,
    provider: str,
    now: float,
) -> Iterator[Condition]:
    """Yield that the endpoint refuses, or leaves requests without an answer; nothing if `conditions` explain it.

    A slow endpoint is no condition as long as vectors come in.
    """
    if endpoint is None or _is_explained(conditions, provider):
        return
    if endpoint.condition is EndpointCondition.STOPPED:
        # A query may have found out while no worker has anything to embed.
        yield Condition(ConditionCode.PROVIDER_REFUSES, provider, params={"error": endpoint.reason or "refuses"})
    elif endpoint.since is not None and now - max(endpoint.since, progress.at) > SILENCE_SECONDS:
        params: dict[str, Param] = {"reason": endpoint.reason or "a request was not answered"}
        yield Condition(ConditionCode.PROVIDER_SILENT, provider, endpoint.since, params)


def _is_explained(conditions: Iterable[Condition], provider: str) -> bool:
    return any(condition.code in OF_PROVIDER and condition.subject == provider for condition in conditions)


def figure_conditions(
    agent: str, index: IndexState, queue: QueueState, *, in_batch_jobs: int, embeds: bool, now: float
) -> Iterator[Condition]:
    """Yield the conditions of figures: documents wait for long, vectors never come, a build gets no further.

    Until the new generation is whole, the old one answers.
    """
    params: dict[str, Param]
    build = index.build
    if (queue.oldest_seconds or 0.0) > PENDING_TOO_LONG_SECONDS:
        params = {"documents": queue.pending, "seconds": queue.oldest_seconds or 0.0}
        yield Condition(ConditionCode.DOCUMENTS_WAIT, agent, params=params)
    if not index.identity_matches and index.building is None:
        yield Condition(ConditionCode.INDEX_OUTDATED, agent)
    if index.vectors_pending and not queue.reachable and embeds:
        yield Condition(ConditionCode.VECTORS_UNATTENDED, agent, params={"chunks": index.vectors_pending})
    if index.building is not None and not queue.reachable:
        yield Condition(ConditionCode.BUILD_ABANDONED, since=build.last_change_at if build is not None else None)
    elif build is not None and build.last_change_at is not None and not queue.pending and not in_batch_jobs:
        still = now - build.last_change_at
        if still > BUILD_SECONDS and not build.vectors_held:
            params = {"minutes": round(still / 60), "files": build.files, "of_files": build.of_files}
            params["vectors"] = build.vectors_pending
            yield Condition(ConditionCode.BUILD_STUCK, since=build.last_change_at, params=params)


def _look_conditions(
    agent: str, index: IndexLook, disk: DiskState, queue: QueueState, *, queue_expected: bool
) -> Iterator[Condition]:
    """Yield the documents that failed or have no job, findings of a deep look, and a queue that is away."""
    failed = len(index.dead_letters)
    behind = disk.missing + disk.stale + disk.vanished
    if behind > queue.pending + failed:
        params: dict[str, Param] = {"missing": disk.missing, "stale": disk.stale, "vanished": disk.vanished}
        unsent = Condition(ConditionCode.DOCUMENTS_UNSENT, agent, params={"documents": behind - failed})
        unqueued = Condition(ConditionCode.DOCUMENTS_UNQUEUED, agent, params=params)
        yield unqueued if index.state.sent_to is None else unsent
    if failed:
        yield Condition(ConditionCode.DOCUMENTS_FAILED, agent, params={"documents": failed})
    if index.integrity and index.trouble is None:
        yield Condition(ConditionCode.INDEX_INCONSISTENT, agent, params={"findings": "; ".join(index.integrity)})
    if queue_expected and not queue.reachable:
        yield Condition(ConditionCode.QUEUE_UNREACHABLE, agent)


def directive_conditions(agent: AgentSettings, files: AgentFiles) -> Iterator[Condition]:
    """Yield that a curated file has project directives that cannot be read. Nothing if prompts get no memory."""
    for name in CURATED_FILES if agent.context.injection.enabled else ():
        with suppress(RecalldError):  # absent, or a dead letter says why it is unreadable
            lines = unreadable_directives(files.read(DocumentKey(MEMORY_SOURCE, name)).text)
            if lines:
                params: dict[str, Param] = {"marks": len(lines), "line": lines[0]}
                yield Condition(ConditionCode.PROJECT_MARK_UNREADABLE, name, params=params)


def no_documents(agent: AgentSettings) -> Condition:
    """Return the condition of an agent without any document, with the notes of its workspace that are not taken."""
    notes = 0
    if MEMORY_SOURCE in agent.sources:
        notes = len(every_note(agent, most=_MOST_NOTES, most_folders=_MOST_FOLDERS))
    code = ConditionCode.NOTES_NOT_TAKEN if notes else ConditionCode.NO_DOCUMENTS
    return Condition(code, printable(str(agent.workspace)), params={"notes": notes})


def _vector_search(choice: ProviderChoice, index: IndexLook, failure: str | None) -> Availability:
    if index.trouble is not None:
        reason: str | None = UNREADABLE
    elif index.state.generation is None:
        reason = None
    elif choice.provider is None:
        reason = choice.explanation
    else:
        reason = failure
    return Availability(available=reason is None, reason=reason)


def _conditions(
    agent: AgentSettings, choice: ProviderChoice, sources: StatusSources, index: IndexLook, now: float
) -> list[Condition]:
    reported = sources.pending.conditions(agent.id)
    # Files were looked at just now; their conditions began when a comparison reported them first.
    since = {(condition.code, condition.subject): condition.since for condition in reported}
    conditions = [
        replace(problem, since=since.get((problem.code, redact(problem.subject)), now))
        for problem in index.comparison.scan.problems
    ]
    if index.trouble is not None:
        conditions.append(Condition(ConditionCode.INDEX_UNREADABLE, agent.id, params={"error": index.trouble}))
    elif not index.text_search.available:
        conditions.append(
            Condition(ConditionCode.KEYWORDS_UNAVAILABLE, params={"error": str(index.text_search.reason)})
        )
    lacking = choice.lacking if sources.sent_to is None else None  # the fleet embeds
    conditions += filter(None, [no_vectors(agent.id, lacking, index.state)])
    names = {
        (condition.code, name) for condition in conditions for name in (condition.subject, redact(condition.subject))
    }
    return conditions + [condition for condition in reported if (condition.code, condition.subject) not in names]


def _answering(
    index: IndexState, choice: ProviderChoice, *, vectors: Availability, text: Availability, by_text: bool
) -> tuple[Mode, tuple[Condition, ...]]:
    """Return the `mode` of a search now, and the conditions that limit it.

    `vectors` and `text` tell whether either side can be searched; `by_text` whether keywords are wanted
    (`query.hybrid.enabled`).
    """
    if index.generation is None:
        return "none", ()
    limits: list[Condition] = []
    near = vectors.available and choice.provider is not None
    made_by = embedding_of(index.identity)
    if near and choice.provider is not None and made_by not in {choice.provider.identity, NO_VECTORS}:
        near = False
        limits.append(Condition(ConditionCode.OTHER_MODEL))
    elif not vectors.available and choice.requested != "none":
        limits.append(Condition(ConditionCode.KEYWORDS_ONLY, params={"reason": str(vectors.reason)}))
    if not text.available:
        limits.append(Condition(ConditionCode.VECTORS_ONLY, params={"reason": str(text.reason)}))
        return ("vector" if near else "none"), tuple(limits)
    if not near or not index.vectors_ready:
        return "keyword", tuple(limits)
    return ("hybrid" if by_text else "vector"), tuple(limits)
