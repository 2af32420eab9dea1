"""Pending set: documents that changed and are not committed yet.

Every event marks its document. A document waits once for any number of marks. A mark made while its job runs makes it
wait once more after the job. Lua scripts make each step atomic. Lost marks lose no memory: the next comparison marks
the documents again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import redis

from memory.telemetry import tracing
from schemas.documents import DocumentKey, Lane
from schemas.ports import Pending
from workers.queue.names import Keys

#: Documents in one script call: bounds the time that the server is busy.
_SLICE = 500

#: Time of documents that are taken before all others.
FIRST_IN_LINE = 0.0

#: Documents that `MarkedBefore` names.
SOME = 64

#: Seconds after the last mark for which traces are kept.
_TRACES_KEPT_SECONDS = 86_400

_MARK = """
-- KEYS: sequence, since, waiting:live, waiting:backfill, running, agents
-- ARGV: now (seconds), lane, agent, place of the first document, document...
local order = tonumber(ARGV[4])
for i = 5, #ARGV do
  local document, lane = ARGV[i], ARGV[2]
  local number = 1
  local mark = redis.call('HGET', KEYS[1], document)
  if mark then
    local before, was = string.match(mark, '^(%d+)|(.*)$')
    number = tonumber(before) + 1
    if was == 'live' then lane = 'live' end
  end
  redis.call('HSET', KEYS[1], document, string.format('%d|%s', number, lane))
  redis.call('ZADD', KEYS[2], 'NX', ARGV[1], document)
  if redis.call('HEXISTS', KEYS[5], document) == 0 then
    if lane == 'live' then
      redis.call('ZREM', KEYS[4], document)
      redis.call('ZADD', KEYS[3], 'NX', order + i, document)
    else
      redis.call('ZADD', KEYS[4], 'NX', order + i, document)
    end
  end
end
redis.call('SADD', KEYS[6], ARGV[3])
return redis.call('ZCARD', KEYS[3])
"""

_CLAIM = """
-- KEYS: waiting, running, sequence; ARGV: job, how many
local documents = redis.call('ZRANGE', KEYS[1], 0, tonumber(ARGV[2]) - 1)
for _, document in ipairs(documents) do
  local mark = redis.call('HGET', KEYS[3], document)
  local number = mark and string.match(mark, '^(%d+)|') or '0'
  redis.call('ZREM', KEYS[1], document)
  redis.call('HSET', KEYS[2], document, ARGV[1] .. '|' .. number)
