"""Ports between packages, and the values that cross them.

Producers and workers do not import each other. A service that one package needs of the other is a protocol here. The
other package implements it, and the front door hands it over.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING, Protocol

from schemas.conditions import Condition, ConditionCode, Param
from schemas.documents import DocumentKey, Lane

if TYPE_CHECKING:
    from schemas.status import BrokerState, EndpointStatus, ProcessState


@dataclass(frozen=True, slots=True)
class Pending:
    """Backlog of an agent's index.

    `documents` counts documents that changed and are not yet committed (waiting and running);
    `oldest_at` is the Unix time of the oldest such change, None when there is none. `held_back`: producers know of
    changes that they have not queued yet, or would have to look for changes.
    """

    documents: int = 0
    running: int = 0
    oldest_at: float | None = None
    held_back: bool = False

    def oldest_seconds(self, now: float) -> float | None:
        """Return the age of the oldest change at Unix time `now`, None when there is none."""
        return round(max(0.0, now - self.oldest_at), 3) if self.oldest_at is not None else None


@dataclass(frozen=True, slots=True)
class VectorProgress:
    """Rate at which vectors join the index, in chunks a second, at Unix time `at`; 0 if unknown."""

    rate: float = 0.0
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Usage:
    """Cost of embedding with one provider and model.

    `failed` of the `requests` brought no vectors. `inputs` texts and `tokens` (as the provider counts them, else
    estimated) came back as vectors; `batched` of the tokens came through the Batch API.
    """

    provider: str
    model: str
    requests: int = 0
    failed: int = 0
    inputs: int = 0
    tokens: int = 0
    batched: int = 0


@dataclass(frozen=True, slots=True)
class SpooledUsage:
    """Usage of one request of a command, on a day (UTC). The other fields are arguments of `record_usage`."""

    usage: Usage
    agents: Mapping[str, Usage]
    queries: bool
    day: date


@dataclass(frozen=True, slots=True)
class Unanswered:
    """Request to a provider's account and model, at `address`, without an answer for `seconds`."""

    account: str
    model: str
    address: str
    seconds: float


@dataclass(frozen=True, slots=True)
class FleetNumbers:
    """Numbers of all processes of a namespace, for metrics.

    `counts` maps the name of a declared counter, then the values of its labels, to the number of all processes.
    `freshness` counts event-to-searchable times by the upper bound of their bucket (seconds; the last is infinite), and
    `freshness_sum` adds them up. `queues` are messages that wait, run or are delayed, by queue.
    """

    counts: Mapping[str, Mapping[tuple[str, ...], int]] = field(default_factory=dict)
    freshness: Mapping[float, int] = field(default_factory=dict)
    freshness_sum: float = 0.0
    queues: Mapping[str, int] = field(default_factory=dict)


class UsageRecorder(Protocol):
    """Recorder of the cost of embedding requests."""

    def record_usage(self, usage: Usage, *, agents: Mapping[str, Usage], queries: bool = False) -> None:
        """Add one request. `agents` are the shares of the agents whose texts were in it. Never raises.

        The shares' inputs and tokens add up to the request's; its count is in each of them. `queries`: it was for a
        search, not for an index.
        """


class JobQueue(Protocol):
    """Queue of changed documents, filled by producers."""

    def mark_changed(self, agent: str, documents: Sequence[DocumentKey], *, lane: Lane) -> None:
        """Mark documents as pending, and make sure that a job will read each of them.

        Several marks of one document before its job starts cause one job; a mark during its job causes exactly one
        more. Documents marked earlier are processed earlier.

        Raises:
            BrokerUnavailable: nothing was marked; the caller keeps the event.
        """

    def request_vectors(self, agent: str) -> None:
        """Request the missing vectors of chunks."""

    def request_completion(self, agent: str) -> None:
        """Request a check of the generation under construction. If it is complete, it becomes the current one."""


