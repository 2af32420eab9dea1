"""What waits to be embedded: two lanes, one entry for each distinct text. Pure data; the batcher locks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from schemas.documents import Lane

if TYPE_CHECKING:
    from memory.embedding.tickets import Ticket


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
    """What one request may hold."""

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
        """Entries waiting in one lane."""
        return len(self._lanes[lane])

    def add(self, entry: Entry) -> None:
        """Put an entry at the end of its lane."""
        self._lanes[entry.lane][entry.text_hash] = entry
        self._tokens[entry.lane] += entry.tokens

    def remove(self, entry: Entry) -> None:
        """Forget an entry that nobody waits for."""
        if self._lanes[entry.lane].pop(entry.text_hash, None) is not None:
            self._tokens[entry.lane] -= entry.tokens

    def promote(self, entry: Entry) -> None:
        """Move an entry to the live lane."""
        self.remove(entry)
        entry.lane = Lane.LIVE
        self.add(entry)

    def oldest(self, lane: Lane) -> Entry | None:
        """The entry that waits longest."""
        return next(iter(self._lanes[lane].values()), None)

    def fills(self, lane: Lane, limits: BatchLimits) -> bool:
        """Whether the lane holds at least one whole request."""
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
