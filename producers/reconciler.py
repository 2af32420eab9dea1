"""Comparison of an agent's files with its index, by stat only, and the schedule of the comparisons.

A comparison queues every document that differs, also those whose events were lost. Workers read a document only when
its size, times or inode differ from the index.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import date

from memory.documents.agent_files import AgentFiles, Scan
from memory.documents.comparison import forgotten, left_out, with_emptied
from memory.documents.roots import archived_path, priority
from memory.documents.scan import KnownFiles
from memory.store.errors import OtherVersion, StoreCorrupt
from memory.store.reader import StoreReader
from producers.dispatcher import mark_in_calls
from schemas.conditions import Condition
from schemas.documents import DocumentKey, Lane
from schemas.errors import RecalldError
from schemas.ports import JobQueue
from schemas.settings import AgentSettings

#: Seconds after which a comparison that failed is tried again: doubled from the first to the second.
COMPARISON_RETRY_SECONDS = (1.0, 30.0)

#: Documents that differ at most to count as edits; more of them wait in the backfill queue. Documents that only a
#: generation under construction lacks wait there, too: the live generation answers with them.
LIVE_DOCUMENTS = 20


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
        """Remove and return the agent that is due for longest and the reason; None if no agent is due."""
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
        pause = min(COMPARISON_RETRY_SECONDS[0] * 2.0 ** (failures - 1), COMPARISON_RETRY_SECONDS[1])
        self._plan(agent, now + pause, "retry")
        return pause

    def _plan(self, agent: str, at: float, reason: str) -> None:
        with self._lock:
            self._plans[agent] = min(self._plans.get(agent, (at, reason)), (at, reason), key=lambda plan: plan[0])


@dataclass(frozen=True, slots=True)
class ReconcileReport:
    """Result of a comparison.

    `on_disk` counts documents, `new`, `changed` and `vanished` the marked ones. `problems` are conditions of the files.
    """

    agent: str
    on_disk: int
    new: int
    changed: int
    vanished: int
    problems: tuple[Condition, ...]
    seconds: float

    @property
    def marked(self) -> int:
        """Number of queued documents."""
        return self.new + self.changed + self.vanished


class _Index:
    """Contents of an index when a comparison began. Its reader is opened for each look, and closed right after.

    `known` is None without an index, and where it is unreadable for one of the reasons in `unless`. `failed` have dead
    letters, and a user left `out` some.
    """

    def __init__(
        self, opened: Callable[[], StoreReader | None], files: AgentFiles, unless: type[RecalldError] = StoreCorrupt
    ) -> None:
        self._opened = opened
        self._files = files
        self._unless = (StoreCorrupt, unless)
        self.known: KnownFiles | None = None
        self.vectors_pending = 0
        self.failed: list[DocumentKey] = []
        self.out: set[DocumentKey] = set()
        try:
            self._look(self._count)
        except self._unless:
            self.known = None

    def _count(self, reader: StoreReader) -> list[DocumentKey]:
        self.known = KnownFiles(reader.files())
        self.failed = [letter.key for letter in reader.dead_letters()]
        self.vectors_pending = reader.counts().vectors_pending
        self.out = left_out(reader, self._files)
        return []

    def absent(self) -> list[DocumentKey]:
        """Return the documents that a scan did not find."""
        known = self.known
        return self._read(lambda reader: known.absent(reader.files())) if known is not None and known.absentees else []

    def gone(self, absent: Sequence[DocumentKey], scan: Scan) -> list[DocumentKey]:
        """Return the absent documents that the index must forget."""
        gone = [key for key in absent if not key.is_transcript and not _is_hidden(self._files, key, scan)]
        if transcripts := [key for key in absent if key.is_transcript]:
            gone += self._read(lambda reader: forgotten(self._files, transcripts, scan, reader))
        return gone

    def _read(self, look: Callable[[StoreReader], list[DocumentKey]]) -> list[DocumentKey]:
        """Return the result of a later look; nothing if the index cannot be read any more."""
        try:
            return self._look(look)
        except (StoreCorrupt, OtherVersion):
            return []

    def _look(self, look: Callable[[StoreReader], list[DocumentKey]]) -> list[DocumentKey]:
        reader = self._opened()
        if reader is None:
            return []
        with closing(reader):
            return look(reader)


def reconcile(
    agent: AgentSettings,
    files: AgentFiles,
    indexed: Callable[[], StoreReader | None],
    queue: JobQueue,
    *,
    answering: Callable[[], StoreReader | None] = lambda: None,
    building: Callable[[], bool] = lambda: False,
    today: date | None = None,
) -> ReconcileReport:
    """Queue every document whose file and index entry differ, the most important ones first.

    `indexed` opens the generation that the files must agree with; without one, or if it is damaged, everything on disk
    is queued. `building` returns True while a generation is under construction: its completion is requested, since it
    may be whole now. `answering` opens the live generation; where it is another one, the edits that it lacks come
    first. Readers are closed here.

    Raises:
        BrokerUnavailable: a part was not queued; reconcile again later.
        StoreUnreadable, StoreBusy: the index could not be read.
    """
    began = time.monotonic()
    complete = building()
    index = _Index(indexed, files)
    anew = complete or index.known is None
    live = _Index(answering, files, unless=OtherVersion) if anew else index
    remembered = index.known if index.known is not None else KnownFiles()
    is_built = anew and live.known is not None
    # Imports are read again only for a new index that lacks them.
    scan = files.scan(imported=anew, but=None if is_built else remembered)
    differing = list(scan.documents)
    edited: dict[DocumentKey, None] = {}
    if is_built and live.known is not None:
        differing = [key for key, stat in scan.documents.items() if remembered.differs(key, stat)]
        edited = {key: None for key, stat in scan.documents.items() if live.known.differs(key, stat)}
    absent = index.absent()
    visible = live.absent() if is_built else []
    scan = with_emptied(scan, files, {*absent, *visible})
    # Only their dead letters are left.
    lost = [
        key for key in index.failed if not (key in scan.documents or key in remembered or _is_hidden(files, key, scan))
    ]
    # A session may continue in an archive that is not indexed yet: its job comes after the archive's.
    archived = {archived_path(key.path) for key in differing if key.is_transcript}
    left = [key for key in absent if key.is_transcript and key.path in archived]
    lacking = [*(key for key in differing if key not in index.out), *index.gone(absent, scan), *left, *lost]
    edited = {key: None for key in edited if key not in index.out}
    edited |= dict.fromkeys(live.gone(visible, scan) if is_built else lacking)

    day = today or date.today()  # the day of the notes' names, which are local
    marks = sorted(
        {*lacking, *edited},
        # Edits come before documents of a generation under construction.
        key=lambda key: (key not in edited, priority(key, today=day, stat=scan.documents.get(key))),
    )
    urgent = len(edited) if len(edited) <= LIVE_DOCUMENTS else 0
    mark_in_calls(queue, agent.id, marks[:urgent], lane=Lane.LIVE)
    mark_in_calls(queue, agent.id, marks[urgent:], lane=Lane.BACKFILL)
    # The jobs of the marked documents request vectors only for their own chunks.
    if index.vectors_pending:
        queue.request_vectors(agent.id)
    if complete:
        queue.request_completion(agent.id)
    vanished = [key for key in marks if key not in scan.documents]
    changed = sum(key in scan.documents and key in remembered for key in marks)
    return ReconcileReport(
        agent=agent.id,
        on_disk=scan.count,
        new=len(marks) - changed - len(vanished),
        changed=changed,
        vanished=len(vanished),
        problems=scan.problems,
        seconds=time.monotonic() - began,
    )


def _is_hidden(files: AgentFiles, key: DocumentKey, scan: Scan) -> bool:
    """Return True if the scan could not look where the note may be."""
    return not scan.complete and scan.hides(files.path_of(key))
