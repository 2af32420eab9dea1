"""Owner's views: the queue, counts, dead letters and days of notes, without reading any agent's disk.

Scopes restrict an agent's sessions. They do not restrict its owner.
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, timedelta
from posixpath import commonpath
from typing import TypeVar

from memory.chunking.dates import note_date
from memory.documents.titles import Title
from memory.service.agents import ServedAgent, ServedAgents
from memory.status.agent import endpoint_conditions, in_words, queue_state
from memory.status.vectors import no_vectors
from memory.store.reader import StoreReader
from schemas.conditions import Condition, ConditionCode
from schemas.documents import MEMORY_SOURCE, SESSIONS_SOURCE, DocumentKey
from schemas.errors import RecalldError
from schemas.service import (
    AgentDeadLetter,
    AgentQueue,
    DatedNote,
    Day,
    DayCount,
    DaysAnswer,
    DeadLettersAnswer,
    DocumentsAnswer,
    MemoryDocument,
    MemoryFolder,
    QueueAnswer,
    TimelineAnswer,
    Year,
)
from schemas.status import FleetState, IndexCounts
from schemas.version import recalld_version

#: Dead letters that are listed; the others are counted.
MAX_DEAD_LETTERS = 200

#: Documents of one page, and agents whose documents one view shows: those written last.
PAGE_DOCUMENTS, MOST_AGENTS = 40, 50

#: Days that every system's clock can tell.
EARLIEST, LATEST = date(1971, 1, 1), date(2999, 1, 1)

T = TypeVar("T")


def queue_view(agents: ServedAgents, visible_agents: Sequence[str], fleet: FleetState | None = None) -> QueueAnswer:
    """Return the waiting and running work of the visible agents, and the counts of their indexes, with the sums."""
    probed = agents.probed(visible_agents)
    now = time.time()
    shared = agents.shared_conditions()
    queues = tuple(_agent_queue(agents, served, shared, now) for served in probed)
    return QueueAnswer(at=round(now, 3), version=recalld_version(), agents=queues, fleet=fleet)


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


def documents(
    agents: ServedAgents, visible_agents: Sequence[str], *, source: str | None, day: date | None, offset: int
) -> DocumentsAnswer:
    """Return a page of the visible agents' documents, newest first: all of them, or those of one day."""

    def changes(_: ServedAgent, reader: StoreReader) -> list[tuple[DocumentKey, float]]:
        if day is None:
            return reader.changes(source, limit=offset + PAGE_DOCUMENTS + 1)
        of_day = [*_dated(reader, day, day), *_talks(reader, day, days=1)]
        return [change for change in of_day if source in (None, change[0].source)]

    by_agent = _from_indexes(agents, visible_agents, changes)
    rows = [(changed, agent, key) for agent, changes_of in by_agent.items() for key, changed in changes_of]
    return _page(agents, sorted(rows, key=lambda row: (-row[0], row[1:])), offset=offset)


def tree(agents: ServedAgents, agent: str, *, source: str, under: str, offset: int) -> DocumentsAnswer:
    """Return the folders right below `under`, and a page of its documents: notes by name, conversations newest first.

    A folder that holds nothing but another folder is named together with that.
    """
    under = f"{under.rstrip('/')}/" if under else ""
    changes = _from_indexes(agents, [agent], lambda _, reader: reader.changes(source, under=under)).get(agent, [])
    folders: dict[str, list[str]] = defaultdict(list)
    rows: list[tuple[float, str, DocumentKey]] = []
    for key, changed in changes:
        name, slash, _ = key.path[len(under) :].partition("/")
        if slash:
            folders[name].append(key.path.rpartition("/")[0])
        else:
            rows.append((changed, agent, key))
    if source == MEMORY_SOURCE:
        rows.sort(key=lambda row: row[2].path)
    answer = _page(agents, rows, offset=offset)
    if offset:
        return answer
    parts = ((commonpath((min(paths), max(paths))), len(paths)) for _, paths in sorted(folders.items()))
    return answer.model_copy(
        update={"folders": tuple(MemoryFolder(path=f"{path}/", documents=count) for path, count in parts)}
    )


def days(agents: ServedAgents, visible_agents: Sequence[str], *, since: date) -> DaysAnswer:
    """Return the days from `since` on with the visible agents' numbers of notes and conversations."""

    def dates(_: ServedAgent, reader: StoreReader) -> tuple[list[date | None], list[date | None]]:
        talks = [datetime.fromtimestamp(changed).date() for _, changed in _talks(reader, since)]
        return [note_date(key.path) for key, _ in _dated(reader, since)], [*talks]

    notes, talks = Counter[date | None](), Counter[date | None]()
    for of_notes, of_talks in _from_indexes(agents, visible_agents, dates).values():
        notes.update(of_notes)
        talks.update(of_talks)
    dated = sorted(day for day in {*notes, *talks} if day is not None)
    counts = (DayCount(date=day.isoformat(), notes=notes[day], conversations=talks[day]) for day in dated)
    return DaysAnswer(days=tuple(counts))


def _dated(reader: StoreReader, first: date, last: date = date.max) -> list[tuple[DocumentKey, float]]:
    """Return the notes whose names have a day from the `first` to the `last` one."""
    changes = reader.changes(MEMORY_SOURCE)
    return [change for change in changes if (day := note_date(change[0].path)) is not None and first <= day <= last]


def _talks(reader: StoreReader, first: date, *, days: int | None = None) -> list[tuple[DocumentKey, float]]:
    """Return the conversations that changed last on these `days` from the `first` one on, by the local clock."""
    start = datetime.combine(min(max(first, EARLIEST), LATEST), datetime.min.time())
    until = (start + timedelta(days=days)).timestamp() if days is not None else math.inf
    return reader.changes(SESSIONS_SOURCE, since=start.timestamp(), until=until)


def _from_indexes(
    agents: ServedAgents, visible_agents: Sequence[str], read: Callable[[ServedAgent, StoreReader], T]
) -> dict[str, T]:
    """Return readings of the indexes that were written last. `queue_view` has the reason of an unreadable index."""
    readings: dict[str, T] = {}
    probed = agents.probed(visible_agents)
    probed.sort(key=lambda served: -((served.probe.counts or IndexCounts()).last_commit_at or 0.0))
    for served in probed[:MOST_AGENTS]:
        with suppress(RecalldError):
            if served.manager is not None:
                with served.manager.reading() as reader:
                    if reader is not None:
                        readings[served.agent] = read(served, reader)
    return readings


def _page(agents: ServedAgents, rows: Sequence[tuple[float, str, DocumentKey]], *, offset: int) -> DocumentsAnswer:
    """Return a page of documents with their titles."""
    end = offset + PAGE_DOCUMENTS
    page = rows[offset:end]

    def titled(served: ServedAgent, reader: StoreReader) -> dict[DocumentKey, Title]:
        keys = [key for _, agent, key in page if agent == served.agent]
        return served.manager.titled(reader, keys, look=True) if served.manager is not None else {}

    titles = _from_indexes(agents, list({agent for _, agent, _ in page}), titled)
    documents = []
    for changed, agent, key in page:
        title = titles.get(agent, {}).get(key)
        facts = {"title": title.text, "words": title.words, "resume": title.resume} if title is not None else {}
        place = {"agent": agent, "source": key.source, "path": key.path, "changed_at": round(changed, 3)}
        documents.append(MemoryDocument.model_validate(place | facts))
    return DocumentsAnswer(documents=tuple(documents), next=end if len(rows) > end else None)


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
