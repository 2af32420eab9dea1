"""One turn of embedding an agent's chunks without vectors, and the completion of a generation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import structlog

from memory.embedding.consent import Consents
from memory.index import completion as completing
from memory.index.completion import MOST, fill_sentences, fill_vectors
from memory.index.estimate import RATE
from memory.store.errors import StoreAway, StoreBusy
from memory.store.writer import Refusal, Store
from schemas.agents import Scope
from schemas.conditions import OF_PROVIDER, ConditionCode
from schemas.documents import Lane
from schemas.errors import Transient
from schemas.metrics import COMMITS, VECTORS
from workers.background import Background
from workers.batch_jobs import BatchTurn, batch_jobs
from workers.failure_policy import UNABLE_PAUSE_SECONDS, Postponed, ProviderFailed
from workers.index_job import ALONE_PAUSE_SECONDS
from workers.middleware import got_on
from workers.queue.quarantine import ALONE_FROM, MOST_CRASHES, Quarantine, reason
from workers.runtime import Runtime

#: Conditions of an agent that end when its chunks are embedded.
_OF_AGENT = (ConditionCode.VECTORS_UNWRITABLE, ConditionCode.PROVIDER_MISSING, ConditionCode.BUDGET_SPENT)

log = structlog.get_logger(__name__)

#: Seconds of a turn in which each text is embedded alone: long enough to reach the culprit.
ALONE_TURN_SECONDS = 300.0


def embed_turn(runtime: Runtime, agent: str, job: str) -> None:
    """Embed an agent's pending chunks, for one turn; then sentences, as long as nothing of any agent waits.

    Held chunks that may be paid for by now become pending first.

    Raises:
        Postponed: there is nothing to do now, and there will be.
        ProviderFailed, Terminal: the provider failed.
    """
    try:
        runtime.settle_address(agent)
    except Transient as error:
        raise ProviderFailed(error) from error
    with runtime.indexer(agent) as indexer:
        target = indexer.target()
        if indexer.supply.provider is not None and target.vector_reason is not None:
            # Embedding them would cost money for nothing.
            code = ConditionCode.VECTORS_UNWRITABLE
            raise Postponed(target.vector_reason, retry_in=UNABLE_PAUSE_SECONDS, condition=code)
        lacking = indexer.supply.error
        if lacking is not None and (target.pending_hashes(1) or target.held_hashes(1)):
            # A worker with the key may take the message next time.
            raise Postponed(lacking, retry_in=UNABLE_PAUSE_SECONDS, condition=ConditionCode.PROVIDER_MISSING)
        halt, waiting = runtime.halt(agent), runtime.queue.pending_set.waiting(agent)
        if halt is None and runtime.owns() and target.held_hashes(1):
            consents, is_drained = Consents.of(runtime.settings, agent), not (waiting.backfill or waiting.running)
            completing.release_held(indexer, consents, drained=is_drained)
        budget = runtime.spent_budget(agent)
        if budget is not None and target.pending_hashes(1):
            tenant = Scope.of(agent).tenant
            runtime.health.report(ConditionCode.BUDGET_SPENT, agent=agent, tenant=tenant, tokens=budget)
            raise Postponed("the tokens of today are used up", retry_in=UNABLE_PAUSE_SECONDS)
        runtime.health.resolve(*_OF_AGENT, agent=agent)
        provider, batcher = indexer.supply.provider, indexer.supply.batcher
        full = (batcher.full_request or MOST) if batcher is not None and provider and provider.account else 0
        is_too_little = len(target.pending_hashes(full)) < full and not indexer.overdue if full else indexer.supply.slow
        waiting = runtime.queue.pending_set.waiting(agent)
        if is_too_little and halt != "paused" and waiting.backfill + (waiting.running if full else 0):
            # A local model would compete with keywords for the processor, and a request would not be full yet.
            raise Postponed("keywords first", retry_in=0.5)
        awaited = f"the vectors of {indexer.supply.name}"

        def joined(count: int, seconds: float) -> None:
            got_on(waits_for=awaited)
            runtime.health.counters.add(COMMITS, 1, "vectors")
            runtime.health.counters.add(VECTORS, count)
            runtime.health.record_vectors(agent, count=count, seconds=seconds)
            runtime.health.counters.flush()

        with batch_jobs(runtime, indexer) as jobs:
            if halt == "paused":
                turn = BatchTurn(frozenset(indexer.overdue))
            else:
                turn = jobs.note() if jobs is not None else BatchTurn()
        got_on(waits_for=awaited)
        with (
            Background(runtime.courtesy) as pace,
            CrashSafeRounds(runtime.queue.pending_set.quarantine, agent, job) as rounds,
        ):
            rounds.refuse(target)
            report = fill_vectors(
                indexer,
                seconds=runtime.timing.turn if rounds.most > 1 else ALONE_TURN_SECONDS,
                only=turn.inline,
                stopping=runtime.stopping.is_set,
                # The answer that uses the budget up is paid for, and is waited for.
                is_enough=lambda: runtime.spent_budget(agent) is not None or runtime.halt(agent) != halt,
                most=rounds.most,
                on_round=rounds.begins,
                on_ready=joined,
                is_gentle=pace.rest,
            )
        if report.ready and batcher is not None and (rate := batcher.measured_rate) is not None:
            target.set_meta({RATE: f"{rate:.1f}"})
        building = indexer.generations.next() is not None and not target.held_hashes(1)
        queue, rests = runtime.queue, report.error is None and not report.left and turn.inline is None and not building
        sentences_left = rests and fill_sentences(
            indexer,
            seconds=runtime.timing.turn,
            stopping=lambda: runtime.stopping.is_set() or not queue.is_idle(),
        )
    if report.error is not None:
        if isinstance(report.error, Transient) and not isinstance(report.error, StoreAway | StoreBusy):
            raise ProviderFailed(report.error)
        raise report.error
    if report.ready or not report.left:
        runtime.health.replace(OF_PROVIDER, (), agent=agent)
    if report.left:
        runtime.queue.request_vectors(agent)
    elif turn.again_seconds is not None:
        raise Postponed("a batch job is under way", retry_in=turn.again_seconds)
    elif building and turn.inline is None:
        runtime.queue.request_completion(agent)
    elif sentences_left:
        raise Postponed("texts and vectors come first", retry_in=0.5 if queue.is_idle() else 5.0)


def poll_batches(runtime: Runtime, agent: str) -> None:
    """Take an agent's batch jobs one step further. Raises Postponed while there are any."""
    with runtime.indexer(agent) as indexer, batch_jobs(runtime, indexer) as jobs:
        seconds = jobs.step() if jobs is not None else None
    if seconds is not None:
        raise Postponed("a batch job is under way", retry_in=seconds)


