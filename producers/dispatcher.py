"""Debouncer of changed documents, and the thread that hands due documents to the queue.

A document is due after its agent's quiet time without an event; the `Tailer` may call a transcript due earlier. All
events of one window are one hand-over. While the queue does not answer, documents are kept.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import date

import structlog
from opentelemetry.trace import SpanKind

from memory.documents.roots import priority
from memory.status.processes import Pulse
from memory.telemetry import tracing
from producers.tailer import Tailer
from schemas.conditions import ConditionCode
from schemas.documents import DocumentKey, FileStat, Lane
from schemas.errors import BrokerUnavailable, backoff
from schemas.ports import ConditionReporter, JobQueue, ProducerQueue
from schemas.settings import AgentSettings

log = structlog.get_logger(__name__)

#: Quiet times after which a note, and a transcript, that never rests is due. Indexing appended lines costs little.
NOTE_BOUND, TRANSCRIPT_BOUND = 10, 3

#: Seconds between two tries while the queue does not answer: doubled from the first to the second.
RETRY_SECONDS = (0.5, 15.0)

#: Seconds for which documents that become due shortly after one another are gathered.
GATHER_SECONDS = 0.02

#: Transcripts looked at before those that are due are handed over.
LOOKS_AT_A_TIME = 500

#: Documents in one call of the queue.
CALL_DOCUMENTS = 1000


class Debouncer:
    """Documents that changed and are not due yet. Pure: time comes in as an argument. Not thread-safe.

    An event puts a document off for its quiet time again, unless that is later than its bound after the first event:
    a file that is written every second is indexed, too.
    """

    def __init__(self, agents: Mapping[str, AgentSettings]) -> None:
        self._agents = agents
        # By agent and source, which share a quiet time: the times of the first event and of being due, next due first.
        self._windows: dict[tuple[str, str], dict[DocumentKey, tuple[float, float]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._windows.values()))

    def agents(self) -> set[str]:
        """Return the agents with documents that are not due yet."""
        return {agent for agent, _ in self._windows}

    def touch(self, agent: str, key: DocumentKey, *, now: float) -> float:
        """Record an event of a document. Return the time at which it is due."""
        sync = self._agents[agent].sync
        quiet, bound = (
            (sync.sessions.quiet_seconds, TRANSCRIPT_BOUND)
            if key.is_transcript
            else (sync.watch_debounce_ms / 1000, NOTE_BOUND)
        )
        windows = self._windows.setdefault((agent, key.source), {})
        first, due = windows.get(key, (now, now))
        if now + quiet <= first + bound * quiet:
            windows.pop(key, None)
            windows[key] = first, (due := now + quiet)
        return due

    def next_due(self) -> float:
        """Return the time before which no document is due; infinity without documents."""
        return min((next(iter(windows.values()))[1] for windows in self._windows.values()), default=math.inf)

    def take_due(self, *, now: float, agents: Collection[str] = ()) -> list[tuple[str, DocumentKey]]:
        """Remove and return the documents that are due, and all those of `agents`."""
        ready = []
        for (agent, source), windows in list(self._windows.items()):
            for key, (_, due) in list(windows.items()):
                if due > now and agent not in agents:
                    break
                del windows[key]
                ready.append((agent, key))
            if not windows:
                del self._windows[agent, source]
        return ready


class Dispatcher:
    """Thread that debounces changed documents and marks due ones. All methods are thread-safe.

    It reports the agents with unmarked changes to the queue, so that their searches ask for them.
    `on_recovered` is called when the queue answers again after a failure.
    """

    def __init__(
        self,
        agents: Mapping[str, AgentSettings],
        queue: ProducerQueue,
        reporter: ConditionReporter,
        tailer: Tailer,
        *,
        on_recovered: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
        pulse: Pulse | None = None,
    ) -> None:
        self._agents = agents
        self._queue = queue
        self._reporter = reporter
        self._tailer = tailer
        self._on_recovered = on_recovered
        self._clock = clock
        self._pulse = pulse or Pulse("hand-over")
        self._changed = threading.Condition()
        self._debouncer = Debouncer(agents)
        #: Transcripts to look at; True: any change makes them due.
        self._looks: dict[tuple[str, DocumentKey], bool] = {}
        self._due: dict[str, dict[DocumentKey, FileStat | None]] = {}
        self._unwatched: frozenset[str] = frozenset()
        self._held_back: frozenset[str] = frozenset()
        self._wake_at = math.inf
        #: Nothing is marked before this time, after so many failures in a row.
        self._retry_at: float | None = None
        self._failures = 0
        self._working = self._urgent = self._stopping = False
        self._thread = threading.Thread(target=self._run, name="hand-over", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()
        self._pulse.belongs_to(self._thread)

    def touch(self, agent: str, key: DocumentKey) -> None:
        """Record an event of a document. It is marked after its quiet time, a transcript also when it grew enough."""
        with self._changed:
            due = self._debouncer.touch(agent, key, now=self._clock())
            if key.is_transcript:
                self._looks.setdefault((agent, key), False)
            if key.is_transcript or due < self._wake_at or agent not in self._held_back:
                self._changed.notify_all()

    def submit(self, agent: str, keys: Iterable[DocumentKey]) -> None:
        """Mark documents at once."""
        with self._changed:
            if documents := dict.fromkeys(keys):
                self._due.setdefault(agent, {}).update(documents)
            self._changed.notify_all()

    def force(self, agent: str, key: DocumentKey) -> None:
        """Mark a transcript now if it changed since its last mark."""
        with self._changed:
            self._looks[agent, key] = self._urgent = True
            self._changed.notify_all()

    def flush(self, *agents: str) -> None:
        """Mark the documents of these agents that wait for their quiet time."""
        with self._changed:
            self._take_due(agents)
            self._urgent = True
            self._changed.notify_all()

    def settle(self, timeout_seconds: float) -> None:
        """Wait until every due document is marked or marking fails, at most `timeout_seconds`."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._retry_at is not None or not (self._looks or self._due or self._working), timeout_seconds
            )

    def waiting(self) -> int:
        """Return the number of documents that are not marked yet."""
        with self._changed:
            return len(self._debouncer) + len(self._looks) + sum(map(len, self._due.values()))

    def set_unwatched(self, agents: Collection[str]) -> None:
        """Set the agents whose changes only a comparison finds."""
        with self._changed:
            self._unwatched = frozenset(agents)
            self._changed.notify_all()

    def republish(self) -> None:
        """Report the agents with changes to the queue again: it may have lost them."""
        with self._changed:
            self._held_back = frozenset()
            self._changed.notify_all()

    def stop(self) -> None:
        """Try once to mark everything, and end the thread. Events are hints and may be lost."""
        self.flush(*self._agents)
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join()

    def _take_due(self, agents: Collection[str] = ()) -> None:
        for agent, key in self._debouncer.take_due(now=self._clock(), agents=agents):
            if key.is_transcript:
                self._looks[agent, key] = True
            else:
                self._due.setdefault(agent, {}).setdefault(key)

    def _run(self) -> None:
        while True:
            with self._changed:
                now, stopping = self._clock(), self._stopping
                self._take_due()
                looks: dict[str, dict[DocumentKey, bool]] = {}
                for agent, key in list(itertools.islice(self._looks, LOOKS_AT_A_TIME)):
                    looks.setdefault(agent, {})[key] = self._looks.pop((agent, key))
                may_mark = self._retry_at is None or now >= self._retry_at or stopping
                held_agents = self._unwatched.union(self._debouncer.agents(), looks, self._due)
                self._working = bool(looks or (self._due and may_mark))
                if not self._working and not stopping and held_agents == self._held_back:
                    self._wake_at = min(self._debouncer.next_due(), math.inf if may_mark else self._retry_at or now)
                    # The pause is real time even when the clock is a test's.
                    self._changed.wait(max(0.001, self._wake_at - now) if self._wake_at < math.inf else None)
                    continue
                self._urgent, previous_agents = bool(self._looks), self._held_back
                self._held_back = frozenset() if stopping else held_agents
            with self._pulse.at("hands over what is due"):
                self._queue.hold_back(self._held_back - previous_agents, active=True)
                self._queue.hold_back(previous_agents - self._held_back, active=False)
                due = {agent: self._tailer.due(agent, keys) for agent, keys in looks.items()}
                with self._changed:
                    for agent, stats in due.items():
                        if stats:
                            self._due.setdefault(agent, {}).update(stats)
                    batches, self._due = (self._due, {}) if may_mark else ({}, self._due)
                self._mark_all(batches)
            with self._changed:
                self._working = False
                self._changed.notify_all()
                if stopping and not self._looks:
                    return
                if self._retry_at is None:
                    self._changed.wait_for(lambda: self._stopping or self._urgent, GATHER_SECONDS)

    def _mark_all(self, batches: Mapping[str, Mapping[DocumentKey, FileStat | None]]) -> None:
        """Mark documents. After a failure, the agent's documents stay due: marking a document twice is harmless."""
        failure: Exception | None = None
        remaining: dict[str, Mapping[DocumentKey, FileStat | None]] = {}
        for agent, stats in batches.items():
            if not isinstance(failure, BrokerUnavailable):
                try:
                    self._mark(agent, stats)
                    continue
                except Exception as error:  # noqa: BLE001 - reported as a condition and tried again
                    failure = error
            remaining[agent] = stats
        if failure is not None:
            with self._changed:
                for agent, stats in remaining.items():
                    self._due[agent] = {**stats, **self._due.get(agent, {})}
                count = sum(map(len, self._due.values()))
                self._failures += 1
                self._retry_at = self._clock() + backoff(
                    self._failures, first=RETRY_SECONDS[0], longest=RETRY_SECONDS[1]
                )
            log.warning("hand_over_failed", error=str(failure), kept=count)
            self._reporter.report(ConditionCode.CHANGES_KEPT, error=str(failure), documents=count)
        elif batches and self._retry_at is not None:
            with self._changed:
                self._retry_at, self._failures = None, 0
            log.info("queue_answers_again")
            self._reporter.resolve(ConditionCode.CHANGES_KEPT)
            self._on_recovered()

    def _mark(self, agent: str, stats: Mapping[DocumentKey, FileStat | None]) -> None:
        today = date.today()  # the day of the notes' names, which are local
        keys = sorted(stats, key=lambda key: priority(key, today=today, stat=stats[key]))
        with tracing.span("event", kind=SpanKind.PRODUCER, agent=agent, documents=len(keys)):
            mark_in_calls(self._queue, agent, keys, lane=Lane.LIVE)


def mark_in_calls(queue: JobQueue, agent: str, keys: Sequence[DocumentKey], *, lane: Lane) -> None:
    """Mark any number of documents, at most `CALL_DOCUMENTS` a call.

    Raises:
        BrokerUnavailable: the first calls may have succeeded.
    """
    for start in range(0, len(keys), CALL_DOCUMENTS):
        queue.mark_changed(agent, keys[start : start + CALL_DOCUMENTS], lane=lane)
