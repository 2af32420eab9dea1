"""Wait of a run for workers: they index its queued documents while it shows the progress.

Beside a busy `recalld up` the queue is never empty. A run waits for the documents that were marked before it began.
It then waits for the vectors of the chunks that existed at that time.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import click

from memory.documents.imports import backfill_halt, keep_halt
from memory.embedding.batch_jobs.batch_ledger import BatchLedger, Stage, batch_jobs_of
from memory.embedding.consent import Consents
from memory.status.condition_texts import counted, duration, part_of, text_of, what_happened
from memory.status.vectors import held_vectors
from producers.reconciler import AgentComparison
from recalld.invocation import to_type
from recalld.runs.estimate import Spending
from recalld.runs.outcome import Outcome, Report, RunIndex
from recalld.runs.run import NO_FORECAST, Forecast, Run
from recalld.terminal_text import ProgressLine, printable_name
from recalld.up.lifecycle import keep_heaps_small, running_broker, stop_event
from recalld.up.lock import daemon_pid, has_processes
from recalld.wiring import BrokerSide, open_broker
from schemas.agents import Scope
from schemas.conditions import HOLD_UP_VECTORS, OF_PROVIDER, Condition, ConditionCode, Param
from schemas.documents import DocumentKey
from schemas.errors import UserError
from schemas.settings import Settings
from schemas.status import EndpointCondition, IndexCounts
from workers.queue.private_server import BrokerServer
from workers.queue.queue_tenancy import QueueTenancy
from workers.run import run_workers

#: Seconds between two looks at the queue: this many times as long as a look takes, and at least and at most so long.
_PAUSE_LOOKS, _LOOK_SECONDS, _LONGEST_LOOK_SECONDS = 25.0, 0.1, 1.0

#: Seconds that a command waits for a passing failure of the provider to end.
_PATIENCE_SECONDS = 30.0

#: Seconds after which a command believes workers that report that they cannot work.
_UNABLE_SECONDS = 5.0

#: Seconds of a provider's cool-down that a command waits for. A patient one waits for all of it, and as long after it.
_LONGEST_COOL_DOWN_SECONDS = 300.0

#: Conditions of workers that index nothing.
_UNABLE = frozenset({ConditionCode.KEYWORDS_UNAVAILABLE, ConditionCode.NO_SPACE, ConditionCode.SETTINGS_OLDER})


def progress(
    counts: IndexCounts,
    start: IndexCounts,
    forecast: Forecast,
    *,
    documents: int,
    of_documents: int,
    read: float,
    seconds: float,
    embedding_seconds: float,
    failed: int = 0,
) -> tuple[str, float]:
    """Return the figures of a run that began so many seconds ago, and its share between 0 and 1.

    `counts` of the indexes are those of now and at the `start`. A chunk is finished with its vector. The `read` share
    of the documents is known, and the others have as many chunks as was estimated, or else as the known ones.
    The finished chunks came within `embedding_seconds`.
    """
    unfinished, new = start.vectors_pending + start.vectors_held, max(0, counts.chunks - start.chunks)
    to_come = (forecast.chunks - unfinished if forecast.chunks else new / max(read, 0.01)) * (1 - read)
    finished = max(0, new + unfinished - counts.vectors_pending - counts.vectors_held)
    total = max(finished, new + unfinished + round(to_come))
    size = sum(forecast.sizes) / 1e6
    read_rate, rate = read * size / max(seconds, 0.1), finished / max(embedding_seconds, 0.1) or forecast.rate
    parts = [
        f"documents {documents:,}/{of_documents:,}",
        f"chunks {forecast.finished + finished:,}/{forecast.finished + total:,}",
        f"{counts.vectors_pending:,} wait for vectors (keywords work)" if counts.vectors_pending else "",
        f"{failed:,} failed" if failed else "",
        f"{read_rate:,.1f} MB/s" if read_rate and read < 1 else "",
    ]
    if rate and finished < total:
        reading_seconds = size * (1 - read) / read_rate if read_rate else 0.0
        seconds_left = max(1.0, reading_seconds, (total - finished) / rate)
        parts.append(f"{rate:,.{0 if rate >= 10 else 1}f} texts/s, about {duration(seconds_left)} left")
    share = (forecast.finished + finished) / max(forecast.finished + total, 1)
    return "  ".join(filter(None, [f"{share:.0%}", *parts])), share


def index_by_workers(run: Run, compared: Callable[[], Sequence[AgentComparison]], *, forecast: Forecast) -> Report:
    """Enqueue the differences, once workers may work, and wait; with a broker meanwhile unless one answers already.

    Raises:
        UserError: the workers are gone or refused, or workers of another home take from the queue.
    """
    stop = stop_event(supervised=False)
    with running_broker(run.settings) as server, open_broker(run.settings) as broker:
        # What workers of another home take from the queue would be missing here.
        QueueTenancy(broker.client, broker.keys, run.settings).take()
        wait = Wait(run, broker, stop, forecast, server=server)
        wait.enqueue(compared())
        return wait.finish()


class Wait:
    """Wait of one run. `stop` is set by Ctrl-C. `server` is the queue's, where another command may end it."""

    def __init__(
        self,
        run: Run,
        broker: BrokerSide,
        stop: threading.Event,
        forecast: Forecast = NO_FORECAST,
        *,
        server: BrokerServer | None = None,
    ) -> None:
        self.line = ProgressLine(partial(click.echo, err=True), terminal=sys.stderr.isatty())
        self._run = run
        self._broker = broker
        self._server = server if run.settings.broker.url is None else None
        self._stop, self._pause = stop, _LOOK_SECONDS
        self._forecast = forecast
        self._spending = Spending(broker.health, [index.agent for index in run.indexes])
        self._agents = [_AgentWait(index, broker, patient=run.patient) for index in run.indexes]
        for sentence in filter(None, (index.other_format for index in run.indexes)):
            self.line.once(f"recalld: {to_type(printable_name(sentence))}", key=sentence)
        self._most_documents = 0
        self._began_at = self._moved_at = self._embedding_since = time.monotonic()
        self._state: object = None

    def enqueue(self, comparisons: Sequence[AgentComparison]) -> None:
        """Enqueue the differences, and wait for all documents that are queued by now."""
        for comparison in comparisons:
            if backfill_halt(home := self._run.settings.home, comparison.agent) == "cancelled":
                keep_halt(home, comparison.agent, "")
            comparison.enqueue(self._broker.queue)
        for agent in self._agents:
            agent.marked_at = time.time()

    def finish(self) -> Report:
        """Wait until all is done, with workers where work is left.

        They ask no provider before the failures that this process met are over.

        Raises:
            UserError: the workers are gone, or refused.
        """
        for agent in self._agents:
            agent.ask_again()
        for failure in self._run.requests.failures:
            self._broker.health.take_step(*failure)
        self._look()
        if all(agent.is_done for agent in self._agents):
            outcomes = self._outcomes()
        else:
            with _workers(self._run.settings) as works:
                outcomes = self.until_done(works=works)
        # Workers that end write down what they used.
        outcomes = [replace(outcome, spent=self._spending.of(outcome.agent)) for outcome in outcomes]
        interrupted = self._stop.is_set()
        detached = interrupted and daemon_pid(self._run.settings.home) is not None
        return self._run.report(outcomes, interrupted=interrupted, detached=detached)

    def until_done(self, *, works: Callable[[], bool]) -> list[Outcome]:
        """Wait, show progress on standard error, and return the outcomes.

        `works` returns False when no workers are left.

        Raises:
            UserError: the workers are gone.
        """
        still_since: float | None = None
        while still_since is None and not (self._run.is_enough() or self._stop.wait(self._pause)):
            if not works():
                self.line.end()
                raise UserError("recalld up ended meanwhile; what was done is kept, run this command again to go on")
            question = self._run.question
            if question is not None and question.look():
                for agent in self._agents:
                    agent.ask_again()
            self._look()
            if self._server is not None and any(agent.is_cut_off for agent in self._agents):
                self._server.ensure()  # the command that had started it was done before this one
            # `recalld status` shows a condition for as long as it lasts.
            for condition in (condition for agent in self._agents for condition in agent.news):
                text = to_type(printable_name(text_of(condition)))
                # A patient run meets the same limit again and again.
                key = f"{condition.code} {condition.subject}" if self._run.patient else text
                self.line.once(f"recalld: {part_of(condition)}: {text}", key=key)
            if self.line.due and (question is None or question.answer is not None):
                self._show()
            if all(agent.unable or agent.is_done for agent in self._agents):
                break
            still_since = self._still_since()
        self.line.end()
        return self._outcomes(still_since)

    def _outcomes(self, still_since: float | None = None) -> list[Outcome]:
        return [agent.final_outcome(still_since) for agent in self._agents]

    def _look(self) -> None:
        began_at = time.monotonic()
        for agent in self._agents:
            agent.look()
        pause = _PAUSE_LOOKS * (time.monotonic() - began_at)
        self._pause = min(max(pause, _LOOK_SECONDS), _LONGEST_LOOK_SECONDS)
        self._most_documents = max(self._most_documents, sum(agent.documents for agent in self._agents))

    def _show(self) -> None:
        """Draw the progress and the work to come, unless there is none."""
        cool_downs = "".join(f" ({what_happened(agent.wait)})" for agent in self._agents[:1] if agent.wait is not None)
        waiting = [agent.waits_for for agent in self._agents if agent.waits_for]
        more = f" and {counted(len(waiting) - 1, 'more agent')}" if len(waiting) > 1 else ""
        counts, of_documents = _sum([agent.counts for agent in self._agents]), self._most_documents
        if not (of_documents or counts.vectors_pending or waiting):
            return
        start, now = _sum([agent.start for agent in self._agents]), time.monotonic()
        if self._run.question is not None and self._run.question.answer is False:
            counts = counts.model_copy(update={"vectors_held": 0})  # the run ends with them
        if counts.vectors_ready <= start.vectors_ready and counts.vectors_pending + counts.vectors_held:
            self._embedding_since = now
        documents, sizes = of_documents - sum(agent.documents for agent in self._agents), self._forecast.sizes
        begun_bytes = min(sum(sizes[documents : documents + 1]), self._agents[0].begun_bytes)
        figures, share = progress(
            counts,
            start,
            self._forecast,
            documents=documents,
            of_documents=of_documents,
            read=(sum(sizes[:documents]) + begun_bytes) / sum(sizes)
            if any(sizes)
            else documents / max(of_documents, 1),
            seconds=now - self._began_at,
            embedding_seconds=now - self._embedding_since,
            failed=sum(len(index.failed()) for index in self._run.indexes),
        )
        jobs = [job for agent in self._agents for job in agent.jobs]
        done, texts = sum(job.completed for job in jobs), sum(job.texts for job in jobs)
        in_jobs = f"{counted(len(jobs), 'batch job')} {done:,}/{texts:,}" if jobs else ""
        waits = f"waits for {waiting[0]}{more}{cool_downs}" if waiting else ""
        self.line.draw("  ".join(filter(None, (figures, in_jobs, waits))), share=share)

    def _still_since(self) -> float | None:
        """Return the Unix time since which nothing gets on, when that is too long; None while something may come.

        A batch job may take a day.
        """
        state = [
            (agent.documents, agent.oldest_chunk, agent.building, agent.sentences, agent.counts.vectors_held)
            for agent in self._agents
        ]
        waits_for_vectors = self._run.patient and all(
            agent.oldest_chunk and not agent.documents for agent in self._agents
        )
        if any(agent.jobs for agent in self._agents) or waits_for_vectors or state != self._state:
            self._state, self._moved_at = state, time.monotonic()
        limit = self._run.settings.workers.stalled_after_seconds
        endpoints = [agent.endpoint for agent in self._agents if agent.endpoint is not None]
        if any(endpoint.condition is EndpointCondition.COOLING_DOWN for endpoint in endpoints):
            limit = max(limit, _LONGEST_COOL_DOWN_SECONDS)
        still = time.monotonic() - self._moved_at
        return time.time() - still if still >= limit else None


