"""Owner's views: the queue, counts, dead letters and days of notes, without reading any agent's disk.

Scopes restrict an agent's sessions. They do not restrict its owner.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence

from memory.documents.roots import note_date
from memory.service.agents import ServedAgent, ServedAgents
from memory.status.agent import endpoint_conditions, in_words, queue_state
from memory.status.vectors import no_vectors
from schemas.conditions import Condition, ConditionCode
from schemas.documents import MEMORY_SOURCE
from schemas.errors import RecalldError
from schemas.service import (
    AgentDeadLetter,
    AgentQueue,
    DatedNote,
    Day,
    DeadLettersAnswer,
    QueueAnswer,
    TimelineAnswer,
    Year,
)
from schemas.status import IndexCounts
from schemas.version import recalld_version

#: Dead letters that are listed; the others are counted.
MAX_DEAD_LETTERS = 200


def queue_view(agents: ServedAgents, visible_agents: Sequence[str]) -> QueueAnswer:
    """Return the waiting and running work of the visible agents, and the counts of their indexes."""
    probed = agents.probed(visible_agents)
    now = time.time()
    shared = agents.shared_conditions()
    queues = tuple(_agent_queue(agents, served, shared, now) for served in probed)
    return QueueAnswer(at=round(now, 3), version=recalld_version(), agents=queues)


def dead_letters(agents: ServedAgents, visible_agents: Sequence[str]) -> DeadLettersAnswer:
    """Return the newest dead letters of the visible agents. `queue_view` has the reason why an index cannot be read."""
    letters: list[AgentDeadLetter] = []
    for served in agents.probed(visible_agents):
        if served.manager is None or not served.probe.dead_letters:
            continue
        try:
            with served.manager.reading() as reader:
                of_agent = reader.dead_letters() if reader is not None else []
        except RecalldError:
            continue
        letters += [AgentDeadLetter(agent=served.agent, **dict(letter)) for letter in of_agent]
    letters.sort(key=lambda letter: -letter.last_at)
    return DeadLettersAnswer(total=len(letters), dead_letters=tuple(letters[:MAX_DEAD_LETTERS]))


def timeline(agents: ServedAgents, agent: str, *, year: int | None) -> TimelineAnswer:
    """Return the agent's dated notes."""
    served = agents.served[agent]
    if served.manager is None:
        return TimelineAnswer(agent=agent, error=served.reason)
    try:
        with served.manager.reading() as reader:
            chunks = reader.chunks_by_path(MEMORY_SOURCE) if reader is not None else {}
    except RecalldError as error:
        return TimelineAnswer(agent=agent, error=str(error))
    return timeline_of(agent, chunks, year=year)


def timeline_of(agent: str, chunks: Mapping[str, int], *, year: int | None) -> TimelineAnswer:
    """Return all years, and the days of `year`, else of the latest.

    `chunks` maps paths of notes to their numbers of chunks; notes without a date in their name are left out.
    """
    notes: dict[str, list[DatedNote]] = defaultdict(list)
    for path in sorted(chunks):
        date = note_date(path)
        if date is not None:
            notes[date.isoformat()].append(DatedNote(path=path, chunks=chunks[path]))
    by_year: dict[int, list[Day]] = defaultdict(list)
    for iso, of_day in sorted(notes.items()):
        day = Day(date=iso, chunks=sum(note.chunks for note in of_day), notes=tuple(of_day))
        by_year[int(iso[:4])].append(day)
    years = tuple(
        Year(
            year=number,
            days=len(days),
            notes=sum(len(day.notes) for day in days),
            chunks=sum(day.chunks for day in days),
        )
        for number, days in by_year.items()
    )
    chosen_year = year if year is not None else max(by_year, default=None)
    of_year = by_year[chosen_year] if chosen_year is not None else []
    return TimelineAnswer(agent=agent, years=years, year=chosen_year, days=tuple(of_year))


def _agent_queue(agents: ServedAgents, served: ServedAgent, shared: tuple[Condition, ...], now: float) -> AgentQueue:
    agent, manager = served.agent, served.manager
    state = queue_state(agents.queue.pending(agent), now=now)
    if manager is None:
        return AgentQueue(agent=agent, queue=state, troubles=in_words(shared, now=now), error=served.reason)
    choice = manager.embedder.documents
    provider, probe = choice.provider, served.probe
    counts = probe.counts or IndexCounts()
    endpoint = agents.queue.endpoint(provider.account, provider.model) if provider is not None else None
    conditions = [*filter(None, [no_vectors(agent, choice.lacking, counts)]), *agents.queue.conditions(agent)]
    if provider is not None:
        progress = agents.queue.vector_progress(agent)
        of_endpoint = endpoint_conditions(endpoint, progress, conditions, provider=provider.name, now=now)
        # A refusing provider is shown as the endpoint's state.
        conditions += [silence for silence in of_endpoint if silence.code is ConditionCode.PROVIDER_SILENT]
    return AgentQueue(
        agent=agent,
        queue=state,
        looked=probe.looked,
        counts=probe.counts,
        dead_letters=probe.dead_letters,
        revision=probe.revision,
        provider=provider.name if provider is not None else None,
        model=provider.model if provider is not None else None,
        endpoint=endpoint,
        troubles=in_words([*conditions, *shared], now=now),
        error=probe.problem,
    )
