"""One run of a command that indexes: compare, enqueue, wait, report.

Beside a busy `recalld up` the queue is never empty. A run waits for the documents that were marked before it began.
It then waits for the vectors of the chunks that existed at that time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from memory.embedding.batch_jobs.batch_ledger import BatchJob, BatchLedger, Stage, batch_jobs_of, ledger_path
from memory.embedding.selection import ProviderChoice
from memory.index.provider_fallback import provider_of
from memory.status.condition_texts import counted, duration, what_happened
from memory.store.reader import IndexCounts, StoreReader
from recalld.runs.estimate import Spending
from recalld.runs.outcome import AgentIndex, Outcome
from recalld.runs.progress_bar import Progress, ProgressBar
from recalld.up.lifecycle import running_broker, stop_event
from recalld.up.lock import daemon_pid
from recalld.wiring import BrokerSide, compare, open_broker
from schemas.conditions import HOLD_UP_VECTORS, OF_PROVIDER, Condition, ConditionCode, Param
from schemas.documents import DocumentKey
from schemas.errors import UserError
from schemas.settings import AgentSettings, Settings
from schemas.status import EndpointCondition, EndpointStatus
from workers.queue.home_lock import HomeLock
from workers.run import run_workers

#: Seconds between two looks at the queue.
_LOOK_SECONDS = 0.1

#: Seconds between two looks into the ledger of batch jobs.
_LEDGER_SECONDS = 0.5

#: Seconds that a command waits for a passing failure to end.
_PATIENCE_SECONDS = 30.0

#: Seconds after which a command believes workers that report that they cannot work.
_UNABLE_SECONDS = 5.0

#: Times `workers.stalled_after_seconds` without progress after which a command leaves while workers do other jobs.
_LONGEST_STILL = 5.0

#: Conditions of workers that index nothing.
_UNABLE = frozenset({ConditionCode.KEYWORDS_UNAVAILABLE, ConditionCode.NO_SPACE, ConditionCode.SETTINGS_OLDER})

#: Agents whose work the progress line names.
_NAMED_AGENTS = 3

#: Seconds of a provider's cool-down that a command waits for.
_LONGEST_COOL_DOWN_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class _View:
    """One look at an agent's queue, index and provider.

    `documents` of the command are not indexed yet, and `oldest_chunk` is the first of its chunks without a vector.
    `building` names the generation under construction. `unable` is the reason why workers index nothing, `stopped`
    the reason why the provider gives no vectors soon.
    """

    documents: int
    oldest_chunk: int | None
    building: str | None
    counts: IndexCounts
    choice: ProviderChoice
    endpoint: EndpointStatus | None
    conditions: Sequence[Condition]
    unable: Condition | None
    stopped: Condition | None

    @property
    def settled(self) -> bool:
        """Return True if neither vectors nor a generation are to come."""
        return self.stopped is not None or (self.building is None and self.oldest_chunk is None)

    @property
    def cools_down(self) -> bool:
        """Return True if the provider asked for a pause."""
        return self.endpoint is not None and self.endpoint.condition is EndpointCondition.COOLING_DOWN

    @property
    def waits_for(self) -> str:
        """Return what is to come: "28 documents", "3 vectors of openai"; "" when all came."""
        if self.documents:
            return counted(self.documents, "document")
        if self.oldest_chunk is None:
            return "the new index to be whole" if self.building is not None else ""
        until = self.endpoint.until if self.endpoint is not None else None
        wait = f", which is asked again in {duration(max(1.0, until - time.time()))}" if until is not None else ""
        return f"{counted(self.counts.vectors_pending, 'vector')} of {self.choice.name}{wait}"


@contextmanager
def running(settings: Settings, agents: Sequence[AgentSettings]) -> Iterator[Run]:
    """Begin a run, with a broker for its duration unless one answers already."""
    stop = stop_event(supervised=False)
    with running_broker(settings), open_broker(settings) as broker:
        run = Run(settings, agents, broker, stop)
        try:
            yield run
        finally:
            run.close()


class Run:
    """One run for some agents. `stop` is set by Ctrl-C."""

    def __init__(
        self, settings: Settings, agents: Sequence[AgentSettings], broker: BrokerSide, stop: threading.Event
    ) -> None:
        self.settings = settings
        self.broker = broker
        self.stop = stop
        self.spending = Spending(broker.board, agents)
        #: Shows the progress.
        self.bar = ProgressBar()
        self._begun = time.monotonic()
        self._jobs = _BatchJobs(settings, agents)
        self._agents = {agent.id: _AgentWait(settings, agent, broker, self._jobs) for agent in agents}
        self._most_documents = 0
        self._limit_seconds = settings.workers.stalled_after_seconds
        self._progress_made: object = None
        self._progress_at = time.monotonic()
        #: Seconds without progress after which the command gave up, None when it did not.
        self._still_seconds: float | None = None

    @property
    def seconds(self) -> float:
        """Return the seconds since the run began."""
        return time.monotonic() - self._begun

    @property
    def interrupted(self) -> bool:
        """Return True after Ctrl-C."""
        return self.stop.is_set()

    def counts(self, agent: AgentSettings) -> IndexCounts:
        """Return the counts of an agent's index; without missing vectors where only keywords are wanted."""
        return self._agents[agent.id].index.counts()

    def check_home(self) -> None:
        """Check that workers of this home take from the queue: what those of another home take would be missing here.

        Raises:
            UserError: workers of another home take from it.
        """
        HomeLock(self.broker.client, self.broker.keys, self.settings).take()

    def compare(self) -> None:
        """Enqueue what differs between disk and index."""
        for one in self._agents.values():
            compare(self.settings, one.agent, self.broker.queue)
        self.marked()

    def marked(self) -> None:
        """Wait for what the command queued until now."""
        for agent in self._agents.values():
            agent.marked_at = time.time()

    def finish(self) -> list[Outcome]:
        """Wait until all is done, with workers where work is left, and return the outcomes.

        Raises:
            UserError: the workers are gone, or refused.
        """
        for agent in self._agents.values():
            agent.ask_again()
        agents = zip(self._agents.values(), self._look(), strict=True)
        if all(agent.is_done(view) for agent, view in agents):
            return self._outcomes()
        with _workers(self.settings) as works:
            return self.until_done(works=works)

    def until_done(self, *, works: Callable[[], bool]) -> list[Outcome]:
        """Wait, show progress on standard error, and return the outcomes.

        `works` returns False when no workers are left.

        Raises:
            UserError: the workers are gone.
        """
        while not self.stop.wait(_LOOK_SECONDS):
            if not works():
                self.bar.end()
                raise UserError("recalld up ended meanwhile; what was done is kept, run this command again to go on")
            views = self._look()
            documents = sum(view.documents for view in views)
            self._most_documents = max(self._most_documents, documents)
            for view in views:
                self.bar.warn(view.conditions)
            if self.bar.due():
                self.bar.show(self._progress(views, documents))
            agents = zip(self._agents.values(), views, strict=True)
            if all(view.unable or agent.is_done(view) for agent, view in agents):
                break
            if self._stands_still(views):
                break
        self.bar.end()
        return self._outcomes()

    def close(self) -> None:
        """Close the readers."""
        for agent in self._agents.values():
            agent.index.close()

    def _outcomes(self) -> list[Outcome]:
        return [agent.outcome(still_seconds=self._still_seconds) for agent in self._agents.values()]

    def _look(self) -> list[_View]:
        return [agent.look() for agent in self._agents.values()]

    def _progress(self, views: Sequence[_View], documents: int) -> Progress:
        waiting = [
            f"{agent}: {view.waits_for}" if len(views) > 1 else view.waits_for
            for agent, view in zip(self._agents, views, strict=True)
            if view.waits_for
        ]
        if len(waiting) > _NAMED_AGENTS:
            waiting[_NAMED_AGENTS:] = [counted(len(waiting) - _NAMED_AGENTS, "more agent")]
        return Progress(
            documents=self._most_documents - documents,
            of_documents=self._most_documents,
            counts=IndexCounts(
                files=sum(view.counts.files for view in views),
                chunks=sum(view.counts.chunks for view in views),
                vectors_ready=sum(view.counts.vectors_ready for view in views),
                vectors_pending=sum(view.counts.vectors_pending for view in views),
            ),
            failed=sum(len(agent.index.failed()) for agent in self._agents.values()),
            jobs=self._jobs.progress(),
            waits_for="; ".join(waiting),
        )

    def _stands_still(self, views: Sequence[_View]) -> bool:
        """Return True if the command's own work made no progress for too long.

        A batch job may take a day. Workers may do other jobs first: while they finish any, the command waits longer.
        """
        made = [(view.documents, view.oldest_chunk, view.building) for view in views]
        if self._jobs.progress() or made != self._progress_made:
            self._progress_made, self._progress_at = made, time.monotonic()
            return False
        still = time.monotonic() - self._progress_at
        limit = max(self._limit_seconds, _LONGEST_COOL_DOWN_SECONDS if any(view.cools_down for view in views) else 0.0)
        patience = limit if self.broker.board.stalled_seconds() >= limit else _LONGEST_STILL * limit
        if still < patience:
            return False
        self._still_seconds = still
        return True