end
return documents
"""

_FINISH = """
-- KEYS: sequence, since, waiting:live, waiting:backfill, running, agents
-- ARGV: now, job, agent, give back (1) or done (0), document...
-- Returns the times of the marks that are over, as strings.
local over = {}
local order = tonumber(ARGV[1]) * 1000000
for i = 5, #ARGV do
  local document = ARGV[i]
  local claim = redis.call('HGET', KEYS[5], document)
  if claim then
    local job, number = string.match(claim, '^(.*)|(%d+)$')
    if job == ARGV[2] then
      redis.call('HDEL', KEYS[5], document)
      local mark = redis.call('HGET', KEYS[1], document)
      if mark then
        local latest, lane = string.match(mark, '^(%d+)|(.*)$')
        if latest == number and ARGV[4] == '0' then
          over[#over + 1] = redis.call('ZSCORE', KEYS[2], document)
          redis.call('HDEL', KEYS[1], document)
          redis.call('ZREM', KEYS[2], document)
        else
          redis.call('ZADD', lane == 'live' and KEYS[3] or KEYS[4], 'NX', order + i, document)
        end
      end
    end
  end
end
if redis.call('HLEN', KEYS[1]) == 0 then redis.call('SREM', KEYS[6], ARGV[3]) end
return over
"""

_RECOVER = """
-- KEYS: sequence, waiting:live, waiting:backfill, running; ARGV: now, then the jobs that are ALIVE
-- Gives back what jobs hold that are not alive. Returns how many.
local alive = {}
for i = 2, #ARGV do alive[ARGV[i]] = true end
local order, back = tonumber(ARGV[1]) * 1000000, 0
local claims = redis.call('HGETALL', KEYS[4])
for i = 1, #claims, 2 do
  local document, job = claims[i], string.match(claims[i + 1], '^(.*)|%d+$')
  if not alive[job] then
    local mark = redis.call('HGET', KEYS[1], document)
    redis.call('HDEL', KEYS[4], document)
    if mark then
      local lane = string.match(mark, '^%d+|(.*)$')
      redis.call('ZADD', lane == 'live' and KEYS[2] or KEYS[3], 'NX', order + i, document)
    end
    back = back + 1
  end
end
return back
"""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Numbers of documents that wait, by lane, and of those that jobs hold."""

    live: int
    backfill: int
    running: int


@dataclass(frozen=True, slots=True)
class MarkedBefore:
    """Documents that have waited since before some time: their number, and the first `SOME` of them."""

    count: int
    some: tuple[DocumentKey, ...] = ()


class PendingSet:
    """Marks of all agents in one namespace. Raises `redis.RedisError` if the server does not answer."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._client: Any = client  # the client's own types mix its asynchronous twin in
        self._keys = keys
        self._mark = client.register_script(_MARK)
        self._claim = client.register_script(_CLAIM)
        self._finish = client.register_script(_FINISH)
        self._recover = client.register_script(_RECOVER)

    def mark(self, agent: str, documents: Sequence[DocumentKey], *, lane: Lane, now: float) -> None:
        """Mark documents as changed at Unix time `now`. Jobs take them in the order given."""
        for start in range(0, len(documents), _SLICE):
            part = documents[start : start + _SLICE]
            # Whole microseconds: with fractions of a second, the places of two slices could overlap.
            place = round(now * 1e6) + start
            self._mark(
                keys=self._all(agent),
                args=[f"{now:.6f}", lane.value, agent, place, *(key.encode() for key in part)],
            )

    def claim(self, agent: str, *, lane: Lane, job: str, limit: int) -> list[DocumentKey]:
        """Take up to `limit` waiting documents for a job."""
        keys = [self._keys.waiting(agent, lane.value), self._keys.running(agent), self._keys.sequence(agent)]
        return [DocumentKey.decode(_text(raw)) for raw in self._claim(keys=keys, args=[job, limit])]

    def finish(self, agent: str, documents: Sequence[DocumentKey], *, job: str, now: float) -> list[float]:
        """Remove the marks of documents that a job committed.

        Return the Unix times of the oldest change of each document that is up to date now. Documents that were marked
        again meanwhile wait again.
        """
        return self._end(agent, documents, job=job, now=now, back=0)

    def give_back(self, agent: str, documents: Sequence[DocumentKey], *, job: str, now: float) -> None:
        """Let documents wait again that a job held and did not index."""
        self._end(agent, documents, job=job, now=now, back=1)

    def release(self, agent: str, *, job: str) -> list[DocumentKey]:
        """Give back all documents of a job, first in line, for its second delivery. Return them."""
        held = [
            DocumentKey.decode(_text(document))
            for document, claim in self._client.hgetall(self._keys.running(agent)).items()
            if _text(claim).rpartition("|")[0] == job
        ]
        self.give_back(agent, held, job=job, now=FIRST_IN_LINE)
        return held

    def keep_trace(self, agent: str, documents: Sequence[DocumentKey], trace: str) -> None:
        """Keep the trace of marked documents for the job that commits them."""
        key = self._keys.traces(agent)
        for start in range(0, len(documents), _SLICE):
            with self._client.pipeline(transaction=False) as pipe:
                pipe.hset(key, mapping={document.encode(): trace for document in documents[start : start + _SLICE]})
                # Workers without tracing never take them.
                pipe.expire(key, _TRACES_KEPT_SECONDS)
                pipe.execute()

    def take_traces(self, agent: str, documents: Sequence[DocumentKey]) -> list[str]:
        """Remove and return the traces of marked documents, each once; none without tracing."""
        if not tracing.is_traced() or not documents:
            return []
        names = [document.encode() for document in documents]
        with self._client.pipeline(transaction=True) as pipe:
            pipe.hmget(self._keys.traces(agent), names)
            pipe.hdel(self._keys.traces(agent), *names)
            found, _ = pipe.execute()
        return list(dict.fromkeys(_text(trace) for trace in found if trace is not None))

    def recover(self, agent: str, *, alive: Sequence[str], now: float) -> int:
        """Give back the documents of jobs that are not `alive`. Return their number."""
        keys = [
            self._keys.sequence(agent),
            self._keys.waiting(agent, Lane.LIVE),
            self._keys.waiting(agent, Lane.BACKFILL),
            self._keys.running(agent),
        ]
        return int(self._recover(keys=keys, args=[f"{now:.6f}", *alive]))

    def waiting(self, agent: str) -> Waiting:
        """Return the numbers of documents that wait, by lane, and of those that jobs hold."""
        with self._client.pipeline(transaction=False) as pipe:
            pipe.zcard(self._keys.waiting(agent, Lane.LIVE))
            pipe.zcard(self._keys.waiting(agent, Lane.BACKFILL))
            pipe.hlen(self._keys.running(agent))
            live, backfill, running = pipe.execute()
        return Waiting(int(live), int(backfill), int(running))

    def pending(self, agent: str) -> Pending:
        """Return the agent's backlog."""
        with self._client.pipeline(transaction=False) as pipe:
            pipe.hlen(self._keys.sequence(agent))
            pipe.hlen(self._keys.running(agent))
            pipe.zrange(self._keys.since(agent), 0, 0, withscores=True)
            pipe.sismember(self._keys.held_back, agent)
            documents, running, oldest, held_back = pipe.execute()
        return Pending(
            documents=int(documents),
            running=int(running),
            oldest_at=float(oldest[0][1]) if oldest else None,
            held_back=bool(held_back),
        )

    def marked_before(self, agent: str, at: float) -> MarkedBefore:
        """Return the documents marked up to Unix time `at` that still wait, the oldest mark first."""
        with self._client.pipeline(transaction=False) as pipe:
            pipe.zcount(self._keys.since(agent), "-inf", at)
            pipe.zrangebyscore(self._keys.since(agent), "-inf", at, start=0, num=SOME)
            count, some = pipe.execute()
        return MarkedBefore(int(count), tuple(DocumentKey.decode(_text(raw)) for raw in some))

    def agents(self) -> list[str]:
        """Return the agents that have marks."""
        return sorted(_text(raw) for raw in self._client.smembers(self._keys.agents))

    def _end(self, agent: str, documents: Sequence[DocumentKey], *, job: str, now: float, back: int) -> list[float]:
        over: list[float] = []
        for start in range(0, len(documents), _SLICE):
            part = [key.encode() for key in documents[start : start + _SLICE]]
            over += map(float, self._finish(keys=self._all(agent), args=[f"{now:.6f}", job, agent, back, *part]))
        return over

    def _all(self, agent: str) -> list[str]:
        keys = self._keys
        return [
            keys.sequence(agent),
            keys.since(agent),
            keys.waiting(agent, Lane.LIVE),
            keys.waiting(agent, Lane.BACKFILL),
            keys.running(agent),
            keys.agents,
        ]


def _text(raw: bytes | str) -> str:
    return raw.decode("utf-8", "surrogateescape") if isinstance(raw, bytes) else raw