class ProducerQueue(JobQueue, Protocol):
    """Queue as a running producer sees it."""

    def hold_back(self, agents: Collection[str], *, active: bool) -> None:
        """Record that producers hold back changes of these agents, or, without `active`, no longer do. Never raises."""

    def epoch(self) -> str | None:
        """Return a name of the queue's data, which changes after a loss; None while the queue does not answer."""


class PendingReader:
    """Reader of the state that processes publish in the broker. Never raises: an absent broker is an answer.

    This class is the reader without a broker, and gives the answers for an unknown state.
    """

    def pending(self, agent: str) -> Pending | None:
        """Return the agent's backlog; None when the broker does not answer."""
        return None

    def backlog(self) -> Mapping[str, Pending] | None:
        """Return the backlog of each agent that has one; None when the broker does not answer."""
        return None

    def troubled(self) -> Collection[str]:
        """Return the agents that conditions are reported about."""
        return ()

    def vector_progress(self, agent: str) -> VectorProgress:
        """Return the rate at which vectors come in."""
        return VectorProgress()

    def conditions(self, agent: str) -> Sequence[Condition]:
        """Return the conditions reported about this agent, or about all of them, newest first."""
        return ()

    def processes(self) -> Sequence[ProcessState]:
        """Return the state of each process that should run; none when the broker does not answer."""
        return ()

    def broker(self) -> BrokerState:
        """Return the server of the queue; it is not reachable if it refuses or does not answer."""
        from schemas.status import BrokerState

        return BrokerState(reachable=False, private=False)

    def usage(self, agent: str, *, day: date | None = None) -> Sequence[Usage]:
        """Return the cost of embedding for this agent, by provider and model: on one day (UTC), else in total.

        Agent "*" is all agents together: there a request with texts of two agents counts once.
        """
        return ()

    def endpoint(self, account: str, model: str) -> EndpointStatus | None:
        """Return the state of the endpoint of a provider's account and model; None when it is not known."""
        return None

    def fleet(self) -> FleetNumbers | None:
        """Return the numbers of all processes together; None when the broker does not answer."""
        return None


@dataclass(frozen=True, slots=True)
class Event:
    """Hint from outside that something may have changed.

    `kind`: session-start or reconcile (compare everything), flush (documents in their quiet time are due), changed
    (these paths are due), compaction (these transcripts are due, if the settings say so), grew (these transcripts are
    due when their thresholds or their quiet time say so) or ended (the sessions of these transcripts ended, and they
    are due). With a `ticket`, its sender waits until producers have handled it (`EventInbox.ask`). `program`: agents'
    program that sent the hook. `at`: Unix time of the hook.
    """

    kind: str
    agent: str
    paths: tuple[str, ...] = field(default=())
    ticket: str | None = None
    program: str | None = None
    at: float | None = None


class EventInbox(Protocol):
    """Inbox in which `recalld emit` leaves events for the producers."""

    def put(self, event: Event) -> None:
        """Leave one event.

        Raises:
            BrokerUnavailable: the event was not left; spool it.
        """

    def take(self, timeout_seconds: float) -> Event | None:
        """Wait for one event; None after the timeout or when the broker does not answer."""

    def ask(self, event: Event, timeout_seconds: float) -> bool:
        """Leave one event and wait until it is handled; False after the timeout, or when no producer can be asked."""

    def answer(self, event: Event) -> None:
        """Report to its waiting sender that an event was handled. Never raises."""


class ConditionReporter(Protocol):
    """Recorder of conditions, and of their ends. No method raises."""

    def report(self, code: ConditionCode, *, agent: str = "*", subject: str = "", **params: Param) -> None:
        """Report a condition of an agent, or of all ("*"). Its first report counts as its beginning."""

    def resolve(self, *codes: ConditionCode, agent: str = "*", subject: str = "") -> None:
        """Report that conditions are over."""

    def replace(self, codes: Collection[ConditionCode], conditions: Sequence[Condition], *, agent: str) -> None:
        """Report all conditions with these codes that an agent has: any other with one of them is over."""
