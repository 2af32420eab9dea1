"""Bring documents into the index: read, chunk, keep what is unchanged, embed what is missing, commit.

Everything here may be repeated at any time: the source is read as it is now, the commit is refused when
somebody else committed the document meanwhile, and what was paid for is in the cache.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass

from memory.documents.agent_files import AgentFiles
from memory.embedding.batch_jobs.file_batches import batch_api_of
from memory.embedding.supply import EmbeddingSupply
from memory.index.commit_batch import MAX_CHUNKS_PER_COMMIT, Group, IndexReport
from memory.index.fingerprint import Fingerprint, embedding_of, wanted_fingerprint
from memory.index.generation_writer import GenerationWriter
from memory.index.planner import Planner, record_failure
from memory.store.errors import KeywordsUnavailable, NoRoom, SettingsOlder, Superseded
from memory.store.reader import Vector
from memory.store.writer import DocumentDelete, DocumentWrite, Refusal, Store, TranscriptWrite, WriteOutcome
from memory.telemetry import tracing
from schemas.documents import DocumentKey, Lane
from schemas.errors import RecalldError, Transient
from schemas.settings import AgentSettings

#: A document waits this many seconds for its vectors; then its text and keywords are committed without.
VECTOR_PATIENCE_SECONDS = 2.0

#: Groups of documents whose vectors are under way while the next ones are read.
GROUPS_IN_FLIGHT = 3

#: Fewer texts of a backfill are no matter for the provider's Batch API, but asked for at once.
MANY_FOR_JOBS = 20

#: Times a document is read again because somebody else committed it meanwhile.
_MAX_CONFLICTS = 5


@dataclass(frozen=True, slots=True)
class _Run:
    """What one call of `Indexer.index` works with."""

    target: Store
    others: Sequence[Store]
    lane: Lane
    on_done: Callable[[Sequence[DocumentKey]], None]
    out_of_time: Callable[[], bool]
    report: IndexReport


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
        out_of_time: Callable[[], bool] = lambda: False,
    ) -> IndexReport:
        """Bring documents up to date. `on_done` is told of documents once what they hold is committed.

        `keys` is taken one by one as there is time for them. A transcript that is `out_of_time` before its end is
        left where it is, and counted in the report: the next run goes on there.

        Raises:
            NoRoom: a new generation is needed and does not fit on the disk. The documents are in the one that answers,
                as far as it can hold them; nobody was told that they are done.
            Superseded: somebody began or gave up a generation meanwhile. Nobody was told of documents that the one
                which must be right now may lack.
            SettingsOlder: the generations are left to other processes, which have yet to look at the documents.
        """
        identity = self.fingerprint()
        try:
            target, *others = self.generations.open_writer(identity.digest, identity.description)
        except NoRoom:
            # What changes reaches the generation that answers all the same.
            for answering in self.generations.open_existing()[-1:]:
                self._mirror(answering, keys)
            raise
        except SettingsOlder:
            # So it does here, where it is this process's own kind: another one must hold what its own settings make.
            for answering in self.generations.open_existing()[-1:]:
                if answering.meta("fingerprint") == identity.digest:
                    self._mirror(answering, keys)
            raise
        if target.text_reason is not None:
            # Before anything is read and embedded that could not be written.
            raise KeywordsUnavailable(f"nothing is indexed by this process: {target.text_reason}")
        run = _Run(target, others, lane, on_done, out_of_time, IndexReport())
        self._run(run, keys, attempt=0)
        return run.report

    def give_up(self, key: DocumentKey, *, reason: str, error_class: str, attempts: int) -> None:
        """Say in every generation that is written that a document could not be indexed, without looking at it."""
        identity = self.fingerprint()
        for store in self.generations.open_writer(identity.digest, identity.description):
            store.add_dead_letter(key, reason=reason, error_class=error_class, attempts=attempts)

    def has_letter(self, key: DocumentKey, *, error_class: str) -> bool:
        """Whether the index that is brought up to date says so of a document."""
        return any(letter.key == key and letter.error_class == error_class for letter in self.target().dead_letters())

    def target(self) -> Store:
        """The generation that this indexer brings up to date."""
        identity = self.fingerprint()
        return self.generations.open_writer(identity.digest, identity.description)[0]

    def held_vectors(self, hashes: Sequence[str], *, identity: str | None = None) -> dict[str, Vector]:
        """Vectors that this agent's generations hold already, for texts that the cache does not know.

        `identity`: of which embedding; this process's provider's if nothing is said.
        """
        found: dict[str, Vector] = {}
        if not hashes:
            return found
        for store in self.generations.open_stores():
            if embedding_of(store.meta("identity")) == (identity or self.supply.identity):
                left = [digest for digest in hashes if digest not in found]
                found |= store.vectors_by_hash(left)
        return found

    # The steps of a document -----------------------------------------------------------------------

    def _run(self, run: _Run, keys: Iterable[DocumentKey], *, attempt: int) -> None:
        """Plan, request vectors and commit, each for another group at the same time."""
        planner = Planner(self.agent, self.files, self.supply)
        flight: deque[Group] = deque()

        def send() -> None:
            flight.append(self._request_vectors(run.target, planner.group, run.lane))
            planner.group = Group()

        for key in keys:
            with closing(planner.plan(run.target, key, run.report)) as parts:
                for _ in parts:
                    if planner.group.full or planner.commits_first:
                        send()
                    in_flight = 0 if planner.commits_first else GROUPS_IN_FLIGHT
                    while len(flight) > in_flight or (flight and flight[0].ticket is None):
                        self._commit(run, flight.popleft(), attempt)
                    if planner.resumable and run.out_of_time():
                        run.report.left += 1
                        break
            if run.report.left:
                break
        if len(planner.group):
            send()
        while flight:
            self._commit(run, flight.popleft(), attempt)

    def _request_vectors(self, store: Store, group: Group, lane: Lane) -> Group:
        """Find the group's vectors or ask for them, unless that would take too long."""
        group.deadline = self._clock() + VECTOR_PATIENCE_SECONDS
        if store.vector_reason is not None:
            return group
        texts = {chunk.text_hash: chunk.text for plan in group.plans for chunk in plan.added}
        if not self.supply.available:
            # What is there already costs nothing, and takes no key.
            group.vectors.update(self.held_vectors(list(texts), identity=embedding_of(store.meta("identity"))))
            return group
        paid = self.supply.lookup(list(texts))
        group.vectors.update(paid)
        missing = [digest for digest in texts if digest not in group.vectors]
        group.vectors.update(self.held_vectors(missing))
        missing = [digest for digest in missing if digest not in group.vectors]
        self.supply.count_looks(hits=len(paid), misses=len(missing))
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
            and batch_api_of(provider) is not None
        )

    def _commit(self, run: _Run, group: Group, attempt: int) -> None:
        if group.ticket is not None:
            group.ticket.wait(max(0.0, group.deadline - self._clock()))
            group.ticket.cancel()
            group.vectors.update(group.ticket.results())
        # A document larger than a transaction should be gets its keywords now and its vectors in slices.
        identity = embedding_of(run.target.meta("identity"))
        changes = [
            plan.finished(group.vectors if len(plan.added) <= MAX_CHUNKS_PER_COMMIT else {}, identity)
            for plan in group.plans
        ]
        partial = {id(change) for plan, change in zip(group.plans, changes, strict=True) if not plan.completes}
        if group.touched:
            run.target.touch(group.touched, content_hashes=group.hashes)
        conflicts: dict[DocumentKey, None] = {}
        for change, outcome in self._write(run.target, [*changes, *group.deletes], run.report):
            if outcome is WriteOutcome.CONFLICT:
                conflicts[change.key] = None
                continue
            if id(change) not in partial:
                group.done.append(change.key)
            if outcome is None:
                run.report.failed += 1
            else:
                _count(run.report, change, complete=id(change) not in partial)
        done = [key for key in dict.fromkeys([*group.done, *group.touched]) if key not in conflicts]
        for store in run.others:
            self._mirror(store, done)
        if not self.generations.is_first(run.target):
            raise Superseded("another generation is to be written since; these documents are looked at again")
        run.on_done(done)
        if conflicts:
            if attempt >= _MAX_CONFLICTS:
                path = next(iter(conflicts)).path
                raise Transient(f"{path} is committed by somebody else again and again", retry_after=1.0)
            self._run(run, conflicts, attempt=attempt + 1)

    def _write(
        self,
        store: Store,
        changes: Sequence[DocumentWrite | DocumentDelete | TranscriptWrite],
        report: IndexReport,
    ) -> list[tuple[DocumentWrite | DocumentDelete | TranscriptWrite, WriteOutcome | None]]:
        """Commit changes together; one by one when they do not go in together, None for one that cannot go in."""
        if not changes:
            return []
        try:
            with tracing.span("commit", agent=self.agent.id, documents=len(changes)):
                outcomes: list[tuple[DocumentWrite | DocumentDelete | TranscriptWrite, WriteOutcome | None]] = list(
                    zip(changes, store.write(changes), strict=True)
                )
        except RecalldError:
            raise
        except Exception as error:  # noqa: BLE001 - recorded as the document's dead letter
            if len(changes) == 1:
                record_failure(store, self.agent.id, changes[0].key, error)
                return [(changes[0], None)]
            return [result for change in changes for result in self._write(store, [change], report)]
        report.commits += any(outcome is not WriteOutcome.CONFLICT for _, outcome in outcomes)
        return outcomes

    def _mirror(self, store: Store, keys: Iterable[DocumentKey]) -> None:
        """Bring changed documents into the generation that still answers, as far as it can hold them."""
        planner = Planner(self.agent, self.files, self.supply)
        for key in keys:
            for _ in planner.plan(store, key, IndexReport()):
                if planner.group.full or planner.commits_first:
                    self._write_as_it_is(store, planner)
        self._write_as_it_is(store, planner)

    def _write_as_it_is(self, store: Store, planner: Planner) -> None:
        """Write the planner's group with the vectors that are at hand."""
        group, planner.group = planner.group, Group()
        vectors: dict[str, Vector | Refusal] = {}
        identity = embedding_of(store.meta("identity"))
        vectors |= self.held_vectors(
            [chunk.text_hash for plan in group.plans for chunk in plan.added], identity=identity
        )
        if group.touched:
            store.touch(group.touched, content_hashes=group.hashes)
        store.write([*(plan.finished(vectors, identity) for plan in group.plans), *group.deletes])


def _count(report: IndexReport, change: DocumentWrite | DocumentDelete | TranscriptWrite, *, complete: bool) -> None:
    if isinstance(change, DocumentDelete):
        return
    report.documents += complete
    report.added += len(change.added)
    report.removed += len(change.removed) if isinstance(change, DocumentWrite) else 0
    report.vectors_missing += sum(chunk.vector is None and chunk.refused is None for chunk in change.added)


def dimensions_of(store: Store) -> int | None:
    """How wide the vectors of an index are; None while it has none."""
    dimensions = store.meta("dimensions")
    return int(dimensions) if dimensions else None
