"""Queue between producers, clients and workers: one message per agent and kind of work, and events for producers."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any

from memory.telemetry import tracing
from schemas.documents import DocumentKey, Lane
from schemas.metrics import CHANGES
from schemas.ports import Event
from workers.queue.broker import message
from workers.queue.connection import BrokerClient, while_away
from workers.queue.counters import field_of
from workers.queue.dramatiq_fixes import DELAYED_AT
from workers.queue.names import (
    COMPLETE_GENERATION,
    EMBED_PENDING,
    INDEX_PENDING,
    POLL_BATCH_JOBS,
    QUEUES,
    VECTORS_QUEUE,
    Keys,
)
from workers.queue.pending import Claim, PendingSet, Post

#: Seconds of a job's lease on an agent's live documents: one turn.
LIVE_JOB_SECONDS = 12

#: Seconds for which a job on live documents counts as a short one.
SHORT_JOB_SECONDS = 2.0

#: Seconds after which a "message is queued" flag expires: a lost message delays its work and never strands it.
_QUEUED_SECONDS = 3600

#: The same for messages of other kinds than indexing, which no sweeper replaces. A second one finds nothing to do.
_OTHERS_SECONDS = 60

#: Seconds by which the clocks of machines that share a broker may differ.
SKEW_SECONDS = 10.0

#: Events kept while no producer takes them. An event is a hint: losing one costs nothing but time.
MAX_WAITING = 10_000

#: Seconds that an answer is kept for a client that may be gone.
ANSWER_SECONDS = 60

_WORK = {
    (INDEX_PENDING, Lane.LIVE.value): "index what changed",
    (INDEX_PENDING, Lane.BACKFILL.value): "index a backfill",
    (EMBED_PENDING,): "fill in vectors",
    (COMPLETE_GENERATION,): "check the generation under construction",
    (POLL_BATCH_JOBS,): "poll batch jobs",
}


@while_away(hold_back=None, epoch=None, may_retry=True)
class BrokerJobQueue:
    """`schemas.ports.JobQueue` over the broker.

    The pending set is the list of work; a message only names an agent with work. So one message per agent and lane is
    enough, agents take turns, and a thousand changes cost one message. One job at a time works on an agent's live
    documents: the other threads are free for other agents.
    """

    def __init__(self, client: BrokerClient, keys: Keys) -> None:
        self._client: Any = client
        self._keys = keys
        self.pending_set = PendingSet(client, keys)

    def mark_changed(self, agent: str, documents: Sequence[DocumentKey], *, lane: Lane) -> None:
        """Mark documents as pending and queue a job for them."""
        if not documents:
            return
        trace = tracing.traceparent()
        if trace is not None:
            self.pending_set.keep_trace(agent, documents, trace)
        post = partial(self._post, INDEX_PENDING, agent)
        self.pending_set.mark(agent, documents, lane=lane, now=time.time(), post=post)

    def hold_back(self, agents: Collection[str], *, active: bool) -> None:
        """See `JobQueue.hold_back`."""
        if agents:
            (self._client.sadd if active else self._client.srem)(self._keys.held_back, *agents)

    def request_vectors(self, agent: str) -> None:
        """Queue a job for chunks without vectors."""
        self.request(EMBED_PENDING, agent)

    def request_vectors_now(self, agent: str) -> None:
        """Queue a job for chunks without vectors now, also while another one is delayed."""
        self._client.delete(self._keys.retrying(EMBED_PENDING, agent, VECTORS_QUEUE))
        self.request(EMBED_PENDING, agent)

    def request_completion(self, agent: str) -> None:
        """Queue a job that checks the generation under construction."""
        self.request(COMPLETE_GENERATION, agent)

    def request(self, actor: str, agent: str, lane: Lane = Lane.BACKFILL) -> None:
        """Queue a message unless one of its kind waits. The sweeper replaces lost ones of the pending set."""
        self.pending_set.post(agent, self._post(actor, agent, lane))

    def _post(self, actor: str, agent: str, lane: Lane) -> Post:
        indexing = actor == INDEX_PENDING
        queue = lane.value if indexing or actor == COMPLETE_GENERATION else VECTORS_QUEUE
        name, kept_seconds = str(uuid.uuid4()), _QUEUED_SECONDS if indexing else _OTHERS_SECONDS
        body_message = message(actor, queue, agent, *([queue] if indexing else []))
        body = body_message.copy(options={"redis_message_id": name}).encode()
        counter = field_of(CHANGES, lane.value) if indexing else ""
        turns = self._keys.turns(queue, agent)
        return Post(queue, self._keys.queued(actor, agent, queue), kept_seconds, name, body, counter, turns)

    def continue_indexing(self, agent: str) -> bool:
        """Queue a message for each lane in which documents of this agent wait. Return False without any."""
        lanes = self.pending_set.waiting(agent).lanes
        for lane in lanes:
            self.request(INDEX_PENDING, agent, lane)
        return bool(lanes)

    def epoch(self) -> str | None:
        """Return a name of the server's data, another one after a loss; None if the server does not answer.

        Each start counts as a loss: the server may have lost its last second.
        """
        self._client.set(self._keys.epoch, f"{time.time():.6f}", nx=True)
        value = self._client.get(self._keys.epoch)
        run = self._client.info("server").get("run_id", "")
        return f"{value.decode() if value else ''} {run}"

    def started(
        self, actor: str, agent: str, lane: str, *, job: str, retried: bool = False, limit: int = 0
    ) -> Claim | None:
        """Record that a job begins: documents marked from now on need a new message. Return its first claim.

        A redelivered message finds the documents that its first delivery held when its process died: they wait again.
        Return None if another job works on the agent's live documents: then this one has nothing to do.
        """
        queued, retrying = self._keys.queued(actor, agent, lane), self._keys.retrying(actor, agent, lane)
        only = LIVE_JOB_SECONDS if (actor, lane) == (INDEX_PENDING, Lane.LIVE) else 0
        return self.pending_set.begin(
            agent,
            lane=lane,
            job=job,
            now=time.time(),
            queued=queued,
            retrying=retrying,
            only_seconds=only,
            retried=retried,
            limit=limit,
        )

    def ended(self, agent: str, *, job: str, seconds: float, failed: bool = False) -> None:
        """End a job on an agent's live documents, `seconds` after its begin. Queue a message for those that wait.

        After `LIVE_JOB_SECONDS` another job may work on them. A `failed` job comes again anyway.
        """
        queued = self._keys.queued(INDEX_PENDING, agent, Lane.LIVE.value)
        left = self.pending_set.end(agent, job=job, queued=queued if seconds < LIVE_JOB_SECONDS - 1 else None)
        if left and not failed:
            self.request(INDEX_PENDING, agent, Lane.LIVE)

    def others_wait(self, lane: Lane) -> bool:
        """Return True if a message waits in this lane that no worker has taken."""
        return bool(self._client.exists(self._keys.queue(lane.value)))

    def live_jobs(self) -> int:
        """Return the number of jobs that work on live documents, in all processes, without those that take long."""
        return int(self._client.zcount(self._keys.live_jobs, time.time() - SHORT_JOB_SECONDS, "+inf"))

    def is_idle(self) -> bool:
        """Return True if no document of any agent waits or is indexed, and no job for vectors waits."""
        return not (self.pending_set.agents() or self._client.exists(self._keys.queue(VECTORS_QUEUE)))

    def may_retry(self, actor: str, agent: str, lane: str, *, job: str, seconds: float) -> bool:
        """Return True if a failed job should be delivered again after `seconds`: one job of each kind is."""
        key = self._keys.retrying(actor, agent, lane)
        if self._client.set(key, job, nx=True, ex=int(seconds) + 30):
            return True
        owner = self._client.get(key)
        return owner is None or owner.decode() == job

    def sweep(self, *, every_seconds: float = 0.0) -> int:
        """Repair the traces of crashed processes: flags without a message, documents held by jobs that are gone.

        One process of all does it in each period of `every_seconds`. Return the number of repairs. A job is alive while
        its message waits, runs or is delayed in the broker. A message of any kind that was delayed before the clock was
        set back is replaced.
        """
        turn_ms = int(every_seconds * 900)  # a little less: its next round comes in time
        if turn_ms and not self._client.set(self._keys.sweeper, "1", nx=True, px=turn_ms):
            if self._client.pttl(self._keys.sweeper) <= turn_ms:
                return 0
            self._client.set(self._keys.sweeper, "1", px=turn_ms)  # the server's clock was set back
        self._mend_heartbeats()
        put_right = self._replace_late()
        marked = {agent: self.pending_set.waiting(agent) for agent in self.pending_set.agents()}
        # Later than the marks: a message without a flag is not taken for a lost one.
        living = list(_messages(self._client, self._keys))
        jobs = sorted({job.id for job in living})
        queued = {(job.actor, *job.arguments) for job in living}
        for agent, waiting in marked.items():
            back = self.pending_set.recover(agent, alive=jobs, now=time.time())
            put_right += back
            for lane in self.pending_set.waiting(agent).lanes if back else waiting.lanes:
                if (INDEX_PENDING, agent, lane.value) not in queued:
                    self._client.delete(self._keys.queued(INDEX_PENDING, agent, lane.value))
                    self.request(INDEX_PENDING, agent, lane)
                    put_right += 1
        return put_right

    def _replace_late(self) -> int:
        """Queue anew the messages that were delayed before the clock was set back. Return their number.

        A worker may deliver the old one as well, when its time comes: it finds nothing to do.
        """
        replaced = 0
        for queue in QUEUES:
            delayed = self._keys.delayed_messages(queue)
            for message_id, raw in self._client.hgetall(delayed).items():
                job = _job(raw, JobState.DELAYED)
                if job.delayed_at > time.time() + SKEW_SECONDS:
                    flags = self._keys.queued, self._keys.retrying
                    self._client.delete(*(flag(job.actor, job.agent, queue) for flag in flags))
                    self.request(job.actor, job.agent, Lane.LIVE if queue == Lane.LIVE else Lane.BACKFILL)
                    self._client.hdel(delayed, message_id)
                    replaced += 1
        return replaced

    def _mend_heartbeats(self) -> None:
        """Move heartbeats of the future to the present: else a worker that died before the clock was set back lives."""
        now = time.time()
        ahead = self._client.zrangebyscore(self._keys.heartbeats, (now + SKEW_SECONDS) * 1000, "+inf")
        if ahead:
            self._client.zadd(self._keys.heartbeats, dict.fromkeys(ahead, int(now * 1000)), xx=True)


@while_away(take=None, ask=False, answer=None)
class EventQueue:
    """`schemas.ports.EventInbox` as a list in the broker."""

    def __init__(self, client: BrokerClient, keys: Keys) -> None:
        self._client: Any = client
        self._key = keys.inbox

    def put(self, event: Event) -> None:
        """Append one event. Raises BrokerUnavailable."""
        body = json.dumps({"kind": event.kind, "agent": event.agent, "paths": event.paths, "ticket": event.ticket})
        with self._client.pipeline() as pipe:
            pipe.rpush(self._key, body)
            pipe.ltrim(self._key, -MAX_WAITING, -1)
            pipe.execute()

    def take(self, timeout_seconds: float) -> Event | None:
        """Wait for one event. Return None after the timeout, or if the broker does not answer."""
        entry = self._client.blpop([self._key], timeout=timeout_seconds)
        if entry is None:
            return None
        body = json.loads(entry[1])
        ticket = body.get("ticket")
        return Event(
            kind=str(body["kind"]),
            agent=str(body["agent"]),
            paths=tuple(map(str, body["paths"])),
            ticket=str(ticket) if ticket is not None else None,
        )

    def ask(self, event: Event, timeout_seconds: float) -> bool:
        """See `EventInbox.ask`. The answer comes in a list of its own, which expires."""
        ticket = uuid.uuid4().hex
        self.put(replace(event, ticket=ticket))
        return self._client.blpop([self._answers(ticket)], timeout=max(timeout_seconds, 0.001)) is not None

    def answer(self, event: Event) -> None:
        """See `EventInbox.answer`."""
        if event.ticket is None:
            return
        with self._client.pipeline() as pipe:
            pipe.rpush(self._answers(event.ticket), "done")
            pipe.expire(self._answers(event.ticket), ANSWER_SECONDS)
            pipe.execute()

    def _answers(self, ticket: str) -> str:
        return f"{self._key}:{ticket}"


class JobState(StrEnum):
    """State of a message. A running one may also wait in a worker's memory for a thread."""

    WAITING = "waiting"
    RUNNING = "running"
    DELAYED = "delayed"


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """One message of the queue. `due_at`: Unix time at which a delayed one comes back, None for others."""

    id: str
    actor: str
    arguments: tuple[str, ...]
    state: JobState
    due_at: float | None
    delayed_at: float

    @property
    def agent(self) -> str:
        """The agent with work."""
        return self.arguments[0] if self.arguments else ""

    @property
    def work(self) -> str:
        """The work, for a person."""
        return _WORK.get((self.actor, *self.arguments[1:]), self.actor)


