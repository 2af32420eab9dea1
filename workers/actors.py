"""Actors: the jobs that messages start.

A message only names an agent with work; the pending set and the index hold the work. `workers.failures` decides on what
they raise.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import dramatiq
import structlog
from dramatiq.middleware import CurrentMessage

from schemas.conditions import ConditionCode
from schemas.documents import Lane
from schemas.settings import has_agent
from workers import index_job
from workers.failure_policy import Postponed
from workers.index_job import index_turn
from workers.middleware import ENDED
from workers.queue.names import (
    COMPLETE_GENERATION,
    EMBED_PENDING,
    INDEX_PENDING,
    POLL_BATCH_JOBS,
    VECTORS_QUEUE,
)
from workers.queue.pending import Claim
from workers.runtime import Runtime
from workers.vectors_job import complete_generation, embed_turn, poll_batches

log = structlog.get_logger(__name__)

#: Milliseconds after which a running job is broken; its documents wait again.
TIME_LIMIT_MS = 600_000

#: Seconds until a job looks again at a backfill that a user paused.
PAUSED_SECONDS = 5.0

#: Conditions that a job found to be over.
Over = Collection[ConditionCode]


def declare_actors(broker: dramatiq.Broker, runtime: Runtime) -> None:
    """Declare every actor on the broker, working with `runtime`."""

    def declare(name: str, queue: str, work: Callable[[str, str, str, Claim], Over | None]) -> None:
        def run(agent: str, lane: str = queue) -> None:
            message = CurrentMessage.get_current_message()
            if message is None or not has_agent(runtime.directory, agent):
                log.warning("unknown_agent", agent=agent)
                return
            if (name, lane) == (INDEX_PENDING, Lane.BACKFILL.value) and runtime.halt(agent) == "paused":
                runtime.health.moved()  # rest is no standstill
                raise Postponed("a user paused the backfill", retry_in=PAUSED_SECONDS)
            job = str(message.message_id)
            limit = index_job.CLAIM if name == INDEX_PENDING else 0
            retried = "retries" in message.options
            claim = runtime.queue.started(name, agent, lane, job=job, retried=retried, limit=limit)
            if claim is not None:
                message.options[ENDED] = work(agent, lane, job, claim)

        # Every error is expected: one middleware handles it.
        actor = dramatiq.actor(
            actor_name=name, broker=broker, queue_name=queue, time_limit=TIME_LIMIT_MS, throws=BaseException
        )
        actor(run)

    # Both lanes share one actor: the message names the queue.
    declare(INDEX_PENDING, Lane.BACKFILL, lambda agent, lane, *more: index_turn(runtime, agent, Lane(lane), *more))
    declare(EMBED_PENDING, VECTORS_QUEUE, lambda agent, _, job, __: embed_turn(runtime, agent, job))
    declare(POLL_BATCH_JOBS, VECTORS_QUEUE, lambda agent, *_: poll_batches(runtime, agent))
    declare(COMPLETE_GENERATION, Lane.BACKFILL, lambda agent, *_: complete_generation(runtime, agent))