class _AgentWait:
    """Wait for one agent."""

    def __init__(self, settings: Settings, agent: AgentSettings, broker: BrokerSide, jobs: _BatchJobs) -> None:
        self.agent = agent
        self.index = AgentIndex(settings, agent)
        self._broker = broker
        self._jobs = jobs
        self._begun = self.marked_at = time.time()
        # Generation, and its last chunk when the command's documents were indexed.
        self._last_chunk: tuple[str | None, int] = ("", 0)

    def look(self) -> _View:
        """Return the present view."""
        documents = self._documents()
        counts, choice = self.index.counts(), self.index.choice
        board, provider = self._broker.board, choice.provider
        endpoint = board.endpoint(provider.account, provider.model) if provider is not None else None
        # Conditions of an earlier run may be over.
        conditions = board.conditions(self.agent.id, reported_since=self._begun)
        return _View(
            documents=documents,
            oldest_chunk=self._oldest_chunk(documents) if counts.vectors_pending else None,
            building=self.index.generations.next(),
            counts=counts,
            choice=choice,
            endpoint=endpoint,
            conditions=conditions,
            unable=next((one for one in conditions if self._is_unable(one)), None),
            stopped=next((one for one in conditions if self._is_stopped(one, endpoint)), None),
        )

    def is_done(self, view: _View) -> bool:
        """Return True if the command has nothing more to wait for."""
        return not view.documents and (view.settled or self._left_to_jobs())

    def ask_again(self) -> None:
        """Ask the provider now for all that waits, whatever pause an earlier run met."""
        provider = self.index.choice.provider
        if provider is not None and provider.account:
            self._broker.board.ask_again(provider.account, provider.model)
        if self.index.counts().vectors_pending:
            self._broker.queue.request_vectors_now(self.agent.id)

    def outcome(self, *, still_seconds: float | None) -> Outcome:
        """Return the present state. The command gave up after `still_seconds` without progress, or did not give up."""
        view = self.look()
        condition = view.unable or self._condition(view, still_seconds)
        return self.index.outcome(condition=condition, in_jobs=self._left_to_jobs())

    def _documents(self) -> int:
        """Return how many documents wait that were marked before the command began, or by it."""
        marked = self._broker.board.marked_before(self.agent.id, self.marked_at)
        if marked is None:
            return 1  # the broker is away for a moment: not all is done
        if marked.count > len(marked.some):
            return marked.count
        return sum(not self._was_indexed(key) for key in marked.some)

    def _was_indexed(self, key: DocumentKey) -> bool:
        """Return True if a waiting document was indexed since: it changes faster than workers index it."""
        reader = self.index.reader()
        known = reader.file(key) if reader is not None else None
        return known is not None and known.stat.mtime_ns / 1e9 > self.marked_at

    def _oldest_chunk(self, documents: int) -> int | None:
        """Return the first chunk without a vector, of those that the command waits for; None without any."""
        reader = self.index.reader()
        oldest = next((chunk.id for chunk in reader.pending_chunks(1)), None) if reader is not None else None
        if oldest is None or documents or reader is None:
            return oldest  # the command's last chunk is known when its documents are indexed
        if self._last_chunk[0] != self.index.name:
            self._last_chunk = (self.index.name, max(reader.pending_hashes(), default=0))
        return oldest if oldest <= self._last_chunk[1] else None

    def _left_to_jobs(self) -> bool:
        return self._jobs.are_all_that_is_left(self.agent, self.index.reader())

    def _is_unable(self, condition: Condition) -> bool:
        """Return True if workers will index nothing, however long the command waits."""
        return condition.code in _UNABLE and self._lasted(condition) > _UNABLE_SECONDS

    def _is_stopped(self, condition: Condition, endpoint: EndpointStatus | None) -> bool:
        """Return True if no vectors come soon because of the condition."""
        if condition.code not in HOLD_UP_VECTORS:
            return False
        if condition.code not in OF_PROVIDER:
            return self._lasted(condition) > _UNABLE_SECONDS
        if endpoint is not None and endpoint.until is not None:
            if endpoint.condition is EndpointCondition.STOPPED:
                return True
            if endpoint.condition is EndpointCondition.COOLING_DOWN:
                return endpoint.until - time.time() > _LONGEST_COOL_DOWN_SECONDS
        return self._lasted(condition) > _PATIENCE_SECONDS

    def _lasted(self, condition: Condition) -> float:
        """Return the seconds since a condition began, or since the command did."""
        return time.time() - max(condition.since or 0.0, self._begun)

    def _condition(self, view: _View, still_seconds: float | None) -> Condition | None:
        """Return the reason for missing vectors or documents; None when all came."""
        agent, pending = self.agent.id, view.counts.vectors_pending
        lack = self.index.lack(view.counts, view.choice)
        if lack is not None:
            return lack
        reason = what_happened(view.stopped) if view.stopped is not None else view.choice.error
        params: dict[str, Param]
        if pending and reason is not None:
            params = {"chunks": pending, "reason": reason}
            return Condition(ConditionCode.VECTORS_WAIT, agent, params=params)
        if still_seconds is None or not view.waits_for:
            return None
        params = {"what": view.waits_for, "minutes": max(1, round(still_seconds / 60))}
        return Condition(ConditionCode.INDEXING_STILL, agent, since=time.time() - still_seconds, params=params)


