"""Look into an agent's index for status: counts, dead letters, both sides of search, integrity."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from memory.documents.agent_files import AgentFiles
from memory.documents.comparison import Comparison, compare
from memory.documents.scan import KnownFiles
from memory.index.generations import Generations
from memory.store.errors import CheckUnfinished
from memory.store.reader import Flaw, IndexedFile, StoreReader
from memory.transcripts.folding import UnknownLines, cut_messages, cut_sentence
from schemas.documents import MEMORY_SOURCE, SESSIONS_SOURCE, DocumentKey
from schemas.errors import RecalldError
from schemas.ports import PendingReader
from schemas.status import (
    Availability,
    BuildState,
    DeadLetter,
    DeepFindings,
    IndexCounts,
    IndexState,
    SourceCount,
)

#: Notes of documents that are listed; the rest is counted.
_MAX_NOTES = 50

#: Note of a document whose dead letter was dropped.
_LEFT_OUT = "left out, for its dead letter was dropped; it is read again when it changes, or by `recalld dead retry`"

#: Reason why neither side of an unreadable index can be searched.
UNREADABLE = "the index cannot be read"

Lease = Callable[[], AbstractContextManager[StoreReader | None]]


@dataclass(frozen=True, slots=True)
class StatusSources:
    """Sources of an agent's status.

    `lease` opens the answering generation. With `queue_expected`, a queue that does not answer is a trouble.
    `provider_failure` is the reason why queries skip the provider now. Of a machine that sends its documents to a
    fleet, `sent_to` is the fleet's address, and `lease` opens the ledger of sent documents.
    """

    files: AgentFiles
    generations: Generations
    lease: Lease
    pending: PendingReader
    queue_expected: bool
    provider_failure: str | None = None
    sent_to: str | None = None


@dataclass(frozen=True, slots=True)
class IndexLook:
    """Findings of a look. `integrity` is None unless it was asked for, and its check ended.

    `trouble` is the reason why the index cannot be read. `comparison` is that of the disk with the index. `sentences`:
    see `StoreReader.sentence_counts`.
    """

    state: IndexState
    comparison: Comparison
    text_search: Availability
    dead_letters: tuple[DeadLetter, ...] = ()
    notes: tuple[str, ...] = ()
    integrity: tuple[Flaw, ...] | None = None
    trouble: str | None = None
    sentences: tuple[int, int] = (0, 0)


def look_into_index(sources: StatusSources, *, fingerprint: str, deep: bool) -> IndexLook:
    """Look into the answering index and compare it with the disk, which is looked at last.

    A document that is indexed in between looks up to date. `fingerprint` is that of an index that needs no rebuild.
    """
    trouble: RecalldError | None = None
    state = IndexState()
    try:
        state = IndexState(generation=sources.generations.current(), building=sources.generations.next())
        with sources.lease() as reader:
            if reader is not None:
                return _look(sources, reader, state, fingerprint=fingerprint, deep=deep)
    except RecalldError as error:
        trouble = error
    return IndexLook(
        state=state.model_copy(update={"sent_to": sources.sent_to}),
        comparison=compare(sources.files, None),
        text_search=Availability(available=trouble is None, reason=None if trouble is None else UNREADABLE),
        integrity=(*([Flaw(trouble)] if trouble is not None else []),) if deep else None,
        trouble=None if trouble is None else str(trouble),
    )


def _look(sources: StatusSources, reader: StoreReader, state: IndexState, *, fingerprint: str, deep: bool) -> IndexLook:
    chunks = {source: reader.chunks_by_path(source) for source in (MEMORY_SOURCE, SESSIONS_SOURCE)}
    state = IndexState(
        **dict(reader.counts()),
        source_counts=tuple(
            SourceCount(source=source, files=len(of_paths), chunks=sum(of_paths.values()))
            for source, of_paths in chunks.items()
        ),
        unread_scripts=reader.unread_scripts(),
        generation=state.generation,
        building=state.building,
        identity=reader.meta("identity"),
        identity_matches=sources.sent_to is not None or reader.meta("fingerprint") == fingerprint,
        sent_to=sources.sent_to,
    )
    notes, integrity = list(_notes(state)), None
    if deep:
        try:
            integrity = tuple(reader.check())
        except CheckUnfinished as error:
            notes.append(str(error))
    dead_letters = tuple(reader.dead_letters())
    remarks, unread = list[str](), list[DocumentKey]()
    comparison = compare(sources.files, reader, known=KnownFiles(_with_remarks(reader.files(), remarks, unread)))
    failed = {letter.key for letter in dead_letters}
    dropped = sorted(key.path for key in comparison.left_out if key not in failed)
    remarks = [*(f"{path}: {_LEFT_OUT}" for path in dropped), *sorted(remarks)]
    if len(remarks) > _MAX_NOTES:
        remarks[_MAX_NOTES:] = [f"... and {len(remarks) - _MAX_NOTES} more"]
    return IndexLook(
        state=state.model_copy(update={"unread": len(unread)}),
        comparison=comparison,
        text_search=Availability(available=reader.text_reason is None, reason=reader.text_reason),
        dead_letters=dead_letters,
        notes=(*remarks, *notes),
        integrity=integrity,
        sentences=reader.sentence_counts(),
    )


def _notes(state: IndexState) -> Iterator[str]:
    """Yield remarks on the index."""
    if state.vectors_refused:
        yield f"{state.vectors_refused} chunks were refused by the provider: found by keywords only"
    if not state.identity_matches and state.building is not None:
        yield "a new generation is being built for changed settings; the old one answers meanwhile"


def _with_remarks(files: Iterable[IndexedFile], remarks: list[str], unread: list[DocumentKey]) -> Iterator[IndexedFile]:
    """Yield the same files, and add the remarks on them to `remarks`; on unknown lines by writer, on cut messages one.

    Files of no known format are added to `unread`.
    """
    skipped: dict[str, UnknownLines] = {}
    cut = Counter[str]()
    for file in files:
        for note in file.notes:
            unknown, (messages, characters) = UnknownLines.of(note), cut_messages(note)
            if messages:
                cut.update(messages=messages, characters=characters)
            elif unknown is None or not unknown.writer:
                remarks.append(f"{file.key.path}: {unknown or note}")
                unread += [] if unknown is None else [file.key]
            else:
                counted = skipped.get(unknown.writer)
                skipped[unknown.writer] = counted + unknown if counted else unknown
        yield file
    remarks += filter(None, [*map(str, skipped.values()), cut_sentence(cut["messages"], cut["characters"])])


def deep_findings(sources: StatusSources, integrity: Sequence[Flaw] | None) -> DeepFindings | None:
    """Return the counts of a deep look; None without one."""
    if integrity is None:
        return None
    unused, damaged = sources.generations.leftovers()
    orphans = sum(flaw.rows for flaw in integrity)
    return DeepFindings(orphan_rows=orphans, unused_files=len(unused), damaged_files=len(damaged))


def build_progress(generations: Generations, *, documents: int, rate: float) -> BuildState | None:
    """Look at the generation under construction; None when there is none.

    `documents` is the estimated number it will hold, `rate` the present number of new vectors a second (0: unknown).

    Raises:
        StoreUnreadable, StoreCorrupt: it cannot be read.
    """
    name = generations.next()
    reader = generations.open_named(name) if name is not None else None
    if name is None or reader is None:
        return None
    try:
        counts = reader.counts()
    finally:
        reader.close()
    began_at = generations.begun_at(name)
    return BuildState(
        generation=name,
        files=counts.files,
        of_files=max(documents, counts.files),
        chunks=counts.chunks,
        vectors_ready=counts.vectors_ready,
        vectors_pending=counts.vectors_pending,
        vectors_held=counts.vectors_held,
        begun_at=began_at,
        last_change_at=counts.last_commit_at or began_at,
        eta_seconds=seconds_left(counts, began_at=began_at, documents=documents, rate=rate),
    )


def seconds_left(counts: IndexCounts, *, began_at: float | None, documents: int, rate: float) -> float | None:
    """Return the seconds until it may answer; None without an estimate.

    Remaining documents take as long as the indexed ones did, from the beginning to the last commit (a pause counts as
    work). Then the waiting vectors come in at `rate`.
    """
    seconds = 0.0
    remaining = max(0, documents - counts.files)
    if remaining:
        if not counts.files or counts.last_commit_at is None or began_at is None:
            return None
        seconds += max(0.0, counts.last_commit_at - began_at) * remaining / counts.files
    if counts.vectors_pending:
        if rate <= 0:
            return None
        seconds += counts.vectors_pending / rate
    return round(seconds, 1)