def queued_jobs(client: BrokerClient, keys: Keys) -> Sequence[QueuedJob]:
    """Return every message, sorted by agent and work.

    Raises:
        BrokerUnavailable: the server does not answer.
    """
    return sorted(_messages(client, keys), key=lambda job: (job.agent, job.work, job.state))


def _messages(client: Any, keys: Keys) -> Iterator[QueuedJob]:
    for queue in QUEUES:
        bodies = client.hgetall(keys.messages(queue))
        turns = {keys.turns(queue, _job(raw, JobState.WAITING).agent) for raw in bodies.values()} - {""}
        waiting = {name for place in (keys.queue(queue), *turns) for name in client.lrange(place, 0, -1)}
        for message_id, raw in bodies.items():
            yield _job(raw, JobState.WAITING if message_id in waiting else JobState.RUNNING)
        for raw in client.hvals(keys.delayed_messages(queue)):
            yield _job(raw, JobState.DELAYED)


def _job(raw: bytes, state: JobState) -> QueuedJob:
    body = json.loads(raw)
    options = body["options"]
    due = options.get("eta") if state is JobState.DELAYED else None
    return QueuedJob(
        id=body["message_id"],
        actor=str(body["actor_name"]),
        arguments=tuple(map(str, body["args"])),
        state=state,
        due_at=float(due) / 1000 if due is not None else None,
        delayed_at=options.get(DELAYED_AT, 0.0) / 1000,
    )
