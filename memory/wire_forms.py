"""What stores and queue say, in the form in which status and the owner's views tell it. One place for every door."""

from __future__ import annotations

from memory.store.reader import DeadLetterRow, IndexCounts
from schemas.overview import AgentDeadLetter
from schemas.ports import EndpointState, IndexFigures, Pending
from schemas.status import DeadLetter, EndpointStatus, QueueState


def dead_letter(row: DeadLetterRow) -> DeadLetter:
    """A document that could not be indexed."""
    return DeadLetter(
        source=row.key.source,
        path=row.key.path,
        reason=row.reason,
        error_class=row.error_class,
        attempts=row.attempts,
        first_at=row.first_at,
        last_at=row.last_at,
    )


def agent_dead_letter(agent: str, row: DeadLetterRow) -> AgentDeadLetter:
    """A document that could not be indexed, and whose it is."""
    return AgentDeadLetter(agent=agent, **dead_letter(row).model_dump())


def queue_state(pending: Pending | None, *, now: float) -> QueueState:
    """What waits at Unix time `now`; None is a broker that does not answer."""
    if pending is None:
        return QueueState(reachable=False)
    oldest = max(0.0, now - pending.oldest_at) if pending.oldest_at is not None else None
    return QueueState(
        pending=pending.documents,
        running=pending.running,
        oldest_seconds=round(oldest, 3) if oldest is not None else None,
    )


def endpoint_status(state: EndpointState | None) -> EndpointStatus | None:
    """Whether requests to the provider may leave."""
    if state is None:
        return None
    return EndpointStatus(condition=state.condition, until=state.until, reason=state.reason, since=state.since)


def index_figures(counts: IndexCounts, *, dead_letters: int) -> IndexFigures:
    """Return an index's counts as they are published."""
    return IndexFigures(
        files=counts.files,
        vectors_ready=counts.vectors_ready,
        vectors_pending=counts.vectors_pending,
        dead_letters=dead_letters,
        last_commit_at=counts.last_commit_at,
    )