class _BatchJobs:
    """Batch jobs of some agents, read from the ledger."""

    def __init__(self, settings: Settings, agents: Sequence[AgentSettings]) -> None:
        self._settings = settings
        self._ids = {agent.id for agent in agents if agent.remote.batch.enabled}
        self._begun = time.time()
        self._looked_at = 0.0
        self._jobs: list[BatchJob] = []

    def progress(self) -> str:
        """Return the progress of the open jobs; "" without any."""
        jobs = [job for job in self._open_jobs() if job.agent in self._ids]
        if not jobs:
            return ""
        providers = ", ".join(sorted({job.provider for job in jobs}))
        done, texts = sum(job.completed for job in jobs), sum(job.texts for job in jobs)
        return f"{counted(len(jobs), 'batch job')} at {providers} {done:,}/{texts:,}"

    def are_all_that_is_left(self, agent: AgentSettings, reader: StoreReader | None) -> bool:
        """Return True if every chunk without a vector is in a job that was polled since the command began.

        Always False where the settings make the command wait for jobs.
        """
        if agent.id not in self._ids or agent.remote.batch.wait or reader is None:
            return False
        provider = provider_of(self._settings, agent).provider
        jobs = [job for job in self._open_jobs() if provider is not None and job.identity == provider.identity]
        if not any(job.agent == agent.id for job in jobs) or not all(self._is_running(job) for job in jobs):
            return False
        with BatchLedger(ledger_path(self._settings.home)) as ledger:
            at_provider = ledger.hashes(jobs[0].identity)
        return at_provider.issuperset(reader.pending_hashes().values())

    def _is_running(self, job: BatchJob) -> bool:
        return job.stage is Stage.RUNNING and max(job.looked_at, job.made_at) >= self._begun

    def _open_jobs(self) -> Iterable[BatchJob]:
        now = time.monotonic()
        if now - self._looked_at >= _LEDGER_SECONDS and self._ids:
            self._looked_at = now
            self._jobs = [job for job in batch_jobs_of(self._settings.home) if job.open]
        return self._jobs


@contextmanager
def _workers(settings: Settings) -> Iterator[Callable[[], bool]]:
    """Run workers in this process during the block, unless a daemon of this home has some.

    Yields a function that returns True while there are workers, and raises `UserError` when they are refused.
    """
    if daemon_pid(settings.home) is not None:
        yield lambda: daemon_pid(settings.home) is not None
        return
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
