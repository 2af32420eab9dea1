"""Backlog of texts to embed: two lanes, one entry for each distinct text. Pure data; the batcher locks."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from memory.store.reader import Vector
from memory.store.writer import Refusal
from schemas.documents import Lane
from schemas.errors import Terminal, Transient


class Ticket:
    """Future of the texts of one caller. Made by `EmbeddingBatcher.submit`."""

    def __init__(
        self, hashes: Sequence[str], lock: threading.Condition, forget: Callable[[Ticket, set[str]], None]
    ) -> None:
        self._lock = lock
        self._forget = forget
        self._open = set(hashes)
        self._results: dict[str, Vector | Refusal] = {}
        self._error: Transient | Terminal | None = None
        self._decided = threading.Event()
        if not self._open:
            self._decided.set()

    def wait(self, timeout_seconds: float) -> bool:
        """Wait until everything is decided; False when it is not within the time."""
        return self._decided.wait(max(0.0, timeout_seconds))

    def results(self) -> dict[str, Vector | Refusal]:
        """Return the results so far, by text hash."""
        with self._lock:
            return dict(self._results)

    def error(self) -> Transient | Terminal | None:
        """Return the reason why results are missing; None if none are, or if they may still come."""
        with self._lock:
            return self._error

    def cancel(self) -> None:
        """Forget what has not been sent yet; what is in flight still reaches the cache."""
        with self._lock:
            self._forget(self, self._open)
            self._open = set()
            self._decided.set()

    def settle(self, text_hash: str, result: Vector | Refusal | Transient | Terminal) -> None:
        """Decide one text. Called by the batcher, which holds the lock."""
        if text_hash not in self._open:
            return
        self._open.discard(text_hash)
        if isinstance(result, Transient | Terminal):
            # A refusal for good says more than a passing failure.
            if self._error is None or isinstance(result, Terminal):
                self._error = result
        else:
            self._results[text_hash] = result
        if not self._open:
            self._decided.set()


@dataclass(slots=True, eq=False)
class Entry:
    """One text, who waits for it, since when (monotonic seconds), and whose it was first."""

    text_hash: str
    text: str
    tokens: float
    lane: Lane
    since: float
    agent: str = ""
    tickets: list[Ticket] = field(default_factory=list)
    in_flight: bool = False


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Bounds of one request."""

    inputs: int
    tokens: float


class Backlog:
    """Entries by lane, first come first served within each."""

    def __init__(self) -> None:
        # OrderedDict, not dict: taking from the front of a large dict is linear in what was taken before.
        self._lanes: dict[Lane, OrderedDict[str, Entry]] = {lane: OrderedDict() for lane in Lane}
        self._tokens: dict[Lane, float] = dict.fromkeys(Lane, 0.0)

    def __len__(self) -> int:
        return sum(len(lane) for lane in self._lanes.values())

    def count(self, lane: Lane) -> int:
        """Return the number of entries in one lane."""
        return len(self._lanes[lane])

    def add(self, entry: Entry) -> None:
        """Put an entry at the end of its lane."""
        self._lanes[entry.lane][entry.text_hash] = entry
        self._tokens[entry.lane] += entry.tokens

    def remove(self, entry: Entry) -> None:
        """Forget an entry that no caller waits for."""
        if self._lanes[entry.lane].pop(entry.text_hash, None) is not None:
            self._tokens[entry.lane] -= entry.tokens

    def promote(self, entry: Entry) -> None:
        """Move an entry to the live lane."""
        self.remove(entry)
        entry.lane = Lane.LIVE
        self.add(entry)

    def oldest(self, lane: Lane) -> Entry | None:
        """Return the entry that waits longest."""
        return next(iter(self._lanes[lane].values()), None)

    def fills(self, lane: Lane, limits: BatchLimits) -> bool:
        """Return True if the lane holds at least one whole request."""
        return len(self._lanes[lane]) >= limits.inputs or self._tokens[lane] >= limits.tokens

    def cut(self, lane: Lane, limits: BatchLimits) -> list[Entry]:
        """Take the next request's entries. One entry always fits, however large."""
        batch: list[Entry] = []
        tokens = 0.0
        while len(batch) < limits.inputs and (entry := self.oldest(lane)) is not None:
            if batch and tokens + entry.tokens > limits.tokens:
                break
            self.remove(entry)
            tokens += entry.tokens
            batch.append(entry)
        return batch

    def drain(self) -> Iterator[Entry]:
        """Take everything."""
        for lane in Lane:
            while (entry := self.oldest(lane)) is not None:
                self.remove(entry)
                yield entry
