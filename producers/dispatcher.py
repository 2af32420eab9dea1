"""Thread that hands changed documents to the queue, and keeps them while the queue does not answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from functools import partial

import structlog
from opentelemetry.trace import SpanKind

from memory.documents.roots import priority
from memory.status.pulses import Pulse
from memory.telemetry import tracing
from producers.debouncer import DebouncedThread
from schemas.conditions import ConditionCode
from schemas.documents import DocumentKey, FileStat, Lane
from schemas.errors import BrokerUnavailable
from schemas.ports import ConditionReporter, JobQueue, ProducerQueue

log = structlog.get_logger(__name__)

#: Seconds between two tries while the queue does not answer: doubled from the first to the second.
RETRY_SECONDS = (0.5, 15.0)

#: Seconds that documents becoming due one shortly after the other are gathered for.
GATHER_SECONDS = 0.02

#: Documents in one call of the queue.
CALL_DOCUMENTS = 1000


class HeldBack:
    """Agents with changes that are not queued yet, told to the queue so that searches ask for them. Thread-safe."""

    def __init__(self, queue: ProducerQueue) -> None:
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


class Dispatcher(DebouncedThread[FileStat | None]):
    """Debouncer of events that marks what is due. All methods are thread-safe.

    The thread calls `on_recovered` when the queue answers again after a failure.
    """

    _DUE = None

    def __init__(
        self,
        queue: ProducerQueue,
        reporter: ConditionReporter,
        *,
        quiet_seconds: Callable[[str], float],
        on_recovered: Callable[[], None],
        held_back: HeldBack | None = None,
        clock: Callable[[], float] = time.monotonic,
        pulse: Pulse | None = None,
    ) -> None:
        super().__init__(
            "hand-over",
            quiet_seconds=quiet_seconds,
            held_back=partial((held_back or HeldBack(queue)).report, "documents"),
            pause_seconds=GATHER_SECONDS,
            clock=clock,
            pulse=pulse,
        )
        self._queue = queue
        self._reporter = reporter
        self._on_recovered = on_recovered
        self._retry_pause = RETRY_SECONDS[0]

    def submit(self, agent: str, keys: Iterable[DocumentKey] | Mapping[DocumentKey, FileStat | None]) -> None:
        """Hand documents over at once, without debouncing. With their stats, the latest transcripts go first."""
        self._put(agent, keys if isinstance(keys, Mapping) else dict.fromkeys(keys))

    def _deliver(self, batches: Mapping[str, Mapping[DocumentKey, FileStat | None]]) -> None:
        failure: Exception | None = None
        kept: dict[str, Mapping[DocumentKey, FileStat | None]] = {}
        for agent, keys in batches.items():
            if isinstance(failure, BrokerUnavailable):
                kept[agent] = keys
                continue
            try:
                self._mark(agent, keys)
            except Exception as error:  # noqa: BLE001 - reported as a condition and tried again
                failure, kept[agent] = error, keys
        if failure is not None:
            self._failed(failure, kept)
        elif batches and self._retry_at is not None:
            with self._changed:
                self._retry_at, self._retry_pause = None, RETRY_SECONDS[0]
            log.info("queue_answers_again")
            self._reporter.resolve(ConditionCode.CHANGES_KEPT)
            self._on_recovered()

    def _mark(self, agent: str, stats: Mapping[DocumentKey, FileStat | None]) -> None:
        today = date.today()  # the day of the notes' names, which are local
        keys = sorted(stats, key=lambda key: priority(key, today=today, stat=stats[key]))
        with tracing.span("event", kind=SpanKind.PRODUCER, agent=agent, documents=len(keys)):
            mark_in_calls(self._queue, agent, keys, lane=Lane.LIVE)

    def _failed(self, error: Exception, rest: Mapping[str, Mapping[DocumentKey, FileStat | None]]) -> None:
        """Keep all documents of the agents that failed. Marking a document twice is harmless."""
        with self._changed:
            for agent, keys in rest.items():
                self._waiting[agent] = {**keys, **self._waiting.get(agent, {})}
            count = sum(map(len, self._waiting.values()))
            self._retry_at = self._clock() + self._retry_pause
            self._retry_pause = min(2 * self._retry_pause, RETRY_SECONDS[1])
        log.warning("hand_over_failed", error=str(error), kept=count)
        self._reporter.report(ConditionCode.CHANGES_KEPT, error=str(error), documents=count)


def mark_in_calls(queue: JobQueue, agent: str, keys: Sequence[DocumentKey], *, lane: Lane) -> None:
    """Mark any number of documents, at most `CALL_DOCUMENTS` a call.

    Raises:
        BrokerUnavailable: the first calls may have succeeded.
    """
    for start in range(0, len(keys), CALL_DOCUMENTS):
        queue.mark_changed(agent, keys[start : start + CALL_DOCUMENTS], lane=lane)