def complete_generation(runtime: Runtime, agent: str) -> None:
    """Check the generation under construction; put it in place, or mark the documents that it lacks."""
    with runtime.indexer(agent) as indexer:
        if indexer.generations.next() is None:
            return
        if completing.complete_generation(indexer):
            return
        lacking = completing.lacking_documents(indexer)
        hidden = completing.hidden_notes(indexer)
        pending = runtime.queue.pending_set.pending(agent)
    if lacking:
        if not pending.documents:
            runtime.queue.mark_changed(agent, lacking, lane=Lane.BACKFILL)
    elif not hidden:
        # It waits while notes cannot be read: housekeeping asks again, and status shows the condition.
        runtime.queue.request_vectors(agent)


class CrashSafeRounds:
    """Rounds of embedding of one job, which counts in advance that it crashes.

    After `ALONE_FROM` crashes each text is embedded alone. The text that was alone at the last of `MOST_CRASHES` is
    refused.
    """

    def __init__(self, quarantine: Quarantine, agent: str, job: str) -> None:
        self._quarantine = quarantine
        self._agent = agent
        self._job = job
        self._crashes = quarantine.begin_job(agent, job)
        self.most = MOST if self._crashes < ALONE_FROM else 1
        if self.most == 1 and not quarantine.begin_trial(job):
            quarantine.set_crashes(agent, job, self._crashes)
            raise Postponed("another job tries a document alone", retry_in=ALONE_PAUSE_SECONDS)

    def begins(self, text_hashes: Sequence[str]) -> None:
        """Record a text before it is embedded alone."""
        if self.most == 1:
            self._quarantine.begin_text(self._agent, self._job, text_hashes[0])

    def refuse(self, store: Store) -> None:
        """Refuse the text that crashed this job, embedded alone, if it crashed too often."""
        if self._crashes < MOST_CRASHES:
            return
        refusal = Refusal(reason(self._crashes, of_text=True))
        last_text = self._quarantine.last_text(self._agent, self._job)
        for chunk, text_hash in store.pending_hashes(1, among=[last_text]).items():
            store.write_vectors({chunk: (text_hash, refusal)})
            log.error("text_given_up", agent=self._agent, chunk=chunk, crashes=self._crashes)
        self._quarantine.set_crashes(self._agent, self._job, 1)
        self.most = MOST

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Forget the crashes: the job ends without one."""
        self._quarantine.survived(self._agent, self._job)
        if self._crashes >= ALONE_FROM:
            self._quarantine.end_trial(self._job)
