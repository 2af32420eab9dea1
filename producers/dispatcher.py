"""Thread that hands changed documents to the queue, and keeps them while the queue does not answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import date

import structlog
from opentelemetry.trace import SpanKind

from memory.documents.agent_files import priority
from memory.status.pulses import Pulse
from memory.telemetry import tracing
from producers.debouncer import Debouncer
from schemas.conditions import ConditionCode
from schemas.documents import DocumentKey, FileStat, Lane
from schemas.errors import BrokerUnavailable
from schemas.ports import ConditionReporter, JobQueue

log = structlog.get_logger(__name__)

#: Seconds between two tries while the queue does not answer: doubled from the first to the second.
RETRY_SECONDS = (0.5, 15.0)

#: Seconds that documents becoming due one shortly after the other are gathered for.
GATHER_SECONDS = 0.02

#: Documents in one call of the queue.
CALL_DOCUMENTS = 1000


class HeldBack:
    """Agents with changes that are not queued yet, told to the queue so that searches ask for them. Thread-safe."""

    def __init__(self, queue: JobQueue) -> None:
        self._queue = queue
        self._lock = threading.Lock()
        self._parts: dict[str, frozenset[str]] = {}
        self._told: frozenset[str] = frozenset()

    def report(self, part: str, agents: Iterable[str]) -> None:
        """Tell which agents one part of the producers holds back."""
        with self._lock:
            self._parts[part] = frozenset(agents)
            held = frozenset[str]().union(*self._parts.values())
            self._queue.hold_back(held - self._told, held=True)
            self._queue.hold_back(self._told - held, held=False)
            self._told = held

    def tell_again(self) -> None:
        """Tell everything again: the queue may have lost it."""
        with self._lock:
            self._queue.hold_back(self._told, held=True)

    def start(self, agents: Collection[str]) -> None:
        """Forget what an earlier process of these agents held back."""
        with self._lock:
            self._queue.hold_back(agents, held=False)
            self._told = frozenset()


class Dispatcher:
    """Debouncer of events that marks what is due. All methods are thread-safe.

    The thread calls `on_recovered` when the queue answers again after a failure.
    """

    def __init__(
        self,
        queue: JobQueue,
        reporter: ConditionReporter,
        *,
        quiet_seconds: Callable[[str], float],
        on_recovered: Callable[[], None],
        held_back: HeldBack | None = None,
        clock: Callable[[], float] = time.monotonic,
        pulse: Pulse | None = None,
    ) -> None:
        self._pulse = pulse or Pulse("hand-over")
        self._queue = queue
        self._reporter = reporter
        self._on_recovered = on_recovered
        self._held_back = held_back or HeldBack(queue)
        self._clock = clock
        self._changed = threading.Condition()
        self._debouncer = Debouncer(quiet_seconds)
        self._waiting: dict[str, dict[DocumentKey, FileStat | None]] = {}
        self._failing = False
        self._delivering = False
        self._retry_at: float | None = None
        self._pause = RETRY_SECONDS[0]
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="hand-over", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()
        self._pulse.belongs_to(self._thread)

    def touch(self, agent: str, key: DocumentKey) -> None:
        """Record an event of a document: hand it over when it has been quiet for long enough."""
        with self._changed:
            before = self._debouncer.next_due(), self._debouncer.agents()
            self._debouncer.touch(agent, key, now=self._clock())
            if (self._debouncer.next_due(), self._debouncer.agents()) != before:
                self._changed.notify_all()

    def submit(self, agent: str, keys: Iterable[DocumentKey] | Mapping[DocumentKey, FileStat | None]) -> None:
        """Hand documents over at once, without debouncing. With their stats, the latest transcripts go first."""
        with self._changed:
            self._keep(agent, keys)
            self._changed.notify_all()

    def flush(self, agent: str | None = None) -> None:
        """Hand over at once the documents of one agent, or of all, that wait for their quiet time."""
        with self._changed:
            for owner, keys in self._debouncer.flush(agent).items():
                self._keep(owner, keys)
            self._changed.notify_all()

    def settle(self, timeout_seconds: float) -> bool:
        """Wait until every due document is queued. Return False after the timeout, or while the queue is away."""
        with self._changed:
            return (
                self._changed.wait_for(
                    lambda: self._retry_at is not None or not (self._waiting or self._delivering), timeout_seconds
                )
                and not self._waiting
            )

    def waiting(self) -> int:
        """Return the number of changed documents that are not queued yet."""
        with self._changed:
            return len(self._debouncer) + sum(map(len, self._waiting.values()))

    def stop(self) -> None:
        """Try once to hand over everything, and end the thread. Events are hints and may be lost."""
        self.flush()
        with self._changed:
            self._stopping = True
            self._retry_at = None
            self._changed.notify_all()
        self._thread.join()

    def _keep(self, agent: str, keys: Iterable[DocumentKey] | Mapping[DocumentKey, FileStat | None]) -> None:
        stats = keys if isinstance(keys, Mapping) else dict.fromkeys(keys)
        self._waiting.setdefault(agent, {}).update(stats)

    def _run(self) -> None:
        told: set[str] = set()
        while True:
            with self._changed:
                stopping = self._stopping
                now = self._clock()
                for agent, keys in self._debouncer.take_due(now=now).items():
                    self._keep(agent, keys)
                held_back = self._retry_at is not None and now < self._retry_at
                batches = {} if held_back else self._waiting
                held = self._debouncer.agents() | self._waiting.keys()
                if not held_back:
                    self._waiting = {}
                self._delivering = bool(batches)
                if not batches and not stopping and held == told:
                    self._changed.wait(self._pause_until_next(now))
                    continue
            with self._pulse.at("hands over to the queue"):
                self._held_back.report("documents", set() if stopping else held)
                told = held
                self._deliver(batches)
            with self._changed:
                self._delivering = False
                self._changed.notify_all()
            if stopping:
                return
            if self._retry_at is None:
                self._gather()

    def _gather(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._stopping, GATHER_SECONDS)

    def _pause_until_next(self, now: float) -> float | None:
        times = [at for at in (self._debouncer.next_due(), self._retry_at) if at is not None]
        # The pause is real time even when the clock is a test's.
        return max(0.001, min(times) - now) if times else None

    def _deliver(self, batches: dict[str, dict[DocumentKey, FileStat | None]]) -> None:
        failure: Exception | None = None
        kept: dict[str, dict[DocumentKey, FileStat | None]] = {}
        for agent, keys in batches.items():
            if isinstance(failure, BrokerUnavailable):
                kept[agent] = keys
                continue
            try:
                self._mark(agent, keys)
            except Exception as error:  # noqa: BLE001 - reported as a condition and tried again, see _failed
                failure, kept[agent] = error, keys
        if failure is not None:
            self._failed(failure, kept)
        elif batches:
            self._succeeded()

    def _mark(self, agent: str, stats: Mapping[DocumentKey, FileStat | None]) -> None:
        today = date.today()  # the day of the notes' names, which are local
        keys = sorted(stats, key=lambda key: priority(key, today=today, stat=stats[key]))
        with tracing.span("event", kind=SpanKind.PRODUCER, agent=agent, documents=len(keys)):
            mark_in_calls(self._queue, agent, keys, lane=Lane.LIVE)

    def _failed(self, error: Exception, rest: dict[str, dict[DocumentKey, FileStat | None]]) -> None:
        """Keep all documents of the agents that failed. Marking a document twice is harmless."""
        with self._changed:
            for agent, keys in rest.items():
                self._waiting[agent] = {**keys, **self._waiting.get(agent, {})}
            count = sum(map(len, self._waiting.values()))
            self._failing = True
            self._retry_at = self._clock() + self._pause
            self._pause = min(2 * self._pause, RETRY_SECONDS[1])
        log.warning("hand_over_failed", error=str(error), kept=count)
        self._reporter.report(ConditionCode.CHANGES_KEPT, error=str(error), documents=count)

    def _succeeded(self) -> None:
        with self._changed:
            failed_before, self._failing = self._failing, False
            self._retry_at = None
            self._pause = RETRY_SECONDS[0]
        if failed_before:
            log.info("queue_answers_again")
            self._reporter.resolve(ConditionCode.CHANGES_KEPT)
            self._on_recovered()


def mark_in_calls(queue: JobQueue, agent: str, keys: Sequence[DocumentKey], *, lane: Lane) -> None:
    """Mark any number of documents, at most `CALL_DOCUMENTS` a call.

    Raises:
        BrokerUnavailable: the first calls may have succeeded.
    """
    for start in range(0, len(keys), CALL_DOCUMENTS):
        queue.mark_changed(agent, keys[start : start + CALL_DOCUMENTS], lane=lane)
