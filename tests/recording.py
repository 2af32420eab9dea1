"""Ports that remember what they were told, for tests of whoever talks to them."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from memory.documents.agent_files import AgentFiles
from memory.store.reader import IndexedFile, StoreReader, TranscriptPosition
from schemas.conditions import Condition, ConditionCode, Param
from schemas.documents import DocumentKey, FileStat, Lane
from schemas.errors import BrokerUnavailable
from schemas.ports import Event
from schemas.status import DeadLetter, IndexCounts


class RecordingQueue:
    """A `JobQueue`; `available = False` makes it refuse everything."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.calls: list[tuple[str, list[DocumentKey], Lane]] = []
        self.vectors: list[str] = []
        self.completions: list[str] = []
        self.held_back: set[str] = set()
        self.available = True
        self.refusals = 0
        self.epoch_name: str | None = "first"

    def mark_changed(self, agent: str, documents: Sequence[DocumentKey], *, lane: Lane) -> None:
        with self.lock:
            self._check()
            self.calls.append((agent, list(documents), lane))

    def hold_back(self, agents: Collection[str], *, active: bool) -> None:
        """Record the agents with changes that are not queued yet."""
        self.held_back = self.held_back | set(agents) if active else self.held_back - set(agents)

    def request_vectors(self, agent: str) -> None:
        self._check()
        self.vectors.append(agent)

    def request_completion(self, agent: str) -> None:
        self._check()
        self.completions.append(agent)

    def epoch(self) -> str | None:
        return self.epoch_name if self.available else None

    def _check(self) -> None:
        if not self.available:
            self.refusals += 1
            raise BrokerUnavailable("nobody listens")

    def marked(self, agent: str) -> list[str]:
        """Paths marked for the agent, in order, repeats included."""
        with self.lock:
            return [key.path for owner, keys, _ in self.calls if owner == agent for key in keys]

    def clear(self) -> None:
        with self.lock:
            self.calls.clear()


class RecordingConditions:
    """A `ConditionReporter`: `open` holds by code and agent what is not over, `told` everything ever reported."""

    def __init__(self) -> None:
        self.open: dict[tuple[ConditionCode, str], Condition] = {}
        self.told: list[tuple[str, Condition]] = []

    def report(self, code: ConditionCode, *, agent: str = "*", subject: str = "", **params: Param) -> None:
        self.replace((), [Condition(code, subject, params=params)], agent=agent)

    def resolve(self, *codes: ConditionCode, agent: str = "*", subject: str = "") -> None:
        for code in codes:
            self.open.pop((code, agent), None)

    def replace(self, codes: Collection[ConditionCode], conditions: Sequence[Condition], *, agent: str) -> None:
        self.resolve(*codes, agent=agent)
        for condition in conditions:
            self.open[condition.code, agent] = condition
            self.told.append((agent, condition))


class Heard:
    """A `WatchListener`: `changes` holds agent and path of every change."""

    def __init__(self) -> None:
        self.changes: list[tuple[str, str]] = []
        self.uncertain: list[str] = []

    def on_change(self, agent: str, key: DocumentKey) -> None:
        self.changes.append((agent, key.path))

    def on_uncertain(self, agent: str, *, events_lost: bool = False) -> None:
        self.uncertain.append(agent)

    def paths(self) -> list[str]:
        return [path for _, path in self.changes]


def entered_folders(files: AgentFiles) -> set[Path]:
    """Return the folders that a scan enters, which a watcher watches."""
    found: set[Path] = set()
    files.scan(entering=lambda folder: found.add(Path(folder)))
    return found


class RecordingInbox:
    """An `EventInbox` in memory."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self.answered: list[Event] = []
        self._changed = threading.Condition()

    def put(self, event: Event) -> None:
        with self._changed:
            self._events.append(event)
            self._changed.notify()

    def take(self, timeout_seconds: float) -> Event | None:
        with self._changed:
            self._changed.wait_for(lambda: self._events, min(timeout_seconds, 0.05))
            return self._events.pop(0) if self._events else None

    def ask(self, event: Event, timeout_seconds: float) -> bool:
        asked = replace(event, ticket="ticket")
        self.put(asked)
        with self._changed:
            return self._changed.wait_for(lambda: asked in self.answered, timeout_seconds)

    def answer(self, event: Event) -> None:
        with self._changed:
            if event.ticket is not None:
                self.answered.append(event)
            self._changed.notify_all()


class RememberedFiles:
    """As much of a `StoreReader` as those need who compare it with files."""

    def __init__(self, stats: dict[DocumentKey, FileStat], *, vectors_pending: int = 0) -> None:
        self._files = [IndexedFile(key, stat, "", 1, 0.0) for key, stat in stats.items()]
        self._vectors_pending = vectors_pending
        self.letters: list[DeadLetter] = []
        self.closed = False

    def files(self) -> list[IndexedFile]:
        return self._files

    def file(self, key: DocumentKey) -> IndexedFile | None:
        return next((file for file in self._files if file.key == key), None)

    def transcript(self, key: DocumentKey) -> TranscriptPosition | None:
        """A mark at the last line end is nothing that these tests ask about."""
        return None

    def dead_letters(self) -> list[DeadLetter]:
        return self.letters

    def meta(self, name: str) -> str | None:
        return None

    def counts(self) -> IndexCounts:
        return IndexCounts(files=len(self._files), vectors_pending=self._vectors_pending)

    def close(self) -> None:
        self.closed = True


def as_reader(files: RememberedFiles | None) -> StoreReader | None:
    """The type checker's view of `RememberedFiles`."""
    return files  # type: ignore[return-value]  # only what a comparison asks for is there
