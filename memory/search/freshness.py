"""Freshness of an agent's index: the documents that wait, waiting for them, and the queue behind a circuit breaker."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import date
from typing import ParamSpec, TypeVar

from memory.status.processes import known_processes, not_watched
from memory.status.run_files import read_watch_state
from memory.store.sqlite.reader import StoreReader
from schemas.conditions import Condition, ConditionCode
from schemas.ports import Event, EventInbox, FleetNumbers, Pending, PendingReader, Usage, VectorProgress
from schemas.search import PendingState
from schemas.settings import AgentSettings, Settings
from schemas.status import BrokerState, EndpointStatus, ProcessState

#: Seconds between two looks of a search that waits for pending documents.
_PENDING_POLL_SECONDS = 0.01

#: Milliseconds that a search without `waitMs` waits for documents that were written before it.
DEFAULT_WAIT_MS = 500

#: More pending documents are a backlog.
_BACKLOG_DOCUMENTS = 20


P = ParamSpec("P")
T = TypeVar("T")


async def on_thread(threads: ThreadPoolExecutor, work: Callable[P, T], *arguments: P.args, **_: P.kwargs) -> T:
    """Run what blocks. A cancelled caller abandons it.

    Raises:
        RuntimeError: the threads are being closed.
    """
    try:
        return await asyncio.get_running_loop().run_in_executor(threads, work, *arguments)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise RuntimeError("the service is ending") from None


@dataclass(frozen=True, slots=True)
class Moment:
    """Conditions of the moment, which no kept answer holds: `pending` is None while the queue does not answer."""

    pending: Pending | None = field(default_factory=Pending)
    unwatched: Condition | None = None

    def waits(self, wait_ms: int | None, until: float) -> bool:
        """Return True if a search should wait for pending documents before `until` (monotonic time).

        A search that does not ask for it (`wait_ms` is None) does not wait for a backlog.
        """
        most = _BACKLOG_DOCUMENTS if wait_ms is None else math.inf
        return self.pending is not None and 0 < self.pending.documents <= most and time.monotonic() < until


def pending_state(pending: Pending, *, vectors: int) -> PendingState:
    """Return the backlog as answers show it; `vectors` is the number of chunks without a vector."""
    oldest = round(max(0.0, time.time() - pending.oldest_at), 3) if pending.oldest_at is not None else None
    return PendingState(documents=pending.documents, oldest_seconds=oldest, vectors=vectors)


class Freshness:
    """Freshness of one agent. `pending` reads the queue, `inbox` takes requests to flush; both may be absent."""

    def __init__(
        self,
        settings: Settings,
        agent: AgentSettings,
        *,
        pending: GuardedPendingReader | None,
        inbox: EventInbox | None,
    ) -> None:
        self._home = settings.home
        self._agent = agent
        self._pending = pending
        self._inbox = inbox
        self._vectors: tuple[object, int] | None = None

    def look(self, wait_ms: int | None, deadline: float) -> Moment:
        """Have earlier changes queued by the deadline (monotonic time), and return what is pending then.

        Producers are asked if the search says how long it waits, if they hold back changes, or if documents wait.
        """
        moment = self.moment()
        if self._inbox is None or not self._agent.sync.on_search or time.monotonic() >= deadline:
            return moment
        if (
            (pending := moment.pending) is None
            or not (wait_ms is not None or pending.held_back or pending.documents)
            or read_watch_state(self._home, self._agent.id) is None  # no producer would answer
        ):
            return moment
        self._inbox.ask(Event(kind="flush", agent=self._agent.id), deadline - time.monotonic())
        return self.moment()

    async def settled(self, moment: Moment, wait_ms: int | None, until: float, threads: ThreadPoolExecutor) -> Moment:
        """Wait until the documents that were pending at a moment are indexed; return what is pending then."""
        while moment.waits(wait_ms, until):
            await asyncio.sleep(_PENDING_POLL_SECONDS)
            moment = await on_thread(threads, self.moment)
        return moment

    def moment(self) -> Moment:
        """Return what is pending now, and the reason why changed files are not noticed."""
        if self._pending is None:
            return Moment()
        pending = self._pending.pending(self._agent.id)
        return Moment(pending, self._pending.unwatched() if pending is not None else None)

    def vectors_pending(self, reader: StoreReader, revision: object) -> int:
        """Return the number of chunks whose vectors are to come, counted once at each revision.

        A revision is a `StoreReader.change_token`.
        """
        if self._agent.provider == "none":
            return 0
        known = self._vectors
        if known is None or known[0] != revision:
            self._vectors = known = revision, reader.vectors_pending()
        return known[1]


#: Seconds for which the circuit stays open after a queue that did not answer.
OPEN_SECONDS = 2.0

#: Seconds for which searches keep the state of the watching processes: heartbeats come every three.
SIGNS_KEPT_SECONDS = 3.0


class GuardedPendingReader:
    """`PendingReader` with a circuit breaker in front of another one; without another one it knows nothing.

    A request to a broker that does not answer takes a tenth of a second or more. While the circuit is open, requests
    get the answer for "unknown" at once.
    """

    def __init__(self, reader: PendingReader | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._guarded = reader
        self._clock = clock
        self._open_until = 0.0
        self._unwatched: tuple[float, Condition | None] = (0.0, None)

    @property
    def _reader(self) -> PendingReader | None:
        """Return the guarded reader; None while the circuit is open."""
        return self._guarded if self._clock() >= self._open_until else None

    def pending(self, agent: str) -> Pending | None:
        """Return the agent's pending documents; None while the queue does not answer, which opens the circuit."""
        found = reader.pending(agent) if (reader := self._reader) else None
        if found is None and reader is not None:
            self._open_until = self._clock() + OPEN_SECONDS
        return found

    def vector_progress(self, agent: str) -> VectorProgress:
        """Return the progress of embeddings."""
        return reader.vector_progress(agent) if (reader := self._reader) else VectorProgress()

    def conditions(self, agent: str) -> Sequence[Condition]:
        """Return the reported conditions."""
        return reader.conditions(agent) if (reader := self._reader) else ()

    def processes(self) -> Sequence[ProcessState]:
        """Return the states of the processes."""
        return reader.processes() if (reader := self._reader) else ()

    def broker(self) -> BrokerState | None:
        """Return the server's facts. They are read in spite of an open circuit."""
        return self._guarded.broker() if self._guarded else None

    def refusal(self) -> str | None:
        """Return the reason why an answering queue takes nothing new; None if it does, or does not answer."""
        facts = reader.broker() if (reader := self._reader) else None
        return None if facts is None or facts.writable else facts.warning or "the broker takes nothing new"

    def unwatched(self) -> Condition | None:
        """Return the reason why changed files are not noticed, kept for some seconds."""
        now = self._clock()
        if now >= self._unwatched[0]:
            if (refusal := self.refusal()) is not None:
                found: Condition | None = Condition(ConditionCode.CHANGES_UNSEEN, params={"reason": refusal})
            else:
                found = not_watched(known_processes(self, wait=None))
            self._unwatched = now + SIGNS_KEPT_SECONDS, found
        return self._unwatched[1]

    def usage(self, agent: str, *, day: date | None = None) -> Sequence[Usage]:
        """Return the usage of embeddings."""
        return reader.usage(agent, day=day) if (reader := self._reader) else ()

    def endpoint(self, account: str, model: str) -> EndpointStatus | None:
        """Return the state of an endpoint."""
        return reader.endpoint(account, model) if (reader := self._reader) else None

    def fleet(self) -> FleetNumbers | None:
        """Return the counts of all processes."""
        return reader.fleet() if (reader := self._reader) else None
