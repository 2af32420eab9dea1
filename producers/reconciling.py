"""Comparing an agent's files with its index, by stat only, and queueing what differs.

Events are hints and may be lost; this is what makes up for them. A document is read only when its size, times
or inode differ from what the index remembers, and then by a worker, not here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import date

from memory.documents.agent_files import AgentFiles, Scan, priority
from memory.documents.ignored_documents import left_out
from memory.documents.known_files import KnownFiles
from memory.documents.session_roots import SESSIONS_SOURCE, archived_path
from memory.documents.unmounted_folders import with_emptied
from memory.documents.walk import MEMORY_SOURCE
from memory.store.errors import OtherVersion, StoreCorrupt
from memory.store.reader import StoreReader
from producers.dispatcher import mark_in_calls
from schemas.conditions import Condition
from schemas.documents import DocumentKey, Lane
from schemas.ports import IndexFigures, JobQueue
from schemas.settings import AgentSettings

#: Up to so many documents that differ are as good as an edit; more of them wait in the backfill queue. So do, however
#: few, those that only a generation under construction lacks: nobody misses them, the old one answers with them.
LIVE_DOCUMENTS = 20


@dataclass(frozen=True, slots=True)
class ReconcileReport:
    """What a comparison found.

    `on_disk` and `in_index` count documents (`in_index` is 0 when there is no index to compare with), `new`,
    `changed` and `vanished` those that were marked, `live` how many of them as edits, `spared` those that are absent
    and were left alone: where the disk could not be listed, and transcripts that keep their memory. `figures` count the
    index that answers, None where it cannot be read. `problems` are those of the files. Times in seconds.
    """

    agent: str
    on_disk: int
    in_index: int
    new: int
    changed: int
    vanished: int
    spared: int
    live: int
    vectors_requested: bool
    completion_requested: bool
    figures: IndexFigures | None
    problems: tuple[Condition, ...]
    seconds: float
    cpu_seconds: float

    @property
    def marked(self) -> int:
        """How many documents were queued."""
        return self.new + self.changed + self.vanished


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

    `indexed` opens the generation that the files must agree with, None when there is none (then everything on
    disk is queued). `building` says whether a generation is under construction: it may be whole now, so its
    completion is asked for. `answering` opens the generation that searches see; where it is another one, what it lacks
    was edited and comes first. Readers are closed here.

    Raises:
        BrokerUnavailable: not everything was queued; reconcile again later.
        StoreUnreadable, StoreBusy: the index could not be looked at.
    """
    began, cpu_began = time.monotonic(), time.thread_time()
    complete = building()
    remembered, failed, out, figures = _remembered(indexed, files)
    vectors_pending = figures is not None and figures.vectors_pending > 0
    anew = complete or remembered is None
    remembered = remembered or KnownFiles()
    seen = None
    if anew:
        seen, figures = _seen(answering)
    # Imports are not looked at again, unless an index comes into being that does not have them.
    scan = files.scan(imported=anew, but=remembered if seen is None else None)
    differing = list(scan.documents)
    edited: dict[DocumentKey, None] = {}
    visible: list[DocumentKey] = []
    if seen is not None:
        differing = [key for key, stat in scan.documents.items() if remembered.differs(key, stat)]
        edited = {key: None for key, stat in scan.documents.items() if seen.differs(key, stat) and key not in out}
        visible = _absent(answering, seen)
    absent = _absent(indexed, remembered)
    scan = with_emptied(scan, files, {*absent, *visible})
    # Their dead letters are all that is left of them.
    lost = [key for key in failed if not (key in scan.documents or key in remembered or _is_hidden(files, key, scan))]
    # What a session said is looked for in an archive that is yet to be read: its job comes after the archive's.
    archived = {archived_path(key.path) for key in differing if key.source == SESSIONS_SOURCE}
    left = [key for key in absent if key.source == SESSIONS_SOURCE and key.path in archived]
    lacking = [*(key for key in differing if key not in out), *_gone(indexed, files, absent, scan), *left, *lost]
    edited |= dict.fromkeys(lacking if seen is None else _gone(answering, files, visible, scan))

    day = today or date.today()  # the day of the notes' names, which are local
    marks = sorted(
        {*lacking, *edited},
        # However many edits there are: they come before what is only built.
        key=lambda key: (key not in edited, priority(key, today=day, stat=scan.documents.get(key))),
    )
    live = len(edited) if len(edited) <= LIVE_DOCUMENTS else 0
    mark_in_calls(queue, agent.id, marks[:live], lane=Lane.LIVE)
    mark_in_calls(queue, agent.id, marks[live:], lane=Lane.BACKFILL)
    # The marked documents' jobs ask for what they leave pending themselves, not for what waited before.
    if vectors_pending:
        queue.request_vectors(agent.id)
    if complete:
        queue.request_completion(agent.id)
    vanished = [key for key in marks if key not in scan.documents]
    changed = sum(key in scan.documents and key in remembered for key in marks)
    return ReconcileReport(
        agent=agent.id,
        on_disk=scan.count,
        in_index=len(remembered),
        new=len(marks) - changed - len(vanished),
        changed=changed,
        vanished=len(vanished),
        spared=len(absent) - len({*absent}.intersection(vanished)),
        live=live,
        vectors_requested=vectors_pending,
        completion_requested=complete,
        figures=figures,
        problems=scan.problems,
        seconds=time.monotonic() - began,
        cpu_seconds=time.thread_time() - cpu_began,
    )


