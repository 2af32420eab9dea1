"""Conditions, progress and heartbeats that processes publish in the broker."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from typing import Any

import structlog

from memory.redaction import redact
from schemas.conditions import HOLD_UP_VECTORS, Condition, ConditionCode, Param
from schemas.ports import FleetNumbers, Pending, PendingReader, Usage, VectorProgress
from schemas.status import BrokerState, EndpointCondition, EndpointStatus, ProcessState
from workers.health.heartbeat import BEAT_SECONDS, SILENT_SECONDS, Beat, process_states, read_beats
from workers.health.rate_limit import Account
from workers.queue.connection import BrokerAway, BrokerClient, broker_facts, while_away
from workers.queue.counters import FRESHNESS_BUCKETS, FleetCounters
from workers.queue.names import QUEUES, Keys
from workers.queue.pending import MOVED_KEPT_SECONDS, MarkedBefore, PendingSet

log = structlog.get_logger(__name__)

#: Seconds over which the published rate is averaged, with exponentially less weight for older vectors.
_RATE_SECONDS = 20.0

#: Seconds without a vector after which the rate is measured anew.
_RATE_PAUSE_SECONDS = 30.0


#: Ends of workers at their memory limit that are a condition, if they come within so many seconds.
MEMORY_ENDS, MEMORY_SECONDS = 3, 600


@while_away(
    others=None,
    stalled_seconds=0.0,
    vector_progress=VectorProgress(),
    held_up={},
    troubled=(),
    conditions=(),
    usage=(),
    processes=(),
)
class HealthStore(PendingReader):
    """`PendingReader` and `ConditionReporter` over the broker.

    Without the broker, writes are dropped and reads return None or nothing.
    """

    def __init__(self, client: BrokerClient, keys: Keys, *, counters: FleetCounters | None = None) -> None:
        self._client: Any = client
        self._keys = keys
        self._pending_set = PendingSet(client, keys)
        self._said: dict[tuple[str, str], Mapping[str, Param]] = {}
        #: Counters of this process, summed in the broker.
        self.counters = counters or FleetCounters(client, keys)

    def pending(self, agent: str) -> Pending | None:
        """Return the agent's backlog; None if the broker does not answer."""
        return self._pending_set.pending(agent)

    def marked_before(self, agent: str, at: float) -> MarkedBefore | None:
        """Return the documents marked until Unix time `at` that still wait; None if the broker does not answer."""
        return self._pending_set.marked_before(agent, at)

    def stalled_seconds(self) -> float:
        """Return the seconds for which work has waited while no worker finished any; 0 without the broker.

        Uncommitted documents count as waiting work, delayed messages (a provider cools down) do not.
        """
        pending = self._pending_set.backlog(self._pending_set.agents()).values()
        waits = [of_agent.oldest_at for of_agent in pending if of_agent.oldest_at is not None]
        for queue in QUEUES:
            messages = self._client.hvals(self._keys.messages(queue))
            waits += [json.loads(raw)["message_timestamp"] / 1000 for raw in messages]
        if not waits:
            return 0.0
        seconds, micros = self._client.time()
        waiting_seconds = float(seconds + micros / 1e6 - min(waits))
        left = self._client.pttl(self._keys.moved) / 1000
        return max(0.0, min(waiting_seconds, MOVED_KEPT_SECONDS - left) if left > 0 else waiting_seconds)

    def take_step(self, account: str, model: str, step: str, arguments: Sequence[float | str] = ()) -> None:
        """Take a step of a provider's account (`workers.health.rate_limit`)."""
        Account(self._client, account, model).step(step, *arguments)

    def vector_progress(self, agent: str) -> VectorProgress:
        """Return the rate of new vectors."""
        rate, at = self._client.hmget(self._keys.progress(agent), "rate", "at")
        return VectorProgress(float(rate), float(at)) if rate and at else VectorProgress()

    def record_vectors(self, agent: str, *, count: int, seconds: float) -> None:
        """Record `count` new vectors in the index, after `seconds` of work on them.

        The rate covers all workers: it divides by the time since the previous report, not by this worker's own time.
        """
        self.moved()
        before, now = self.vector_progress(agent), time.time()
        since = max(now - before.at, 1e-3)
        if before.rate <= 0 or since > _RATE_PAUSE_SECONDS:
            rate = count / max(seconds, 1e-3)
        else:
            weight = math.exp(-since / _RATE_SECONDS)
            rate = weight * before.rate + (1 - weight) * count / since
        self._client.hset(self._keys.progress(agent), mapping={"rate": f"{rate:.3f}", "at": f"{now:.3f}"})

    def backlog(self) -> Mapping[str, Pending] | None:
        """Return the backlog of each agent that has one; None if the broker does not answer."""
        return self._pending_set.backlog(self._pending_set.agents())

    def troubled(self) -> Collection[str]:
        """Return the agents that conditions are reported about; nothing without the broker."""
        agents = sorted(raw.decode() for raw in self._client.smembers(self._keys.troubled))
        with self._client.pipeline(transaction=False) as pipe:
            for agent in agents:
                pipe.exists(self._keys.conditions(agent))
            return [agent for agent, exists in zip(agents, pipe.execute(), strict=True) if exists]

    def held_up(self, agents: Sequence[str]) -> dict[str, Condition]:
        """Return the condition that holds up the vectors of each agent, of those that have one; one round trip."""
        with self._client.pipeline(transaction=False) as pipe:
            for agent in agents:
                pipe.hvals(self._keys.conditions(agent))
            conditions = {agent: _held_up(bodies) for agent, bodies in zip(agents, pipe.execute(), strict=True)}
        return {agent: condition for agent, condition in conditions.items() if condition is not None}

    def moved(self) -> None:
        """Record that a batch of vectors was finished. `PendingSet.finish` does it for documents."""
        self._client.set(self._keys.moved, "1", ex=MOVED_KEPT_SECONDS)

    def conditions(self, agent: str, *, reported_since: float = 0.0) -> Sequence[Condition]:
        """Return the conditions of this agent and of all agents reported since a Unix time, newest first."""
        bodies = [raw for scope in (agent, "*") for raw in self._client.hvals(self._keys.conditions(scope))]
        conditions = [
            *filter(None, (_read(raw, reported_since=reported_since) for raw in bodies)),
            *self._out_of_memory(),
        ]
        return sorted(conditions, key=lambda condition: -(condition.since or 0.0))

    def note_out_of_memory(self, limit: str) -> None:
        """Record that a worker ends at its memory limit. Several such ends within minutes are a condition."""
        self._client.lpush(self._keys.out_of_memory, json.dumps([time.time(), limit]))
        self._client.ltrim(self._keys.out_of_memory, 0, MEMORY_ENDS - 1)
        self._client.expire(self._keys.out_of_memory, MEMORY_SECONDS)

    def _out_of_memory(self) -> Iterator[Condition]:
        ends = [json.loads(raw) for raw in self._client.lrange(self._keys.out_of_memory, 0, MEMORY_ENDS - 1)]
        if len(ends) == MEMORY_ENDS and time.time() - ends[-1][0] < MEMORY_SECONDS:
            params: dict[str, Param] = {"ends": MEMORY_ENDS, "minutes": MEMORY_SECONDS // 60, "limit": ends[0][1]}
            yield Condition(ConditionCode.WORKERS_OUT_OF_MEMORY, since=ends[-1][0], params=params)

    def report(self, code: ConditionCode, *, agent: str = "*", subject: str = "", **params: Param) -> None:
        """Report a condition; its first report is its beginning. Secrets are masked."""
        self._put([Condition(code, subject, params=params)], agent)

    def resolve(self, *codes: ConditionCode, agent: str = "*", subject: str = "") -> None:
        """Remove conditions, in one command."""
        self._over([_field(code, subject) for code in codes], agent)

    def replace(self, codes: Collection[str], conditions: Sequence[Condition], *, agent: str) -> None:
        """Report conditions of an agent, and remove its other ones with these codes (or "code subject")."""
        fields = [field.decode() for field in self._client.hkeys(self._keys.conditions(agent))]
        new_fields = self._put(conditions, agent)
        obsolete = [
            field for field in fields if (field in codes or field.split(" ")[0] in codes) and field not in new_fields
        ]
        self._over(obsolete, agent)

    def _put(self, conditions: Sequence[Condition], agent: str) -> Collection[str]:
        """Write conditions, and return their fields. Raises BrokerAway."""
        masked = {_field(condition.code, condition.subject): condition for condition in map(_masked, conditions)}
        for field, condition in masked.items():
            if self._said.get((agent, field)) != condition.params:
                log.warning(
                    "condition", code=condition.code.value, subject=condition.subject, agent=agent, **condition.params
                )
            self._said[(agent, field)] = condition.params
        if masked:
            key, now = self._keys.conditions(agent), time.time()
            before = dict(zip(masked, self._client.hmget(key, list(masked)), strict=True))
            since = {field: json.loads(raw).get("since") for field, raw in before.items() if raw}
            bodies = {
                field: json.dumps({**condition.body(), "since": since.get(field) or now, "at": now})
                for field, condition in masked.items()
            }
            self._client.hset(key, mapping=bodies)
            if agent != "*":
                self._client.sadd(self._keys.troubled, agent)
        return masked.keys()

    def _over(self, fields: Sequence[str], agent: str) -> None:
        for field in fields:
            self._said.pop((agent, field), None)
        if fields and self._client.hdel(self._keys.conditions(agent), *fields):
            log.info("conditions_over", conditions=fields, agent=agent)

    def usage(self, agent: str, *, day: date | None = None, queries: bool = True) -> Sequence[Usage]:
        """Return the usage of an agent (see `FleetCounters.usage`); nothing without the broker."""
        return self.counters.usage(agent, day=day, queries=queries)

    def processes(self) -> Sequence[ProcessState]:
        """Return the states of all processes; none if the broker takes no heartbeats."""
        beats = read_beats(self._client, self._keys)
        silent = any(beat.silent_seconds > 2 * BEAT_SECONDS for beat in beats)
        return () if silent and not broker_facts(self._client).writable else process_states(beats)

    def broker(self) -> BrokerState:
        """Return the facts of the server that holds the queue, or its refusal."""
        try:
            return broker_facts(self._client)
        except BrokerAway as error:
            refusal = error.refusal
            return BrokerState(reachable=False, private=False, warning=refusal, writable=refusal is None)

    def endpoint(self, account: str, model: str) -> EndpointStatus | None:
        """Return the state of a provider's account, with a request that has waited long for its answer.

        None without an account, and without the broker.
        """
        if not account:
            return None
        state = Account(self._client, account, model).status()
        return _unanswered(state, read_beats(self._client, self._keys), account, model)

    def fleet(self) -> FleetNumbers | None:
        """Return the counts of all processes; None if the broker does not answer."""
        fresh = self._client.hgetall(self._keys.freshness())
        with self._client.pipeline(transaction=False) as pipe:
            for queue in QUEUES:
                pipe.hlen(self._keys.messages(queue))
                pipe.hlen(self._keys.delayed_messages(queue))
            lengths = pipe.execute()
        return FleetNumbers(
            counts=self.counters.read(),
            freshness={bound: int(fresh.get(str(bound).encode(), 0)) for bound in (*FRESHNESS_BUCKETS, math.inf)},
            freshness_sum=float(fresh.get(b"sum", 0.0)),
            queues={queue: int(sum(lengths[2 * i : 2 * i + 2])) for i, queue in enumerate(QUEUES)},
        )


def _field(code: ConditionCode, subject: str) -> str:
    """Return the field of a condition in its agent's hash."""
    return f"{code} {redact(subject)}" if subject else code.value


def _masked(condition: Condition) -> Condition:
    params = {name: redact(value) if isinstance(value, str) else value for name, value in condition.params.items()}
    return replace(condition, subject=redact(condition.subject), params=params)


def _read(raw: bytes, *, reported_since: float = 0.0) -> Condition | None:
    """Parse a condition; None if another version wrote it, or if it was reported earlier."""
    try:
        body = json.loads(raw)
        return Condition.of(body) if body["at"] >= reported_since else None
    except (KeyError, TypeError, ValueError):
        return None


def _held_up(bodies: Iterable[bytes]) -> Condition | None:
    """Return the condition that holds up the vectors, if any."""
    conditions = filter(None, map(_read, bodies))
    return next((condition for condition in conditions if condition.code in HOLD_UP_VECTORS), None)


def _unanswered(state: EndpointStatus, beats: Sequence[Beat], account: str, model: str) -> EndpointStatus:
    """Return the state with the longest unanswered request of a living process."""
    if state.condition not in {EndpointCondition.OK, EndpointCondition.FAILING}:
        return state
    waits = [
        (request.seconds + beat.silent_seconds, request.address)
        for beat in beats
        if beat.silent_seconds <= SILENT_SECONDS
        for request in beat.unanswered
        if (request.account, request.model) == (account, model)
    ]
    if not waits:
        return state
    seconds, address = max(waits)
    waiting = EndpointCondition.WAITING if state.condition is EndpointCondition.OK else state.condition
    return replace(
        state, condition=waiting, reason=f"{address} has not answered a request", since=time.time() - seconds
    )
