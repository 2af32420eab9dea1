"""Bring documents into the index: read, chunk, keep what is unchanged, embed what is missing, commit.

Everything here may be repeated at any time: the source is read as it is now, the commit is refused when
somebody else committed the document meanwhile, and what was paid for is in the cache.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import structlog

from memory.agent_files import AgentFiles, DocumentGone, DocumentRefused, DocumentUnreadable
from memory.cutting import cut_document
from memory.diffing import CutChunk, difference
from memory.embedding.supply import EmbeddingSupply
from memory.embedding.tickets import Ticket
from memory.fingerprint import NO_VECTORS, Fingerprint, embedding_of, wanted_fingerprint
from memory.generation_writing import GenerationWriter
from memory.store.errors import StoreBusy, StoreFull
from memory.store.reader import Vector
from memory.store.writer import DocumentDelete, DocumentWrite, NewChunk, Refusal, Store, WriteOutcome
from schemas.documents import DocumentKey, FileStat, Lane
from schemas.errors import RecalldError, Transient
from schemas.settings import AgentSettings

log = structlog.get_logger(__name__)

#: A document waits this many seconds for its vectors; then its text and keywords are committed without.
VECTOR_PATIENCE_SECONDS = 2.0

#: New chunks in one transaction.
MAX_CHUNKS_PER_COMMIT = 500

#: Documents in one transaction.
MAX_DOCUMENTS_PER_COMMIT = 128

#: Groups of documents whose vectors are under way while the next ones are read.
GROUPS_IN_FLIGHT = 3

#: Fewer texts of a backfill are no matter for the provider's Batch API, but asked for at once.
MANY_FOR_JOBS = 20

#: Times a document is read again because somebody else committed it meanwhile.
_MAX_CONFLICTS = 5


@dataclass(slots=True)
class IndexReport:
    """What an indexing run did, in documents and chunks.

    `again` says why some documents were passed over and must be looked at again, None when none were.
    """

    documents: int = 0
    unchanged: int = 0
    deleted: int = 0
    failed: int = 0
    added: int = 0
    removed: int = 0
    vectors_missing: int = 0
    again: Transient | None = None


@dataclass(frozen=True, slots=True)
class _Plan:
    """How one document differs from one store."""

    write: DocumentWrite
    added: tuple[CutChunk, ...]


@dataclass(slots=True)
class _Group:
    """Documents that are committed together."""

    plans: list[_Plan] = field(default_factory=list)
    deletes: list[DocumentDelete] = field(default_factory=list)
    touched: dict[DocumentKey, FileStat] = field(default_factory=dict)
    hashes: dict[DocumentKey, str] = field(default_factory=dict)
    done: list[DocumentKey] = field(default_factory=list)
    chunks: int = 0
    vectors: dict[str, Vector | Refusal] = field(default_factory=dict)
    ticket: Ticket | None = None
    deadline: float = 0.0

    def __len__(self) -> int:
        return len(self.plans) + len(self.deletes) + len(self.touched) + len(self.done)


class Indexer:
    """Writes one agent's index. Several may run, in threads and in processes.

    Every method raises what `memory.store.errors` names when the store cannot be written; what was
    committed before stays.
    """

    def __init__(
        self,
        agent: AgentSettings,
        *,
        files: AgentFiles,
        generations: GenerationWriter,
        supply: EmbeddingSupply,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.agent = agent
        self.files = files
        self.generations = generations
        self.supply = supply
        self._clock = clock

    def fingerprint(self) -> Fingerprint:
        """The identity that this indexer writes."""
        return wanted_fingerprint(self.agent, self.supply.choice, self.generations)

    def index(
        self,
        keys: Iterable[DocumentKey],
        *,
        lane: Lane,
        on_done: Callable[[Sequence[DocumentKey]], None],
    ) -> IndexReport:
        """Bring documents up to date. `on_done` is told of documents once what they hold is committed.

        `keys` is taken one by one as there is time for them.
        """
        identity = self.fingerprint()
        target, *others = self.generations.open_writer(identity.digest, identity.description)
        report = IndexReport()
        flight: deque[_Group] = deque()
        group = _Group()
        for key in keys:
            self._add_safely(target, group, key, report)
            if group.chunks >= MAX_CHUNKS_PER_COMMIT or len(group) >= MAX_DOCUMENTS_PER_COMMIT:
                flight.append(self._request_vectors(target, group, lane))
                group = _Group()
            while len(flight) > GROUPS_IN_FLIGHT or (flight and flight[0].ticket is None):
                self._commit(target, others, flight.popleft(), lane, report, on_done)
        if len(group):
            flight.append(self._request_vectors(target, group, lane))
        while flight:
            self._commit(target, others, flight.popleft(), lane, report, on_done)
        return report

    def target(self) -> Store:
        """The generation that this indexer brings up to date."""
        identity = self.fingerprint()
        return self.generations.open_writer(identity.digest, identity.description)[0]

    def held_vectors(self, hashes: Sequence[str]) -> dict[str, Vector]:
        """Vectors that this agent's generations hold already, for texts that the cache does not know."""
        found: dict[str, Vector] = {}
        if not hashes:
            return found
        for store in self.generations.open_stores():
            if embedding_of(store.meta("identity")) == self.supply.identity:
                left = [digest for digest in hashes if digest not in found]
                found |= store.vectors_by_hash(left)
        return found

    # The steps of a document -----------------------------------------------------------------------

    def _add_safely(self, store: Store, group: _Group, key: DocumentKey, report: IndexReport) -> None:
        """`_add`, with every failure of this one document kept to this one document."""
        try:
            self._add(store, group, key, report)
        except Transient as error:
            if isinstance(error, StoreBusy | StoreFull):
                raise
            report.again = error
        except RecalldError:
            raise
        except Exception as error:  # noqa: BLE001 - recorded as the document's dead letter
            self._fail(store, key, error)
            report.failed += 1
            group.done.append(key)

    def _fail(self, store: Store, key: DocumentKey, error: Exception) -> None:
        """Record a failure that nobody foresaw as the document's dead letter."""
        log.exception("document_failed", agent=self.agent.id, path=key.path)
        reason = f"unexpected {type(error).__name__}: {error}"
        store.add_dead_letter(key, reason=reason, error_class=type(error).__name__)

    def _add(self, store: Store, group: _Group, key: DocumentKey, report: IndexReport) -> None:
        """Read one document and put what is to be done about it into the group."""
        # The revision is taken before the source is read: whoever commits in between wins, and we read again.
        revision = store.revision(key)
        known = store.file(key)
        try:
            stat = self.files.stat(key)
            if stat is None:
                self._add_delete(group, key, revision, report)
                return
            if known is not None and known.stat == stat:
                group.done.append(key)
                report.unchanged += 1
                return
            source = self.files.read(key)
        except DocumentGone:
            self._add_delete(group, key, revision, report)
            return
        except (DocumentRefused, DocumentUnreadable) as error:
            store.add_dead_letter(key, reason=error.reason, error_class=type(error).__name__)
            log.warning("document_failed", agent=self.agent.id, path=key.path, reason=error.reason)
            report.failed += 1
            group.done.append(key)
            return
        if known is not None and known.content_hash == source.content_hash and known.notes == source.notes:
            group.touched[key] = source.stat
            group.hashes[key] = source.content_hash
            report.unchanged += 1
            return
        cut = cut_document(source.text, self.agent.chunking, self.supply.choice.provider)
        delta = difference(store.chunks_of(key), cut)
        write = DocumentWrite(
            key=key,
            expected_revision=revision,
            stat=source.stat,
            content_hash=source.content_hash,
            moved=delta.moved,
            removed=delta.removed,
            notes=source.notes,
        )
        group.plans.append(_Plan(write, delta.added))
        group.chunks += len(delta.added)

    def _add_delete(self, group: _Group, key: DocumentKey, revision: int, report: IndexReport) -> None:
        if revision > 0 and self.files.root_is_there(key):
            group.deletes.append(DocumentDelete(key, revision))
            report.deleted += 1
        else:
            group.done.append(key)

    def _request_vectors(self, store: Store, group: _Group, lane: Lane) -> _Group:
        """Find the group's vectors or ask for them, unless that would take too long."""
        group.deadline = self._clock() + VECTOR_PATIENCE_SECONDS
        if not self.supply.available:
            return group
        texts = {chunk.text_hash: chunk.text for plan in group.plans for chunk in plan.added}
        group.vectors.update(self.supply.lookup(list(texts)))
        missing = [digest for digest in texts if digest not in group.vectors]
        group.vectors.update(self.held_vectors(missing))
        missing = [digest for digest in missing if digest not in group.vectors]
        if (
            missing
            and not self._left_to_jobs(len(missing), lane)
            and self.supply.estimate_seconds(len(missing), lane=lane) <= VECTOR_PATIENCE_SECONDS
        ):
            group.ticket = self.supply.request(
                {digest: texts[digest] for digest in missing},
                lane=lane,
                agent=self.agent.id,
                dimensions=dimensions_of(store),
            )
        return group

    def _left_to_jobs(self, count: int, lane: Lane) -> bool:
        """Whether so many texts are the provider's Batch API's: those of a backfill, where it is wanted and there."""
        provider = self.supply.choice.provider
        return (
            lane is Lane.BACKFILL
            and count >= MANY_FOR_JOBS
            and self.agent.remote.batch.enabled
            and self.supply.cache is not None
            and provider is not None
            and provider.batch_api() is not None
        )

    def _commit(
        self,
        target: Store,
        others: Sequence[Store],
        group: _Group,
        lane: Lane,
        report: IndexReport,
        on_done: Callable[[Sequence[DocumentKey]], None],
    ) -> None:
        if group.ticket is not None:
            group.ticket.wait(max(0.0, group.deadline - self._clock()))
            group.ticket.cancel()
            group.vectors.update(group.ticket.results())
        # A document larger than a transaction should be gets its keywords now and its vectors in slices.
        changes = [
            _finished(plan, group.vectors if len(plan.added) <= MAX_CHUNKS_PER_COMMIT else {}, self.supply.identity)
            for plan in group.plans
        ]
        if group.touched:
            target.touch(group.touched, content_hashes=group.hashes)
        conflicts: list[DocumentKey] = []
        for change, outcome in self._write(target, [*changes, *group.deletes]):
            if outcome is WriteOutcome.CONFLICT:
                conflicts.append(change.key)
                continue
            group.done.append(change.key)
            if outcome is None:
                report.failed += 1
                continue
            if isinstance(change, DocumentWrite):
                report.documents += 1
                report.added += len(change.added)
                report.removed += len(change.removed)
                report.vectors_missing += sum(chunk.vector is None and chunk.refused is None for chunk in change.added)
        group.done.extend(group.touched)
        for store in others:
            self._mirror(store, group.done)
        on_done(group.done)
        if conflicts:
            self._index_again(target, others, conflicts, lane, report, on_done)

    def _write(
        self, store: Store, changes: Sequence[DocumentWrite | DocumentDelete]
    ) -> list[tuple[DocumentWrite | DocumentDelete, WriteOutcome | None]]:
        """Commit changes together; one by one when they do not go in together, None for one that cannot go in."""
        if not changes:
            return []
        try:
            return list(zip(changes, store.write(changes), strict=True))
        except RecalldError:
            raise
        except Exception as error:  # noqa: BLE001 - recorded as the document's dead letter
            if len(changes) == 1:
                self._fail(store, changes[0].key, error)
                return [(changes[0], None)]
            return [result for change in changes for result in self._write(store, [change])]

    def _index_again(
        self,
        target: Store,
        others: Sequence[Store],
        keys: Sequence[DocumentKey],
        lane: Lane,
        report: IndexReport,
        on_done: Callable[[Sequence[DocumentKey]], None],
        *,
        attempt: int = 1,
    ) -> None:
        if attempt > _MAX_CONFLICTS:
            raise Transient(f"{keys[0].path} is committed by somebody else again and again", retry_after=1.0)
        group = _Group()
        for key in keys:
            self._add_safely(target, group, key, report)
        self._commit(target, others, self._request_vectors(target, group, lane), lane, report, on_done)

    def _mirror(self, store: Store, keys: Sequence[DocumentKey]) -> None:
        """Bring changed documents into the generation that still answers, as far as it can hold them."""
        group = _Group()
        for key in keys:
            self._add(store, group, key, IndexReport())
        vectors: dict[str, Vector | Refusal] = {}
        if embedding_of(store.meta("identity")) == self.supply.identity:
            hashes = [chunk.text_hash for plan in group.plans for chunk in plan.added]
            vectors |= self.held_vectors(hashes)
        if group.touched:
            store.touch(group.touched, content_hashes=group.hashes)
        store.write([*(_finished(plan, vectors, self.supply.identity) for plan in group.plans), *group.deletes])


def _finished(plan: _Plan, vectors: dict[str, Vector | Refusal], identity: str) -> DocumentWrite:
    """The plan's write with its new chunks and what is known of their vectors."""
    added = []
    for chunk in plan.added:
        value = vectors.get(chunk.text_hash) if identity != NO_VECTORS else None
        added.append(
            NewChunk(
                ordinal=chunk.ordinal,
                start_line=chunk.start_line,
                end_line=chunk.end_line,
                text=chunk.text,
                text_hash=chunk.text_hash,
                vector=None if isinstance(value, Refusal) else value,
                refused=value.reason if isinstance(value, Refusal) else None,
            )
        )
    return replace(plan.write, added=tuple(added))


def dimensions_of(store: Store) -> int | None:
    """How wide the vectors of an index are; None while it has none."""
    dimensions = store.meta("dimensions")
    return int(dimensions) if dimensions else None
