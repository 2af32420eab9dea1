"""Owner's views: the queue, counts, dead letters and days of notes, without a look at any agent's disk.

Scopes restrict the sessions of an agent. They do not apply here: an owner may see all of an agent.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence

from memory.documents.roots import note_date
from memory.service.agents import ProbeResult, ServedAgents
from memory.status.agent import endpoint_conditions, trouble_of
from memory.status.answering import no_vectors
from memory.status.index import dead_letter
from memory.store.reader import IndexCounts, StoreReader
from schemas.conditions import ConditionCode
from schemas.errors import RecalldError
from schemas.overview import (
    AgentDeadLetter,
    AgentQueue,
    Counts,
    DatedNote,
    Day,
    DeadLettersAnswer,
    QueueAnswer,
    TimelineAnswer,
    Year,
)
from schemas.status import QueueState, TroubleState
from schemas.version import recalld_version

#: Dead letters that are listed; the others are counted.
MAX_DEAD_LETTERS = 200

#: Agents whose days are kept; years of notes take megabytes.
_AGENTS_WITH_DAYS = 32

#: The source of notes.
_NOTES = "memory"


class Overview:
    """Views of all agents of a service. Thread-safe; days are kept until the next commit."""

    def __init__(self, agents: ServedAgents) -> None:
        self._agents = agents
        self._queue = agents.queue
        self._lock = threading.Lock()
        # The least recently counted first.
        self._days: OrderedDict[str, tuple[object, Mapping[str, Day]]] = OrderedDict()

    def queue(self, agents: Sequence[str]) -> QueueAnswer:
        """Return the waiting and running work of these agents, and the counts of their indexes."""
        probed = self._agents.probed(agents)
        now = time.time()
        shared = tuple(trouble_of(one, now=now) for one in self._agents.shared_conditions())
        return QueueAnswer(
            at=round(now, 3),
            version=recalld_version(),
            agents=tuple(self._agent(agent, probed.get(agent), shared, now) for agent in agents),
        )

    def dead_letters(self, agents: Sequence[str]) -> DeadLettersAnswer:
        """Return the newest dead letters of these agents. `queue` has the reason for an index that cannot be read."""
        found: list[AgentDeadLetter] = []
        for agent, probed in self._agents.probed(agents).items():
            manager, _ = self._agents.manager(agent)
            if manager is None or probed.figures is None or not probed.figures.dead_letters:
                continue
            try:
                with manager.reading() as reader:
                    rows = reader.dead_letters() if reader is not None else []
            except RecalldError:
                continue
            found += [AgentDeadLetter(agent=agent, **dead_letter(row).model_dump()) for row in rows]
        found.sort(key=lambda letter: -letter.last_at)
        return DeadLettersAnswer(total=len(found), dead_letters=tuple(found[:MAX_DEAD_LETTERS]))

    def timeline(self, agent: str, *, year: int | None) -> TimelineAnswer:
        """Return the agent's dated notes."""
        manager, error = self._agents.manager(agent)
        if manager is None:
            return TimelineAnswer(agent=agent, error=error)
        try:
            with manager.reading() as reader:
                days = self._days_of(agent, reader) if reader is not None else {}
        except RecalldError as unreadable:
            return TimelineAnswer(agent=agent, error=str(unreadable))
        return timeline(agent, days, year=year)

    def _agent(
        self, agent: str, probed: ProbeResult | None, shared: tuple[TroubleState, ...], now: float
    ) -> AgentQueue:
        queue = QueueState.of(self._queue.pending(agent), now=now)
        manager, error = self._agents.manager(agent)
        if manager is None:
            return AgentQueue(agent=agent, queue=queue, troubles=shared, error=error)
        provider = manager.provider
        figures = probed.figures if probed is not None else None
        counts = figures.counts if figures is not None else IndexCounts()
        endpoint = self._queue.endpoint(provider.account, provider.model) if provider is not None else None
        lacking = no_vectors(
            agent, manager.chosen, files=counts.files, ready=counts.vectors_ready, pending=counts.vectors_pending
        )
        found = [*([lacking] if lacking is not None else []), *self._queue.conditions(agent)]
        if provider is not None:
            of_endpoint = endpoint_conditions(
                endpoint, self._queue.vector_progress(agent), found, provider=provider.name, now=now
            )
            # A refusing provider is shown as the endpoint's state.
            found += [one for one in of_endpoint if one.code is ConditionCode.PROVIDER_SILENT]
        return AgentQueue(
            agent=agent,
            queue=queue,
            looked=probed is not None,
            counts=Counts.model_validate(counts, from_attributes=True) if figures is not None else None,
            dead_letters=figures.dead_letters if figures is not None else 0,
            revision=figures.revision if figures is not None else "",
            provider=provider.name if provider is not None else None,
            model=provider.model if provider is not None else None,
            endpoint=endpoint,
            troubles=(*(trouble_of(one, now=now) for one in found), *shared),
            error=probed.problem if probed is not None else None,
        )

    def _days_of(self, agent: str, reader: StoreReader) -> Mapping[str, Day]:
        token = reader.change_token()
        with self._lock:
            kept = self._days.get(agent)
        if kept is not None and kept[0] == token:
            return kept[1]
        days = days_of(reader.chunks_by_path(_NOTES))
        with self._lock:
            self._days[agent] = (token, days)
            self._days.move_to_end(agent)
            if len(self._days) > _AGENTS_WITH_DAYS:
                self._days.popitem(last=False)
        return days


def days_of(chunks: Mapping[str, int]) -> dict[str, Day]:
    """Return ISO date -> notes and chunks of that day, ascending.

    Args:
        chunks: path -> number of chunks, of all notes; notes without a date in their name are left out.
    """
    notes: dict[str, list[DatedNote]] = defaultdict(list)
    for path, count in chunks.items():
        noted = note_date(path)
        if noted is not None:
            notes[noted.isoformat()].append(DatedNote(path=path, chunks=count))
    return {
        iso: Day(
            date=iso,
            chunks=sum(note.chunks for note in notes[iso]),
            notes=tuple(sorted(notes[iso], key=lambda note: note.path)),
        )
        for iso in sorted(notes)
    }


def timeline(agent: str, days: Mapping[str, Day], *, year: int | None) -> TimelineAnswer:
    """Return all years, and the days of `year`, else of the latest."""
    by_year: dict[int, list[Day]] = defaultdict(list)
    for iso, day in days.items():
        by_year[int(iso[:4])].append(day)
    years = tuple(
        Year(
            year=number,
            days=len(by_year[number]),
            notes=sum(len(day.notes) for day in by_year[number]),
            chunks=sum(day.chunks for day in by_year[number]),
        )
        for number in sorted(by_year)
    )
    shown = year if year is not None else (years[-1].year if years else None)
    found = tuple(by_year.get(shown, ())) if shown is not None else ()
    return TimelineAnswer(agent=agent, years=years, year=shown, days=found)