class _AgentWait:
    """Wait for one agent: the state of its queue, index and provider at the last look.

    `documents` of the command are not indexed yet, and `oldest_chunk` is the first of its chunks without a vector.
    `building` names the generation under construction. `unable` is the reason why workers index nothing, `stopped`
    the reason why the provider gives no vectors soon. `jobs` are open batch jobs; `in_jobs`: the command leaves all
    missing vectors to them. `held` is the condition that texts wait for a consent.
    """

    def __init__(self, index: RunIndex, broker: BrokerSide, *, patient: bool) -> None:
        self._index = index
        self._patient = patient
        #: End of the last cool-down that the provider asked for, in Unix seconds; and the condition of a present one.
        self._cool_until = 0.0
        self.wait: Condition | None = None
        self.is_cut_off = False  # from the broker
        #: No workers have other keys than the command's.
        self._is_alone = index.settings.broker.url is None and not has_processes(index.settings.home)
        self._agent = index.agent
        self._broker = broker
        self._began_at = self.marked_at = time.time()
        self.start, self._name = index.counts(), index.name
        #: Document that is read next, or is being read, and the bytes of it that were read before.
        self._next: DocumentKey | None = None
        self._read_before = 0
        # Generation, and its last chunk when the command's documents were indexed.
        self._last_chunk: tuple[str | None, int] = ("", 0)

    def look(self) -> None:
        """Take in the present state."""
        # Before the index is counted: a document loses its mark after its commit.
        self.documents = self._documents()
        self.counts, health, provider = self._index.counts(), self._broker.health, self._index.choice.provider
        if self._index.name != self._name:
            self.start, self._name = IndexCounts(), self._index.name  # a new generation is empty
        self.endpoint = health.endpoint(provider.account, provider.model) if provider is not None else None
        self.wait, until = None, self.endpoint.until if self.endpoint is not None else None
        if self.endpoint is not None and self.endpoint.condition is EndpointCondition.COOLING_DOWN and until:
            self._cool_until = until
            if self._patient:
                self.wait = Condition(ConditionCode.PROVIDER_WAITS, self._index.choice.name, params={"until": until})
        are_to_come = self.counts.vectors_pending and not (provider is None and self._is_alone)
        self.oldest_chunk = self._oldest_chunk() if are_to_come else None
        self.building = self._index.generations.next()
        # Conditions of an earlier run may be over.
        self.conditions = health.conditions(self._agent.id, reported_since=self._began_at)
        unable = (condition for condition in self.conditions if condition.code in _UNABLE)
        self.unable = next((condition for condition in unable if self._lasted(condition) > _UNABLE_SECONDS), None)
        self.stopped = next(filter(self._holds_up, self.conditions), None)
        jobs = batch_jobs_of(self._index.settings, self._agent.id)
        self.jobs = [job for job in jobs if job.open and job.agent == self._agent.id]
        self.in_jobs = self._is_left_to_jobs()
        version = Consents.of(self._index.settings, self._agent.id).version
        may_hold, generations = self.counts.vectors_held, self._index.generations
        self.held = held_vectors(self._agent, provider, generations, version=version) if may_hold else None
        halt = backfill_halt(self._index.settings.home, self._agent.id)
        if halt is not None and self._is_halted():
            self.unable = Condition(ConditionCode.BACKFILL_HALTED, self._agent.id, params={"halt": halt})
        # A daemon goes on with them.
        waits = self.documents or self.oldest_chunk or self.building or daemon_pid(self._index.settings.home)
        self.sentences = 0 if waits else self._index.lacking_sentences()

    def _is_halted(self) -> bool:
        """Return True if nothing of the command gets on while its backfill is halted."""
        waiting = self._broker.queue.pending_set.waiting(self._agent.id)
        is_released = self.counts.vectors_held and self.held is None  # by a consent
        return not (waiting.live or waiting.running) and bool(waiting.backfill or self.oldest_chunk or is_released)

    @property
    def is_done(self) -> bool:
        """Return True if no documents, and neither vectors, sentences nor a generation are to come."""
        is_built = self.building is None and not self.counts.vectors_held
        is_whole = (is_built or self.held is not None) and self.oldest_chunk is None and not self.sentences
        return not self.documents and (is_whole or self.stopped is not None or self.in_jobs)

    @property
    def waits_for(self) -> str:
        """Return the work to come: "28 documents", "3 vectors of openai"; "" without any."""
        if self.documents:
            return counted(self.documents, "document")
        if self.oldest_chunk is not None:
            return f"{counted(self.counts.vectors_pending, 'vector')} of {self._index.choice.name}"
        if self.sentences:
            return f"the sentences of {counted(self.sentences, 'chunk')}"
        if self.counts.vectors_held:
            return f"the release of {counted(self.counts.vectors_held, 'vector')}"
        return "the new index to be whole" if self.building is not None else ""

    @property
    def news(self) -> list[Condition]:
        """Return the conditions; a patient command reports the wait that the provider asks for, not its failure."""
        fails, until = ConditionCode.PROVIDER_FAILS, self._cool_until if self._patient else 0.0
        conditions = [entry for entry in self.conditions if entry.code != fails or (entry.since or 0.0) > until]
        return [self.wait, *conditions] if self.wait is not None else conditions

    def ask_again(self) -> None:
        """Ask the provider now for all missing vectors; end its cool-down of an earlier run."""
        provider = self._index.choice.provider
        if provider is not None and provider.account:
            self._broker.health.take_step(provider.account, provider.model, "forget")
        counts = self._index.counts()
        if counts.vectors_pending or counts.vectors_held or self._index.lacking_sentences():
            self._broker.queue.request_vectors_now(self._agent.id)

    def final_outcome(self, still_since: float | None) -> Outcome:
        """Return the present state. Nothing got on since the Unix time `still_since`; None if the wait is over."""
        self.look()
        lack = self.unable or self._index.lack(self.counts) or self.held
        if lack is None and self.stopped is not None and self.stopped.code is ConditionCode.BATCH_SUSPENDED:
            lack = self.stopped
        reason = what_happened(self.stopped) if self.stopped is not None else self._index.choice.error
        params: dict[str, Param]
        if lack is None and self.counts.vectors_pending and reason is not None:
            params = {"chunks": self.counts.vectors_pending, "reason": reason}
            lack = Condition(ConditionCode.VECTORS_WAIT, self._agent.id, params=params)
        elif lack is None and still_since is not None and self.waits_for and not self.sentences:
            params = {"what": self.waits_for, "minutes": max(1, round((time.time() - still_since) / 60))}
            lack = Condition(ConditionCode.INDEXING_STILL, self._agent.id, since=still_since, params=params)
        return self._index.outcome(condition=lack, in_jobs=self.in_jobs)

    def _documents(self) -> int:
        """Return how many documents wait that were marked before the command began, or by it."""
        marked = self._broker.health.marked_before(self._agent.id, self.marked_at)
        self.is_cut_off = marked is None
        if marked is None:
            return 1  # the broker is away for a moment: not all is done
        if (first := next(iter(marked.some), None)) != self._next:
            self._next, self._read_before = first, self._offset_of(first)
        if marked.count > len(marked.some):
            return marked.count
        return sum(not self._was_indexed(key) for key in marked.some)

    @property
    def begun_bytes(self) -> int:
        """Return the bytes of the next document that were read since it is the next one."""
        return max(0, self._offset_of(self._next) - self._read_before)

    def _offset_of(self, key: DocumentKey | None) -> int:
        """Return the bytes that the index has read of a transcript; 0 for others."""
        reader = self._index.reader()
        position = reader.transcript(key) if reader is not None and key is not None and key.is_transcript else None
        return position.offset if position is not None else 0

    def _was_indexed(self, key: DocumentKey) -> bool:
        """Return True if a waiting document was indexed since: it changes faster than workers index it."""
        reader = self._index.reader()
        file = reader.file(key) if reader is not None else None
        return file is not None and file.stat.mtime_ns / 1e9 > self.marked_at

    def _oldest_chunk(self) -> int | None:
        """Return the first chunk without a vector, of those that the command waits for; None without any."""
        reader = self._index.reader()
        oldest = next(iter(reader.pending_hashes(1)), None) if reader is not None else None
        # The command's last chunk is known when its documents are indexed, and none is to be released.
        if oldest is None or self.documents or self.counts.vectors_held or reader is None:
            return oldest
        if self._last_chunk[0] != self._index.name:
            self._last_chunk = (self._index.name, max(reader.pending_hashes(), default=0))
        return oldest if oldest <= self._last_chunk[1] else None

    def _is_left_to_jobs(self) -> bool:
        """Return True if every chunk without a vector is in a job that was polled since the command began.

        Always False where the settings make the command wait for jobs.
        """
        reader, provider = self._index.reader(), self._index.choice.provider
        if self._agent.remote.batch.wait or provider is None or reader is None:
            return False
        mine = [job for job in self.jobs if job.identity == provider.identity]
        if not mine or any(
            job.stage is not Stage.RUNNING or max(job.looked_at, job.made_at) < self._began_at for job in mine
        ):
            return False
        with BatchLedger.of(self._index.settings, Scope.of(self._agent.id).tenant) as ledger:
            return ledger.hashes(provider.identity).issuperset(reader.pending_hashes().values())

    def _holds_up(self, condition: Condition) -> bool:
        """Return True if no vectors come soon because of the condition."""
        endpoint, patience = self.endpoint, _PATIENCE_SECONDS
        lasted = self._lasted(condition)
        if condition.code not in OF_PROVIDER:
            patience = _UNABLE_SECONDS
        elif endpoint is not None and endpoint.until is not None:
            is_too_long = endpoint.until - time.time() > _LONGEST_COOL_DOWN_SECONDS and not self._patient
            if endpoint.condition is EndpointCondition.STOPPED or is_too_long:
                patience = 0.0
            elif endpoint.condition is EndpointCondition.COOLING_DOWN:
                patience = float("inf")
        elif self._patient and (since_wait := time.time() - self._cool_until) < lasted:
            lasted, patience = since_wait, _LONGEST_COOL_DOWN_SECONDS
        return condition.code in HOLD_UP_VECTORS and lasted >= patience

    def _lasted(self, condition: Condition) -> float:
        """Return the seconds since a condition began, or since the command did."""
        return time.time() - max(condition.since or 0.0, self._began_at)


def _sum(indexes: Sequence[IndexCounts]) -> IndexCounts:
    return IndexCounts(
        chunks=sum(counts.chunks for counts in indexes),
        vectors_ready=sum(counts.vectors_ready for counts in indexes),
        vectors_pending=sum(counts.vectors_pending for counts in indexes),
        vectors_held=sum(counts.vectors_held for counts in indexes),
    )


@contextmanager
def _workers(settings: Settings) -> Iterator[Callable[[], bool]]:
    """Run workers in this process during the block, unless a daemon of this home has some.

    Yields a function that returns True while there are workers, and raises `UserError` when they are refused.
    """
    if daemon_pid(settings.home) is not None:
        yield lambda: daemon_pid(settings.home) is not None
        return
    keep_heaps_small()
    stop = threading.Event()
    refused: list[UserError] = []

    def work() -> None:
        try:
            run_workers(settings, stop, role="index")
        except UserError as error:
            refused.append(error)

    def works() -> bool:
        if refused:
            raise refused[0]
        return thread.is_alive()

    thread = threading.Thread(target=work, name="workers")
    thread.start()
    try:
        yield works
    finally:
        stop.set()
        thread.join()
