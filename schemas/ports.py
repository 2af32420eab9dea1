"""The small ports that rooms hand each other.

Producers and workers are siblings and do not import each other; what one needs of the other is a
protocol here, implemented in `workers` or `producers` and handed over by the front door.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from schemas.documents import DocumentKey, Lane


@dataclass(frozen=True, slots=True)
class Pending:
    """How far an agent's index is behind.

    `documents` counts documents that changed and are not yet committed (waiting and running);
    `oldest_at` is the Unix time of the oldest such change, None when there is none.
    """

    documents: int = 0
    running: int = 0
    oldest_at: float | None = None


@dataclass(frozen=True, slots=True)
class VectorProgress:
    """How fast vectors join the index: chunks a second, as of Unix time `at`; 0 when nothing is known."""

    rate: float = 0.0
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Trouble:
    """A problem that a part reported and that is not over yet."""

    part: str
    message: str
    since: float


class JobQueue(Protocol):
    """Where producers put what changed."""

    def mark_changed(self, agent: str, documents: Sequence[DocumentKey], *, lane: Lane) -> None:
        """Mark documents as pending and see to it that a job will look at each of them.

        Several marks of one document before its job starts are one job; a mark during its job causes
        exactly one more. Documents given earlier are taken earlier.

        Raises:
            BrokerUnavailable: nothing was marked; the caller keeps the event.
        """

    def request_vectors(self, agent: str) -> None:
        """See to it that chunks without vectors get theirs."""

    def request_completion(self, agent: str) -> None:
        """See to it that a generation under construction is checked and, if whole, put in place."""


class PendingReader(Protocol):
    """What is public about the queue. Never raises: an absent broker is an answer."""

    def pending(self, agent: str) -> Pending | None:
        """How far the agent is behind; None when the broker does not answer."""

    def vector_progress(self, agent: str) -> VectorProgress:
        """How fast vectors come in."""

    def troubles(self, agent: str) -> Sequence[Trouble]:
        """What is not well and concerns this agent (or all of them), newest first."""


@dataclass(frozen=True, slots=True)
class Event:
    """A hint from outside that something may have changed. `kind`: session-start, reconcile or changed."""

    kind: str
    agent: str
    paths: tuple[str, ...] = field(default=())


class EventInbox(Protocol):
    """Where `recalld emit` leaves events and the producers take them."""

    def put(self, event: Event) -> None:
        """Leave one event.

        Raises:
            BrokerUnavailable: it was not left; spool it.
        """

    def take(self, timeout_seconds: float) -> Event | None:
        """Wait for one event; None after the timeout or when the broker does not answer."""


class TroubleReporter(Protocol):
    """Where a part says that something is wrong, until it says that it is over."""

    def report(self, part: str, message: str, *, agent: str = "*") -> None:
        """Say that a part has a problem. Never raises."""

    def resolve(self, part: str, *, agent: str = "*") -> None:
        """Say that the part's problem is over. Never raises."""