def _gone(
    opened: Callable[[], StoreReader | None], files: AgentFiles, absent: Sequence[DocumentKey], scan: Scan
) -> list[DocumentKey]:
    """Return those of the documents absent from an index's files whose absence means that they are to be forgotten."""
    gone = [key for key in absent if key.source == MEMORY_SOURCE and not _is_hidden(files, key, scan)]
    transcripts = [key for key in absent if key.source == SESSIONS_SOURCE]
    if transcripts:
        gone += _read(opened, lambda reader: files.forgotten_transcripts(transcripts, scan, reader))
    return gone


def _is_hidden(files: AgentFiles, key: DocumentKey, scan: Scan) -> bool:
    """Whether a note may be there all the same, where the scan could not look."""
    return not scan.complete and scan.hides(files.path_of(key))


def _remembered(
    indexed: Callable[[], StoreReader | None], files: AgentFiles
) -> tuple[KnownFiles | None, Sequence[DocumentKey], set[DocumentKey], IndexFigures | None]:
    """Return what the index knows of the files, None when there is none; what failed and what a person left out because
    it did; the index's counts.

    A damaged index knows nothing: the worker that gets the marks sets it aside and builds a new one.
    """
    try:
        reader = indexed()
        if reader is None:
            return None, (), set(), None
        try:
            known = KnownFiles(reader.files())
            failed = [letter.key for letter in reader.dead_letters()]
            figures = reader.counts().figures(dead_letters=len(failed))
            return known, failed, left_out(reader, files), figures
        finally:
            reader.close()
    except StoreCorrupt:
        return None, (), set(), None


def _seen(answering: Callable[[], StoreReader | None]) -> tuple[KnownFiles | None, IndexFigures | None]:
    """Return what the generation knows that searches see, and its counts.

    Where there is none, nothing is known, and there is nothing in it. Where this version cannot read it, both are None.
    """
    try:
        reader = answering()
        if reader is None:
            return None, IndexFigures()
        try:
            figures = reader.counts().figures(dead_letters=len(reader.dead_letters()))
            return KnownFiles(reader.files()), figures
        finally:
            reader.close()
    except (StoreCorrupt, OtherVersion):
        return None, None


def _absent(opened: Callable[[], StoreReader | None], known: KnownFiles) -> list[DocumentKey]:
    """Return the names of what an index knew and the disk does not have."""
    return _read(opened, lambda reader: known.absent(reader.files())) if known.absentees else []


def _read(
    opened: Callable[[], StoreReader | None], look: Callable[[StoreReader], list[DocumentKey]]
) -> list[DocumentKey]:
    """Return what a look into an index shows; nothing when it cannot be read any more."""
    try:
        reader = opened()
        if reader is None:
            return []
        with closing(reader):
            return look(reader)
    except (StoreCorrupt, OtherVersion):
        return []
