"""Actors: the jobs that messages start.

A message only names an agent with work; the pending set and the index hold the work. `workers.failures` decides on what
they raise.
"""

from __future__ import annotations

import dramatiq
import structlog
from dramatiq.middleware import CurrentMessage

from schemas.documents import Lane
from workers.index_job import index_turn
from workers.queue.names import (
    COMPLETE_GENERATION,
    EMBED_PENDING,
    INDEX_PENDING,
    POLL_BATCH_JOBS,
    VECTORS_QUEUE,
)
from workers.runtime import Runtime
from workers.vectors_job import complete_generation as complete
from workers.vectors_job import embed_turn, poll_batches

log = structlog.get_logger(__name__)

#: Milliseconds after which a running job is broken; its documents wait again.
TIME_LIMIT_MS = 600_000


def declare_actors(broker: dramatiq.Broker, runtime: Runtime) -> None:
    """Declare every actor on the broker, working with `runtime`."""

    def begin(actor: str, agent: str, lane: str) -> str | None:
        """Return the id of this job, None if it has nothing to do."""
        message = CurrentMessage.get_current_message()
        if message is None or agent not in {known.id for known in runtime.settings.agents}:
            log.warning("unknown_agent", agent=agent)
            return None
        job = str(message.message_id)
        return job if runtime.queue.started(actor, agent, lane, job=job) else None

    # Both lanes share one actor: the message names the queue. Every error is expected: one middleware handles it.
    @dramatiq.actor(broker=broker, queue_name=Lane.BACKFILL, time_limit=TIME_LIMIT_MS, throws=BaseException)
    def index_pending(agent: str, lane: str) -> None:
        if job := begin(INDEX_PENDING, agent, lane):
            index_turn(runtime, agent, Lane(lane), job)

    @dramatiq.actor(broker=broker, queue_name=VECTORS_QUEUE, time_limit=TIME_LIMIT_MS, throws=BaseException)
    def embed_pending(agent: str) -> None:
        if job := begin(EMBED_PENDING, agent, VECTORS_QUEUE):
            embed_turn(runtime, agent, job)

    @dramatiq.actor(broker=broker, queue_name=VECTORS_QUEUE, time_limit=TIME_LIMIT_MS, throws=BaseException)
    def poll_batch_jobs(agent: str) -> None:
        if begin(POLL_BATCH_JOBS, agent, VECTORS_QUEUE):
            poll_batches(runtime, agent)

    @dramatiq.actor(broker=broker, queue_name=Lane.BACKFILL, time_limit=TIME_LIMIT_MS, throws=BaseException)
    def complete_generation(agent: str) -> None:
        if begin(COMPLETE_GENERATION, agent, Lane.BACKFILL):
            complete(runtime, agent)
