"""Look into an agent's index for status: counts, dead letters, both sides of search, integrity."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import partial

from memory.documents.agent_files import AgentFiles, Scan
from memory.documents.comparison import Difference, difference
from memory.documents.scan import KnownFiles
from memory.embedding.selection import NO_VECTORS, ProviderChoice
from memory.index.fingerprint import fingerprint
from memory.index.generations import Generations, begun_at
from memory.store.errors import CheckUnfinished
from memory.store.reader import DeadLetterRow, Flaw, IndexCounts, IndexedFile, StoreReader
from schemas.documents import MEMORY_SOURCE, SESSIONS_SOURCE
from schemas.errors import RecalldError
from schemas.ports import PendingReader
from schemas.settings import AgentSettings, Settings
from schemas.status import Availability, BuildState, DeadLetter, DeepFindings, DiskState, IndexState, SourceCount

#: Notes of documents that are listed; the rest is counted.
_MAX_NOTES = 50

#: Note of a document whose dead letter was dropped.
_LEFT_OUT = "left out, for its dead letter was dropped; it is read again when it changes, or by `recalld dead retry`"

Lease = Callable[[], AbstractContextManager[StoreReader | None]]


@dataclass(frozen=True, slots=True)
class StatusSources:
    """Sources of an agent's status.

    `lease` opens the answering generation. With `queue_expected`, a queue that does not answer is a trouble. `choice`
    is the provider of the settings, `queries` the provider that embeds queries now (None: the same one).
    `provider_failure` is the reason why queries skip it now.
    """

    files: AgentFiles
    generations: Generations
    lease: Lease
    pending: PendingReader
    queue_expected: bool
    choice: ProviderChoice
    queries: ProviderChoice | None = None
    provider_failure: str | None = None


@dataclass(frozen=True, slots=True)
class IndexLook:
    """Findings of a look. `integrity` is None unless it was asked for, and its check ended.

    `trouble` is the reason why the index cannot be read. `scan` is of the disk, and `disk` compares it with the index.
    """

    state: IndexState
    scan: Scan
    disk: DiskState
    vector_search: Availability
    text_search: Availability
    dead_letters: tuple[DeadLetter, ...] = ()
    notes: tuple[str, ...] = ()
    integrity: tuple[Flaw, ...] | None = None
    trouble: str | None = None


def look_into_index(
    settings: Settings, agent: AgentSettings, sources: StatusSources, *, watched: bool, now: float, deep: bool
) -> IndexLook:
    """Look into the answering index and compare it with the disk, which is looked at last.

    A document that is indexed in between looks up to date. `watched`: producers follow the files.
    """
    counted = partial(Difference.disk_state, sessions=agent.sync.sessions, now=now, watched=watched)
    trouble: RecalldError | None = None
    try:
        with sources.lease() as reader:
            if reader is not None:
                return _look(settings, agent, sources, reader, counted, deep=deep)
    except RecalldError as error:
        trouble = error
    found = difference(sources.files, None)
    either = Availability(available=trouble is None, reason=None if trouble is None else "the index cannot be read")
    flaws = () if trouble is None else (Flaw(trouble),)
    return IndexLook(
        state=_no_index(sources),
        scan=found.scan,
        disk=counted(found),
        vector_search=either,
        text_search=either,
        integrity=flaws if deep else None,
        trouble=None if trouble is None else str(trouble),
    )


def _no_index(sources: StatusSources) -> IndexState:
    try:
        return IndexState(generation=sources.generations.current(), building=sources.generations.next())
    except RecalldError:
        return IndexState()  # the pointers cannot be read: that is the trouble to tell


def _look(
    settings: Settings,
    agent: AgentSettings,
    sources: StatusSources,
    reader: StoreReader,
    counted: Callable[[Difference], DiskState],
    *,
    deep: bool,
) -> IndexLook:
    counts = reader.counts()
    provider = sources.choice.provider
    wanted = fingerprint(agent, provider.identity if provider is not None else NO_VECTORS)
    noted: list[IndexedFile] = []
    known = KnownFiles(_telling(reader.files(), noted))
    dead_letters = tuple(map(dead_letter, reader.dead_letters()))
    state = IndexState(
        **asdict(counts),
        source_counts=tuple(_source_counts(reader)),
        generation=sources.generations.current(),
        building=sources.generations.next(),
        identity=reader.meta("identity"),
        # A provider that cannot be had leaves the index as it is: its identity is not known, so it is not wrong.
        identity_matches=sources.choice.error is not None or reader.meta("fingerprint") == wanted.digest,
    )
    integrity = unfinished = None
    if deep:
        try:
            integrity = tuple(reader.check())
        except CheckUnfinished as error:
            unfinished = str(error)
    text_search = _text_search(reader)
    found = difference(sources.files, reader, known=known)
    failed = {(letter.source, letter.path) for letter in dead_letters}
    dropped = sorted(key.path for key in found.left_out if (key.source, key.path) not in failed)
    return IndexLook(
        state=state,
        scan=found.scan,
        disk=counted(found),
        vector_search=_vector_search(settings, sources),
        text_search=text_search,
        dead_letters=dead_letters,
        notes=tuple(_notes(state, noted, dropped, unfinished)),
        integrity=integrity,
    )


def _notes(
    state: IndexState, noted: Iterable[IndexedFile], dropped: Iterable[str], unfinished: str | None
) -> Iterator[str]:
    """Yield remarks on documents, of which many are only counted, and on the index."""
    remarks = [f"{file.key.path}: {note}" for file in sorted(noted, key=lambda file: file.key) for note in file.notes]
    remarks = [*(f"{path}: {_LEFT_OUT}" for path in dropped), *remarks]
    yield from remarks[:_MAX_NOTES]
    if len(remarks) > _MAX_NOTES:
        yield f"... and {len(remarks) - _MAX_NOTES} more"
    if unfinished is not None:
        yield unfinished
    if state.vectors_refused:
        yield f"{state.vectors_refused} chunks were refused by the provider: found by keywords only"
    if not state.identity_matches and state.building is not None:
        yield "a new generation is being built for changed settings; the old one answers meanwhile"


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


def deep_findings(sources: StatusSources, integrity: Sequence[Flaw] | None) -> DeepFindings | None:
    """Return the counts of a deep look; None without one."""
    if integrity is None:
        return None
    unused, damaged = sources.generations.leftovers()
    orphans = sum(flaw.rows for flaw in integrity)
    return DeepFindings(orphan_rows=orphans, unused_files=len(unused), damaged_files=len(damaged))


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
