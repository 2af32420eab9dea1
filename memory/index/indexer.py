"""Indexing of documents: read, chunk, keep unchanged chunks, embed the missing ones, commit.

All of it may be repeated at any time. The source is read in its present state, and a commit is refused if another
process has committed the document meanwhile. Paid vectors are in the cache.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

import structlog

from memory.chunking.chunker import text_hash
from memory.documents.agent_files import AgentFiles
from memory.documents.roots import is_utf8
from memory.embedding.selection import NO_VECTORS
from memory.embedding.supply import EmbeddingSupply
from memory.index.changes import MAX_CHUNKS_PER_COMMIT, CommitBatch, IndexReport
from memory.index.fingerprint import Fingerprint, embedding_of, fingerprint
from memory.index.generation_writer import GenerationWriter
from memory.index.planner import Planner, failure_of
from memory.store.errors import KeywordsUnavailable, NoRoom, Superseded
from memory.store.reader import Vector, VectorState
from memory.store.writer import DocumentChange, DocumentFailure, DocumentWrite, Store, Unread, WriteOutcome
from memory.telemetry import tracing
from schemas.documents import DocumentKey, Lane
from schemas.errors import RecalldError, Transient
from schemas.settings import AgentSettings

log = structlog.get_logger(__name__)

#: Seconds that a document waits for its vectors; then its text and keywords are committed alone.
VECTOR_PATIENCE_SECONDS = 2.0

#: Batches that wait for vectors while the next documents are read.
BATCHES_IN_FLIGHT = 3

#: Times that a document is read again because another process committed it meanwhile.
_MAX_CONFLICTS = 5


@dataclass(frozen=True, slots=True)
class _Run:
    """Values that all steps of one run share. Without a `lane`, the run buys nothing and mirrors another one.

    If it `holds`, new texts that are not paid for wait for a consent.
    """

    target: Store
    mirrors: Sequence[Store] = ()
    lane: Lane | None = None
    holds: bool = False
    on_done: Callable[[Sequence[DocumentKey]], None] = lambda _keys: None
    out_of_time: Callable[[], bool] = lambda: False
    report: IndexReport = field(default_factory=IndexReport)


class Indexer:
    """Writer of one agent's index. Several may run, in threads and in processes.

    While it `may_buy` no vectors, texts without one are committed for later. If it `holds`, old texts that are not paid
    for wait for a consent.

    Every method raises the errors of `memory.store.errors` if the store cannot be written; earlier commits stay.
    """

    def __init__(
        self,
        agent: AgentSettings,
        *,
        files: AgentFiles,
        generations: GenerationWriter,
        supply: EmbeddingSupply,
        holds: bool = False,
        may_buy: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.agent = agent
        self._may_buy = may_buy
        self.files = files
        self.generations = generations
        self.supply = supply
        self.holds = holds and supply.identity != NO_VECTORS
        #: Hashes of live texts that were committed without their vectors: these come before those of old texts.
        self.overdue: set[str] = set()
        self._clock = clock

    def close(self) -> None:
        """Close the generations."""
        self.generations.close()

    def fingerprint(self) -> Fingerprint:
        """Return the identity that this indexer writes."""
        return fingerprint(self.agent, self.supply.identity)

    def index(
        self,
        keys: Iterable[DocumentKey],
        *,
        lane: Lane,
        on_done: Callable[[Sequence[DocumentKey]], None],
        out_of_time: Callable[[], bool] = lambda: False,
    ) -> IndexReport:
        """Bring documents up to date. `on_done` receives documents after their contents are committed.

        `keys` are taken one by one while there is time. A transcript that is `out_of_time` before its end counts as
        `unfinished` in the report; the next run continues there.

        Raises:
            NoRoom: a new generation does not fit on the disk. CURRENT has the documents as far as it can hold them;
                `on_done` was not called for them.
            Superseded: the owner began or dropped a generation meanwhile. `on_done` was not called for documents that
                the new target may lack.
            NotOwner: the documents are left to the owner of the indexes.
        """
        try:
            target, *mirrors = self.generations.open_writer(self.fingerprint())
        except NoRoom:
            # Changes reach the answering generation nevertheless.
            for answering in self.generations.open_existing()[-1:]:
                self._run(_Run(answering), keys, attempt=0)
            raise
        if target.text_reason is not None:
            # Stop before anything is paid for that cannot be written.
            raise KeywordsUnavailable(f"nothing is indexed by this process: {target.text_reason}")
        run = _Run(target, mirrors, lane, self.holds and lane is Lane.BACKFILL, on_done, out_of_time)
        self._run(run, keys, attempt=0)
        return run.report

    def give_up(self, key: DocumentKey, *, reason: str, error_class: str, attempts: int) -> None:
        """Record in every written generation that a document could not be indexed, without reading it."""
        for store in self.generations.open_writer(self.fingerprint()):
            store.add_dead_letter(key, reason=reason, error_class=error_class, attempts=attempts)

    def has_letter(self, key: DocumentKey, *, error_class: str) -> bool:
        """Return True if the target holds a dead letter of this class for the document."""
        return any(letter.key == key and letter.error_class == error_class for letter in self.target().dead_letters())

    def target(self) -> Store:
        """Return the generation that this indexer brings up to date."""
        return self.generations.open_writer(self.fingerprint())[0]

    def look_up(self, keys: Collection[DocumentKey]) -> None:
        """Read the facts of documents at once, where that is cheaper than one by one. Raises as `open_existing`."""
        # Of another name a database knows nothing; the plan of its document says so.
        storable_keys = [key for key in keys if is_utf8(key.path) and "\0" not in key.path]
        self.files.look_up(storable_keys)
        for store in self.generations.open_existing():
            store.look_up(storable_keys)

    def held_vectors(self, hashes: Sequence[str], *, identity: str | None = None) -> dict[str, Vector]:
        """Return vectors from this agent's generations, for texts that are missing in the cache.

        `identity` is the embedding's identity, by default that of the index.
        """
        vectors: dict[str, Vector] = {}
        if not hashes:
            return vectors
        for store in self.generations.open_stores():
            if embedding_of(store.meta("identity")) == (identity or self.supply.identity):
                missing = [digest for digest in hashes if digest not in vectors]
                vectors |= store.vectors_by_hash(missing)
        return vectors

    def paid_vectors(self, hashes: Sequence[str]) -> dict[str, Vector]:
        """Return vectors that were paid for already: those of the cache, and of texts that were evicted from it."""
        vectors = self.supply.lookup(hashes)
        return vectors | self.held_vectors([text_hash for text_hash in hashes if text_hash not in vectors])

    def unread(self, texts: Mapping[str, str], store: Store) -> dict[str, Unread]:
        """Return the scripts of texts that the model of a generation's vectors does not read, by text hash."""
        provider = self.supply.provider
        if provider is None or embedding_of(store.meta("identity")) != provider.identity:
            return {}
        scripts = {digest: provider.unread_script(text) for digest, text in texts.items()}
        return {digest: Unread(script) for digest, script in scripts.items() if script is not None}

    # The steps of a document -----------------------------------------------------------------------

    def _run(self, run: _Run, keys: Iterable[DocumentKey], *, attempt: int) -> None:
        """Plan, request vectors and commit, each for another batch at the same time."""
        planner = Planner(run.target, self.agent, self.files, self.supply.provider, run.report)
        flight: deque[CommitBatch] = deque()

        def send() -> None:
            flight.append(self._request_vectors(run, planner.batch))
            planner.batch = CommitBatch()

        for key in keys:
            with closing(planner.plan(key)) as parts:
                for _ in parts:
                    if planner.batch.full or planner.commits_first:
                        send()
                    in_flight = 0 if planner.commits_first else BATCHES_IN_FLIGHT
                    while len(flight) > in_flight or (flight and flight[0].ticket is None):
                        self._commit(run, flight.popleft(), attempt)
                    if planner.resumable and run.out_of_time():
                        run.report.unfinished += 1
                        break
            if run.report.unfinished:
                break
        if len(planner.batch):
            send()
        while flight:
            self._commit(run, flight.popleft(), attempt)

    def _request_vectors(self, run: _Run, batch: CommitBatch) -> CommitBatch:
        """Find the batch's vectors, or request them if they will come soon enough and may be paid for."""
        store, lane = run.target, run.lane
        self.generations.look_again()  # a text that was paid for a moment ago is not paid for again
        batch.deadline = self._clock() + VECTOR_PATIENCE_SECONDS
        texts = {chunk.text_hash: chunk.text for plan in batch.plans for chunk in plan.write.added}
        batch.unpaid = set(texts) if run.holds else set()
        if store.vector_reason is not None:
            return batch
        # Before any look-up: an older version embedded them, and the cache still has those vectors.
        batch.vectors |= self.unread(texts, store)
        texts = {digest: text for digest, text in texts.items() if digest not in batch.vectors}
        batcher = self.supply.batcher
        if lane is None or batcher is None:
            # Stored vectors cost nothing and need no key.
            batch.vectors.update(self.held_vectors(list(texts), identity=embedding_of(store.meta("identity"))))
            return batch
        paid = self.supply.lookup(list(texts))
        batch.vectors.update(paid)
        missing = [digest for digest in texts if digest not in batch.vectors]
        batch.vectors.update(self.held_vectors(missing))
        missing = [digest for digest in missing if digest not in batch.vectors]
        if self.supply.cache is not None:
            run.report.cache_hits += len(paid)
            run.report.cache_misses += len(missing)
        meanings = {text_hash(text): text for plan in batch.plans for text in plan.meanings}
        texts |= meanings
        missing += meanings.keys() - self.supply.lookup(list(meanings)).keys() - set(missing)
        sent = self.supply.in_batch_jobs(missing)
        batch.unpaid -= sent
        missing = [digest for digest in missing if digest not in sent]
        if (
            missing
            # Turns of embedding send old texts: they fill requests across commits.
            and (lane is Lane.LIVE or not (self.holds or (self.supply.provider and self.supply.provider.account)))
            and self._may_buy()
            and batcher.estimate_seconds(len(missing), lane=lane) <= VECTOR_PATIENCE_SECONDS
        ):
            batch.ticket = batcher.submit(
                {digest: texts[digest] for digest in missing},
                lane=lane,
                agent=self.agent.id,
                dimensions=dimensions_of(store),
            )
        return batch

    def _commit(self, run: _Run, batch: CommitBatch, attempt: int) -> None:
        if batch.ticket is not None:
            self.generations.look_again()  # no transaction stays open while it waits
            batch.ticket.wait(max(0.0, batch.deadline - self._clock()))
            batch.ticket.cancel()
            batch.vectors.update(batch.ticket.results())
        has_vectors = embedding_of(run.target.meta("identity")) != NO_VECTORS
        unpaid = dict.fromkeys(batch.unpaid - batch.vectors.keys(), VectorState.HELD)
        # A document larger than a transaction gets its keywords now and its vectors in slices.
        changes = [
            replace(plan.write, vectors=batch.vectors | unpaid)
            if has_vectors and (run.lane is None or len(plan.write.added) <= MAX_CHUNKS_PER_COMMIT)
            else replace(plan.write, vectors=unpaid if has_vectors else {})
            for plan in batch.plans
        ]
        conflicts: dict[DocumentKey, None] = {}
        for change, outcome in self._write(run.target, [*changes, *batch.other_changes], run.report):
            if outcome is WriteOutcome.CONFLICT:
                conflicts[change.key] = None
                continue
            if not isinstance(change, DocumentWrite) or change.complete:
                batch.done.append(change.key)
            if outcome is None:
                run.report.failed += 1
            elif isinstance(change, DocumentFailure):
                log.warning("document_failed", agent=self.agent.id, path=change.key.path, reason=change.reason)
            elif isinstance(change, DocumentWrite):
                run.report.documents += change.complete
                run.report.added += len(change.added)
                run.report.removed += len(change.removed)
                run.report.vectors_missing += sum(chunk.text_hash not in change.vectors for chunk in change.added)
        if run.lane is Lane.LIVE and self.supply.batcher is not None:
            texts = (chunk.text_hash for plan in batch.plans for chunk in plan.write.added)
            self.overdue.update(digest for digest in texts if digest not in batch.vectors)
        done = [key for key in dict.fromkeys(batch.done) if key not in conflicts]
        for store in run.mirrors:
            self._run(_Run(store, holds=run.holds), done, attempt=0)
        if run.lane is not None and not self.generations.is_first(run.target):
            raise Superseded("the generation to write has changed; these documents are read again")
        run.on_done(done)
        if conflicts:
            if attempt >= _MAX_CONFLICTS:
                path = next(iter(conflicts)).path
                raise Transient(f"another process keeps committing {path}", retry_after=1.0)
            self._run(run, conflicts, attempt=attempt + 1)

    def _write(
        self, store: Store, changes: Sequence[DocumentChange], report: IndexReport
    ) -> list[tuple[DocumentChange, WriteOutcome | None]]:
        """Commit changes together, or one by one if that fails. The outcome of an impossible change is None."""
        if not changes:
            return []
        try:
            with tracing.span("commit", agent=self.agent.id, documents=len(changes)):
                outcomes: list[tuple[DocumentChange, WriteOutcome | None]] = [
                    *zip(changes, store.write(changes), strict=True)
                ]
        except (RecalldError, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001 - recorded as the document's dead letter
            if len(changes) == 1:
                store.write([failure_of(self.agent.id, changes[0].key, error)])
                return [(changes[0], None)]
            return [result for change in changes for result in self._write(store, [change], report)]
        report.commits += any(outcome is not WriteOutcome.CONFLICT for _, outcome in outcomes)
        return outcomes


def dimensions_of(store: Store) -> int | None:
    """Return the width of an index's vectors, None while it has none."""
    dimensions = store.meta("dimensions")
    return int(dimensions) if dimensions else None
