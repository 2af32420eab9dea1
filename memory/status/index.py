"""Look into an agent's index for status: counts, dead letters, both sides of search, integrity."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

from memory.documents.agent_files import AgentFiles, Scan
from memory.documents.comparison import forgotten, left_out
from memory.documents.scan import KnownFiles
from memory.embedding.selection import NO_VECTORS, ProviderChoice
from memory.index.fingerprint import fingerprint
from memory.index.generations import Generations, begun_at
from memory.store.errors import CheckUnfinished
from memory.store.reader import DeadLetterRow, Flaw, IndexCounts, IndexedFile, StoreReader
from schemas.documents import MEMORY_SOURCE, SESSIONS_SOURCE, DocumentKey
from schemas.errors import RecalldError
from schemas.ports import PendingReader
from schemas.settings import AgentSettings, Settings
from schemas.status import Availability, BuildState, DeadLetter, DeepFindings, IndexState, SourceCount

Lease = Callable[[], AbstractContextManager[StoreReader | None]]


@dataclass(frozen=True, slots=True)
class StatusSources:
    """Sources of an agent's status.

    `lease` opens the answering generation. `pending` is None when this process cannot ask the queue. With
    `queue_expected`, a queue that does not answer is a trouble. `choice` is the provider of the settings, `queries` the
    provider that embeds queries now (None: the same one). `provider_failure` is the reason why queries skip it now.
    """

    files: AgentFiles
    generations: Generations
    lease: Lease
    pending: PendingReader | None
    queue_expected: bool
    choice: ProviderChoice
    queries: ProviderChoice | None = None
    provider_failure: str | None = None


@dataclass(frozen=True, slots=True)
class IndexLook:
    """Findings of a look. `noted` are the documents with remarks. `integrity` is None unless it was asked for.

    `trouble` is the reason why the index cannot be read, `unfinished` why its check did not end. `left_out` are
    documents whose dead letters the user dropped.
    """

    state: IndexState
    known: KnownFiles
    noted: tuple[IndexedFile, ...]
    dead_letters: tuple[DeadLetter, ...]
    vector_search: Availability
    text_search: Availability
    integrity: tuple[Flaw, ...] | None
    trouble: str | None
    unfinished: str | None = None
    left_out: frozenset[DocumentKey] = frozenset()


def look_into_index(settings: Settings, agent: AgentSettings, sources: StatusSources, *, deep: bool) -> IndexLook:
    broken = Availability(available=False, reason="the index cannot be read")
    try:
        with sources.lease() as reader:
            if reader is None:
                nothing = Availability(available=True)
                return IndexLook(_no_index(sources), KnownFiles(), (), (), nothing, nothing, () if deep else None, None)
            return _look(settings, agent, sources, reader, deep=deep)
    except RecalldError as error:
        return IndexLook(
            _no_index(sources), KnownFiles(), (), (), broken, broken, (Flaw(error),) if deep else None, str(error)
        )


def _no_index(sources: StatusSources) -> IndexState:
    try:
        return IndexState(generation=sources.generations.current(), building=sources.generations.next())
    except RecalldError:
        return IndexState()  # the pointers cannot be read: that is the trouble to tell


def with_build(state: IndexState, sources: StatusSources, scan: Scan, *, rate: float) -> IndexState:
    if state.building is None:
        return state
    try:
        # Imported transcripts are not in the scan, but in the generation that answers.
        documents = max(scan.count, state.files)
        return state.model_copy(update={"build": build_progress(sources.generations, documents=documents, rate=rate)})
    except RecalldError:
        return state  # a worker sets it aside and begins anew


def _look(
    settings: Settings, agent: AgentSettings, sources: StatusSources, reader: StoreReader, *, deep: bool
) -> IndexLook:
    counts = reader.counts()
    provider = sources.choice.provider
    wanted = fingerprint(agent, provider.identity if provider is not None else NO_VECTORS)
    noted: list[IndexedFile] = []
    known = KnownFiles(_telling(reader.files(), noted))
    dead_letters = tuple(map(dead_letter, reader.dead_letters()))
    state = IndexState(
        files=counts.files,
        chunks=counts.chunks,
        source_counts=tuple(_source_counts(reader)),
        vectors_ready=counts.vectors_ready,
        vectors_pending=counts.vectors_pending,
        vectors_refused=counts.vectors_refused,
        generation=sources.generations.current(),
        building=sources.generations.next(),
        identity=reader.meta("identity"),
        # A provider that cannot be had leaves the index as it is: its identity is not known, so it is not wrong.
        identity_matches=sources.choice.error is not None or reader.meta("fingerprint") == wanted.digest,
        last_commit_at=counts.last_commit_at,
        disk_bytes=counts.disk_bytes,
    )
    integrity = unfinished = None
    if deep:
        try:
            integrity = tuple(reader.check())
        except CheckUnfinished as error:
            unfinished = str(error)
    return IndexLook(
        state=state,
        known=known,
        noted=tuple(noted),
        dead_letters=dead_letters,
        vector_search=_vector_search(settings, sources),
        text_search=_text_search(reader),
        integrity=integrity,
        trouble=None,
        unfinished=unfinished,
        left_out=frozenset(left_out(reader, sources.files)),
    )


def dead_letter(row: DeadLetterRow) -> DeadLetter:
    """Return a document that could not be indexed, as answers show it."""
    return DeadLetter(
        source=row.key.source,
        path=row.key.path,
        reason=row.reason,
        error_class=row.error_class,
        attempts=row.attempts,
        first_at=row.first_at,
        last_at=row.last_at,
    )


def absent_documents(sources: StatusSources, known: KnownFiles) -> list[DocumentKey]:
    """Return documents that the index knew and the disk does not have; none when the index cannot be read any more."""
    if not known.absentees:
        return []
    try:
        with sources.lease() as reader:
            return known.absent(reader.files()) if reader is not None else []
    except RecalldError:
        return []


def forgotten_transcripts(sources: StatusSources, absent: Iterable[DocumentKey], scan: Scan) -> list[DocumentKey]:
    """Return the absent transcripts that are to be forgotten; none when the index cannot be read any more."""
    transcripts = [key for key in absent if key.is_transcript]
    if not transcripts:
        return []
    try:
        with sources.lease() as reader:
            return forgotten(sources.files, transcripts, scan, reader) if reader is not None else []
    except RecalldError:
        return []


def _telling(files: Iterable[IndexedFile], noted: list[IndexedFile]) -> Iterator[IndexedFile]:
    """Yield the same files, and put those with remarks down."""
    for file in files:
        if file.notes:
            noted.append(file)
        yield file


def _source_counts(reader: StoreReader) -> Iterator[SourceCount]:
    for source in (MEMORY_SOURCE, SESSIONS_SOURCE):
        chunks = reader.chunks_by_path(source)
        yield SourceCount(source=source, files=len(chunks), chunks=sum(chunks.values()))


def _vector_search(settings: Settings, sources: StatusSources) -> Availability:
    choice = sources.choice
    if not settings.store.vector.enabled:
        return Availability(available=False, reason="store.vector.enabled = false")
    if choice.provider is None:
        return Availability(available=False, reason=choice.error or choice.reason or "provider = none: keywords only")
    if sources.provider_failure is not None:
        return Availability(available=False, reason=sources.provider_failure)
    return Availability(available=True)


def _text_search(reader: StoreReader) -> Availability:
    try:
        reader.search_text("a", 1)
    except RecalldError as error:
        return Availability(available=False, reason=str(error))
    return Availability(available=True)


def deep_findings(sources: StatusSources, index: IndexLook) -> DeepFindings | None:
    """Return the counts of a deep look; None without one."""
    if index.integrity is None:
        return None
    unused, damaged = sources.generations.leftovers()
    return DeepFindings(
        orphan_rows=sum(flaw.rows for flaw in index.integrity),
        unused_files=len(unused),
        damaged_files=len(damaged),
    )


def build_progress(generations: Generations, *, documents: int, rate: float) -> BuildState | None:
    """Look at the generation under construction; None when there is none.

    `documents` is how many it will hold, about; `rate` how many vectors a second come in at the moment, 0 when that is
    not known.

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
    began = begun_at(name)
    return BuildState(
        generation=name,
        files=counts.files,
        of_files=max(documents, counts.files),
        chunks=counts.chunks,
        vectors_ready=counts.vectors_ready,
        vectors_pending=counts.vectors_pending,
        begun_at=began,
        last_change_at=counts.last_commit_at or began,
        eta_seconds=seconds_left(counts, began=began, documents=documents, rate=rate),
    )


def seconds_left(counts: IndexCounts, *, began: float | None, documents: int, rate: float) -> float | None:
    """Return the seconds until it may answer; None without an estimate.

    The documents that are left take as long as those that are there did, from the beginning to the last commit (a pause
    in between counts as work); then the vectors that wait come in at their rate.
    """
    seconds = 0.0
    left = max(0, documents - counts.files)
    if left:
        if not counts.files or counts.last_commit_at is None or began is None:
            return None
        seconds += max(0.0, counts.last_commit_at - began) * left / counts.files
    if counts.vectors_pending:
        if rate <= 0:
            return None
        seconds += counts.vectors_pending / rate
    return round(seconds, 1)
