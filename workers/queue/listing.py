"""What is in the queue, in words."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import redis

from schemas.documents import Lane
from workers.queue.names import COMPLETE_GENERATION, EMBED_PENDING, INDEX_PENDING, QUEUES, Keys

_WORK = {
    (INDEX_PENDING, Lane.LIVE.value): "index what changed",
    (INDEX_PENDING, Lane.BACKFILL.value): "index a backfill",
    (EMBED_PENDING, ""): "fill in vectors",
    (COMPLETE_GENERATION, ""): "check the generation under construction",
}


class JobState(StrEnum):
    """What a message does. A running one may also wait in a worker's memory for its turn."""

    WAITING = "waiting"
    RUNNING = "running"
    DELAYED = "delayed"


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """One message. `due_at` (Unix seconds) is when a delayed one comes back, None for the others."""

    agent: str
    work: str
    state: JobState
    due_at: float | None = None


def queued_jobs(client: redis.Redis, keys: Keys) -> Sequence[QueuedJob]:
    """Every message, by agent and work.

    Raises:
        redis.RedisError: the server does not answer.
    """
    found: list[QueuedJob] = []
    server: Any = client
    for queue in QUEUES:
        waiting = set(server.lrange(f"{keys.dramatiq}:{queue}", 0, -1))
        for message_id, raw in server.hgetall(keys.messages(queue)).items():
            state = JobState.WAITING if message_id in waiting else JobState.RUNNING
            found.append(_job(raw, state))
        found += [_job(raw, JobState.DELAYED) for raw in server.hvals(keys.delayed_messages(queue))]
    return sorted(found, key=lambda job: (job.agent, job.work, job.state))


def _job(raw: bytes, state: JobState) -> QueuedJob:
    body = json.loads(raw)
    agent, lane = [*map(str, body["args"]), "", ""][:2]
    work = _WORK.get((body["actor_name"], lane), str(body["actor_name"]))
    eta = body["options"].get("eta") if state is JobState.DELAYED else None
    return QueuedJob(agent, work, state, float(eta) / 1000 if eta is not None else None)
