"""Comparison of an agent's files with its generations, by stat only, and the schedule of the comparisons.

`reconcile` compares and enqueues every document that differs, also those whose events were lost. Workers read a
document only when its size, times or inode differ from the index.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import date
from functools import partial

import structlog

from memory.documents.agent_files import AgentFiles
from memory.documents.comparison import Comparison, compare
from memory.documents.notes import FolderEntry, next_record, read_record
from memory.documents.roots import archived_path, priority
from memory.status.run_files import write_derived
from memory.store.errors import OtherFormat, StoreCorrupt
from memory.store.reader import StoreReader
from producers.dispatcher import mark_in_calls
from schemas.conditions import Condition
from schemas.documents import DocumentKey, Lane
from schemas.errors import RecalldError, UserError, backoff
from schemas.ports import JobQueue
from schemas.settings import AgentSettings

log = structlog.get_logger(__name__)

#: Shortest and longest pause, in seconds, after a failed comparison. It doubles with each failure.
COMPARISON_RETRY_SECONDS = (1.0, 30.0)

#: Largest number of differing documents that count as edits; more of them wait in the backfill queue. Documents that
#: only a generation under construction lacks wait there, too: the live generation answers with them. So do the
#: documents of a first index, and new ones of so many bytes, where they cost money: they wait there for a consent.
LIVE_DOCUMENTS, LIVE_BYTES = 20, 5_000_000


#: Reason of the first comparison of each agent; the reasons of all others are for the log alone.
START = "start"


class ReconcileSchedule:
    """Schedule of one comparison per agent: the earliest requested one. Thread-safe. Times are arguments.

    `intervals`: each agent's seconds between two comparisons, None for never. All agents are due at once, in the order
    given. The periodic comparisons of many agents are spread over the interval.
    """

    def __init__(self, intervals: Mapping[str, float | None], *, now: float) -> None:
        self._lock = threading.Lock()
        self._intervals = dict(intervals)
        self._plans = dict.fromkeys(intervals, (now, START))
        self._failures: dict[str, int] = {}
        count = len(self._intervals)
        # The first periodic comparison comes after half an interval at the earliest, the last one after a whole.
        self._first_share = {agent: 0.5 + 0.5 * (index + 1) / count for index, agent in enumerate(self._intervals)}

    def request(
        self, agents: Iterable[str], reason: str, *, now: float, delay_seconds: float = 0.0, urgent: bool = False
    ) -> None:
        """Plan comparisons after `delay_seconds`, unless earlier ones are planned. Urgent ones go first."""
        for agent in agents:
            self._plan(agent, -math.inf if urgent else now + delay_seconds, reason)

    def take(self, *, now: float) -> tuple[str, str] | None:
        """Remove and return the agent that has been due for longest, and the reason; None if no agent is due."""
        with self._lock:
            agent = min(self._plans, key=lambda agent: self._plans[agent][0], default=None)
            if agent is None or self._plans[agent][0] > now:
                return None
            return agent, self._plans.pop(agent)[1]

    def done(self, agent: str, *, now: float) -> None:
        """Record a successful comparison and plan the next periodic one."""
        self._failures.pop(agent, None)
        interval = self._intervals[agent]
        if interval is not None:
            self._plan(agent, now + interval * self._first_share.pop(agent, 1.0), "interval")

    def failed(self, agent: str, *, now: float) -> float:
        """Record a failed comparison and plan a retry with backoff. Return the seconds until then."""
        failures = self._failures[agent] = self._failures.get(agent, 0) + 1
        pause = backoff(failures, first=COMPARISON_RETRY_SECONDS[0], longest=COMPARISON_RETRY_SECONDS[1])
        self._plan(agent, now + pause, "retry")
        return pause

    def _plan(self, agent: str, at: float, reason: str) -> None:
        with self._lock:
            self._plans[agent] = min(self._plans.get(agent, (at, reason)), (at, reason), key=lambda plan: plan[0])


@dataclass(frozen=True, slots=True)
class Indexes:
    """Generations of the agents' indexes, opened to be compared with their files.

    `indexed` opens the generation that the files must agree with, `answering` the one for searches; None without any.
    `building` returns True while a generation is under construction. `asks` returns True if embedding old texts of the
    agent needs a consent.
    """

    indexed: Callable[[AgentSettings], StoreReader | None]
    answering: Callable[[AgentSettings], StoreReader | None] = lambda _: None
    building: Callable[[AgentSettings], bool] = lambda _: False
    asks: Callable[[AgentSettings], bool] = lambda _: False


@dataclass(frozen=True, slots=True)
class AgentComparison:
    """Comparison of an agent's files with its generations.

    `live` and `backfill` are the documents to index, the most important ones first. `on_disk` counts documents, `new`,
    `changed` and `vanished` those to index. `vectors_pending` chunks wait for their vectors, held ones among them.
    `building`: a generation is under construction, and may be whole now. `problems` are conditions of the files.
    """

    agent: str
    live: Sequence[DocumentKey] = ()
    backfill: Sequence[DocumentKey] = ()
    vectors_pending: int = 0
    building: bool = False
    on_disk: int = 0
    new: int = 0
    changed: int = 0
    vanished: int = 0
    problems: tuple[Condition, ...] = ()
    seconds: float = 0.0

    @property
    def documents(self) -> list[DocumentKey]:
        """Documents to index."""
        return [*self.live, *self.backfill]

    def enqueue(self, queue: JobQueue) -> None:
        """Queue the documents to index, missing vectors, and a check of the generation under construction.

        Raises:
            BrokerUnavailable: a part was not queued; compare again later.
        """
        mark_in_calls(queue, self.agent, self.live, lane=Lane.LIVE)
        mark_in_calls(queue, self.agent, self.backfill, lane=Lane.BACKFILL)
        # The jobs of the marked documents request vectors only for their own chunks.
        if self.vectors_pending:
            queue.request_vectors(self.agent)
        if self.building:
            queue.request_completion(self.agent)


@dataclass(frozen=True, slots=True)
class _Look:
    """Comparison with one generation. `orphans`: documents of which nothing but a dead letter is left."""

    comparison: Comparison
    orphans: Sequence[DocumentKey] = ()
    vectors_pending: int = 0

    @property
    def lacking(self) -> list[DocumentKey]:
        """Return the documents that the generation lacks or must forget."""
        differing = [key for key in self.comparison.scan.documents if key not in self.comparison.left_out]
        # A session may continue in an archive that is not indexed yet: its job comes after the archive's.
        archived = {archived_path(key.path) for key in differing}
        moved = [key for key in self.comparison.absent if key.path in archived]
        return [*differing, *self.comparison.gone, *moved, *self.orphans]


def _look(
    opened: Callable[[], StoreReader | None], files: AgentFiles, unless: type[RecalldError], *, imported: bool
) -> _Look | None:
    """Compare the files with a generation. Return None without one, or if reading it raises `unless`."""
    try:
        reader = opened()
        if reader is None:
            return None
        with closing(reader):
            comparison = compare(files, reader, imported=imported)
            indexed, documents = comparison.known, comparison.scan.documents
            orphans = [
                letter.key
                for letter in reader.dead_letters()
                if not (letter.key in documents or letter.key in indexed)
                and not files.source_of(letter.key).hides(letter.key, comparison.scan)
            ]
            counts = reader.counts()
            return _Look(comparison, orphans, counts.vectors_pending + counts.vectors_held)
    except (StoreCorrupt, unless):
        return None


def _record_folders(files: AgentFiles, notes: Mapping[str, int]) -> None:
    """Record the folders of notes, and the missing ones of which the index holds notes."""
    if files.notes.record is None:
        return
    before, missing = read_record(files.notes.record), files.notes.missing_folders(now=time.time())
    record = next_record(files.notes.folders(), before, missing, notes)
    if record != before:
        try:
            write_derived(files.notes.record, record)
        except OSError as error:
            # Notes of missing folders stay meanwhile.
            log.warning("folders_not_recorded", error=str(error))


def forget_missing_folders(files: AgentFiles) -> None:
    """Let the next comparison forget the notes of folders that are missing now.

    Raises:
        UserError: the record of folders cannot be written.
    """
    record, missing = read_record(files.notes.record), files.notes.missing_folders(now=time.time())
    overdue = {folder: record.get(folder, FolderEntry())._replace(missing_since=0.0) for folder in missing}
    try:
        if files.notes.record is not None:
            write_derived(files.notes.record, record | overdue)
    except OSError as error:
        raise UserError(f"{files.notes.record} cannot be written ({error.strerror}); free some space there") from error


def compare_agent(
    agent: AgentSettings,
    files: AgentFiles,
    indexes: Indexes,
    *,
    today: date | None = None,
    records_folders: bool = True,
) -> AgentComparison:
    """Return the documents whose file and index entry differ.

    `records_folders`: the folders of notes are recorded in the home.

    Without an index, or if it is damaged, all documents on disk differ. While a generation is under construction, edits
    that the answering generation lacks come first.

    Raises:
        StoreUnreadable, StoreBusy: the index could not be read.
    """
    began = time.monotonic()
    building = indexes.building(agent)
    index_look = _look(partial(indexes.indexed, agent), files, StoreCorrupt, imported=building)
    # Imports are scanned only for a new index that lacks them.
    index = index_look or _Look(compare(files, None, imported=True))
    live: _Look | None = index
    if building or index_look is None:
        live = _look(partial(indexes.answering, agent), files, OtherFormat, imported=True)
    # The missing notes of both generations: the one under construction lacks the notes of a missing folder.
    if records_folders:
        _record_folders(files, index.comparison.missing_notes | (live or index).comparison.missing_notes)
    edited = {key for key in (live or index).lacking if key not in index.comparison.left_out}
    stats = (live or index).comparison.scan.documents | index.comparison.scan.documents

    day = today or date.today()  # the day of the notes' names, which are local
    documents = sorted(
        {*index.lacking, *edited},
        # Edits come before documents of a generation under construction.
        key=lambda key: (key not in edited, priority(key, today=day, stat=stats.get(key))),
    )
    indexed = (live or index).comparison.known
    new_bytes = sum(stats[key].size for key in edited if key in stats and key not in indexed)
    is_large = len(edited) > LIVE_DOCUMENTS or ((not indexed or new_bytes > LIVE_BYTES) and indexes.asks(agent))
    urgent = 0 if is_large else len(edited)
    vanished = sum(key not in stats for key in documents)
    changed = sum(key in stats and key in index.comparison.known for key in documents)
    return AgentComparison(
        agent.id,
        documents[:urgent],
        documents[urgent:],
        vectors_pending=index.vectors_pending,
        building=building,
        on_disk=index.comparison.scan.count,
        new=len(documents) - changed - vanished,
        changed=changed,
        vanished=vanished,
        problems=index.comparison.scan.problems,
        seconds=time.monotonic() - began,
    )


def reconcile(
    agent: AgentSettings, files: AgentFiles, indexes: Indexes, queue: JobQueue, *, today: date | None = None
) -> AgentComparison:
    """Compare, and enqueue the differences. Raises as `compare_agent` and `AgentComparison.enqueue` do."""
    comparison = compare_agent(agent, files, indexes, today=today)
    comparison.enqueue(queue)
    return comparison
