"""Pending set: documents that changed and are not committed yet.

Every event marks its document. A document waits once for any number of marks. A mark made while its job runs makes it
wait once more after the job. Lua scripts make each step atomic. Lost marks lose no memory: the next comparison marks
the documents again.

Poison messages: the message of a crashed job comes back, and `recover_crashed` counts a crash for each document that
the job held. A document with `ALONE_FROM` crashes is claimed alone, one in all processes at a
time, so that the next crash names the culprit. Counts may be lost with the broker: then they start anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import redis

from memory.telemetry import tracing
from schemas.documents import DocumentKey, Lane
from schemas.ports import Pending
from workers.queue.names import Keys

#: Documents in one script call: bounds the time that the server is busy.
_SLICE = 500

#: Documents of an agent that wait in the live lane at most. More of them (a checked-out branch, an unpacked archive)
#: wait in the backfill lane: a note saved later does not wait behind them.
LIVE_DOCUMENTS = 100

#: Crashes from which on a document or text is tried alone. A machine that is switched off twice does not reach them.
ALONE_FROM = 3

#: Seconds after which another document may be claimed alone if its job did not say that it is done.
ALONE_SECONDS = 120

#: Documents that `MarkedBefore` names.
SOME = 64

#: Seconds after the last mark for which traces are kept.
_TRACES_KEPT_SECONDS = 86_400

_MARK = """
-- KEYS: sequence, since, waiting:live, waiting:backfill, running, agents
-- ARGV: now (seconds), lane, agent, place of the first document, most documents in the live lane, document...
-- Returns the lane in which the documents wait.
local order, asked = tonumber(ARGV[4]), ARGV[2]
if asked == 'live' and redis.call('ZCARD', KEYS[3]) + #ARGV - 5 > tonumber(ARGV[5]) then asked = 'backfill' end
for i = 6, #ARGV do
  local document, lane = ARGV[i], asked
  local number = 1
  local mark = redis.call('HGET', KEYS[1], document)
  if mark then
    local before, was = string.match(mark, '^(%d+)|(.*)$')
    number = tonumber(before) + 1
    if was == 'live' then lane = 'live' end
  else
    redis.call('ZADD', KEYS[2], 'NX', ARGV[1], document)
  end
  redis.call('HSET', KEYS[1], document, string.format('%d|%s', number, lane))
  if not mark or redis.call('HEXISTS', KEYS[5], document) == 0 then
    if mark and lane == 'live' then redis.call('ZREM', KEYS[4], document) end
    redis.call('ZADD', lane == 'live' and KEYS[3] or KEYS[4], 'NX', order + i, document)
  end
end
redis.call('SADD', KEYS[6], ARGV[3])
return asked
"""

_CLAIM = """
-- KEYS: waiting, running, sequence, crashes, alone; ARGV: job, how many, crashes from which on one is claimed alone,
-- seconds for which it stays alone. Returns what the claim left ('', 'more', 'alone: ...' or 'busy'), then documents.
local documents = redis.call('ZRANGE', KEYS[1], 0, tonumber(ARGV[2]) - 1)
if #documents == 0 then return {''} end
local crashes = redis.call('HMGET', KEYS[4], unpack(documents))
local why, taken = #documents == tonumber(ARGV[2]) and 'more' or '', {}
for i, document in ipairs(documents) do
  local limit = tonumber(ARGV[3])
  if not crashes[i] or (tonumber(crashes[i]) or limit) < limit then
    taken[#taken + 1] = document
  elseif #taken > 0 then
    why = 'more'
  elseif why ~= 'busy' then
    if redis.call('SET', KEYS[5], ARGV[1], 'NX', 'EX', ARGV[4]) or redis.call('GET', KEYS[5]) == ARGV[1] then
      why, taken = 'alone: ' .. crashes[i], {document}
      break
    end
    why = 'busy'
  end
end
if #taken == 0 then return {why} end
local marks, claims = redis.call('HMGET', KEYS[3], unpack(taken)), {}
for i, document in ipairs(taken) do
  claims[#claims + 1] = document
  claims[#claims + 1] = ARGV[1] .. '|' .. (marks[i] and string.match(marks[i], '^(%d+)|') or '0')
end
redis.call('ZREM', KEYS[1], unpack(taken))
redis.call('HSET', KEYS[2], unpack(claims))
return {why == 'busy' and 'more' or why, unpack(taken)}
"""

_FINISH = """
-- KEYS: sequence, since, waiting:live, waiting:backfill, running, agents, crashes
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
if ARGV[4] == '0' then redis.call('HDEL', KEYS[7], unpack(ARGV, 5)) end
if redis.call('EXISTS', KEYS[1]) == 0 then redis.call('SREM', KEYS[6], ARGV[3]) end
return over
"""

_RECOVER = """
-- KEYS: sequence, waiting:live, waiting:backfill, running, crashes, alone
-- ARGV: place of the documents, the jobs named are alive (1) or crashed (0), job...
-- Gives back what jobs hold that are crashed, or not alive. Counts the crashes. Returns how many documents.
local named = {}
for i = 3, #ARGV do named[ARGV[i]] = true end
local order, back, crashed = tonumber(ARGV[1]), 0, ARGV[2] == '0'
local claims = redis.call('HGETALL', KEYS[4])
for i = 1, #claims, 2 do
  local document, job = claims[i], string.match(claims[i + 1], '^(.*)|%d+$')
  if (named[job] or false) == crashed then
    local mark = redis.call('HGET', KEYS[1], document)
    redis.call('HDEL', KEYS[4], document)
    if mark then
      local lane = string.match(mark, '^%d+|(.*)$')
      redis.call('ZADD', lane == 'live' and KEYS[2] or KEYS[3], 'NX', order + i, document)
    end
    if crashed and tonumber(redis.call('HGET', KEYS[5], document) or 0) then
      redis.call('HINCRBY', KEYS[5], document, 1)
    end
    if redis.call('GET', KEYS[6]) == job then redis.call('DEL', KEYS[6]) end
    back = back + 1
  end
end
return back
"""

_END_ALONE = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end"


@dataclass(frozen=True, slots=True)
class Waiting:
    """Numbers of documents that wait, by lane, and of those that jobs hold."""

    live: int
    backfill: int
    running: int

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """The lanes in which documents wait."""
        return tuple(lane for lane, count in ((Lane.LIVE, self.live), (Lane.BACKFILL, self.backfill)) if count)

    @property
    def anything(self) -> bool:
        """Return True if documents wait or run."""
        return bool(self.live or self.backfill or self.running)


@dataclass(frozen=True, slots=True)
class MarkedBefore:
    """Documents that have waited since before some time: their number, and the first `SOME` of them."""

    count: int
    some: tuple[DocumentKey, ...] = ()


@dataclass(frozen=True, slots=True)
class Claim:
    """Documents that a job has taken.

    `rest` tells what else waits in the lane: nothing (""), "more", or only documents for another job ("busy"). A
    document that was there at several crashes is claimed "alone": `crashes` is their number as text, or the look of a
    document that became a dead letter.
    """

    documents: tuple[DocumentKey, ...] = ()
    rest: str = ""
    crashes: str = ""


class PendingSet:
    """Marks of all agents in one namespace. Raises `redis.RedisError` if the server does not answer."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._client: Any = client  # the client's own types mix its asynchronous twin in
        self._keys = keys
        self._mark = client.register_script(_MARK)
        self._claim = client.register_script(_CLAIM)
        self._finish = client.register_script(_FINISH)
        self._recover = client.register_script(_RECOVER)
        self._end_alone = client.register_script(_END_ALONE)

    def mark(self, agent: str, documents: Sequence[DocumentKey], *, lane: Lane, now: float) -> Lane:
        """Mark documents as changed at Unix time `now`. Jobs take them in the order given.

        Return their lane: with more than `LIVE_DOCUMENTS` of an agent in the live lane, they wait in the other one.
        """
        if len(documents) > LIVE_DOCUMENTS:
            lane = Lane.BACKFILL
        for start, part in _slices(documents):
            # Whole microseconds: with fractions of a second, the places of two slices could overlap.
            place = round(now * 1e6) + start
            raw = self._mark(
                keys=self._all(agent),
                args=[f"{now:.6f}", lane.value, agent, place, LIVE_DOCUMENTS, *part],
            )
            lane = Lane(_text(raw))
        return lane

    def claim(self, agent: str, *, lane: Lane, job: str, limit: int) -> Claim:
        """Take up to `limit` waiting documents for a job, or a single document after several crashes."""
        keys = self._keys
        of = (keys.running(agent), keys.sequence(agent), keys.crashes(agent), keys.alone)
        why, *documents = self._claim(
            keys=[keys.waiting(agent, lane.value), *of], args=[job, limit, ALONE_FROM, ALONE_SECONDS]
        )
        rest, _, crashes = _text(why).partition(": ")
        return Claim(tuple(DocumentKey.decode(_text(raw)) for raw in documents), rest, crashes)

    def finish(self, agent: str, documents: Sequence[DocumentKey], *, job: str, now: float) -> list[float]:
        """Remove the marks of documents that a job committed.

        Return the Unix times of the oldest change of each document that is up to date now. Documents that were marked
        again meanwhile wait again.
        """
        return self._end(agent, documents, job=job, now=now, back=0)

    def give_back(self, agent: str, documents: Sequence[DocumentKey], *, job: str, now: float) -> None:
        """Let documents wait again that a job held and did not index."""
        self._end(agent, documents, job=job, now=now, back=1)

    def recover(self, agent: str, *, alive: Sequence[str], now: float) -> int:
        """Give back the documents of jobs that are not `alive`. Return their number."""
        return self._given_back(agent, f"{now * 1e6:.0f}", 1, alive)

    def recover_crashed(self, agent: str, *, job: str) -> int:
        """Give back the documents of a crashed job, first in line, and count the crash. Return their number."""
        return self._given_back(agent, "0", 0, [job])

    def count_crash(self, agent: str, name: str) -> int:
        """Count a crash of a document or a job, and return the number."""
        return int(self._client.hincrby(self._keys.crashes(agent), name, 1))

    def note_crashes(self, agent: str, name: str, value: str | int) -> None:
        """Set the crashes of a document or a job, or what is known about them."""
        self._client.hset(self._keys.crashes(agent), name, value)

    def crashes(self, agent: str, name: str) -> str:
        """Return what `note_crashes` or `count_crash` kept; empty without any."""
        return _text(self._client.hget(self._keys.crashes(agent), name) or "")

    def survived(self, agent: str, names: Sequence[str]) -> None:
        """Forget the crashes of documents or jobs."""
        self._client.hdel(self._keys.crashes(agent), *names)

    def begin_alone(self, job: str) -> bool:
        """Return True if the job may try alone what was there at several crashes; a crashed job keeps its turn."""
        if self._client.set(self._keys.alone, job, nx=True, ex=ALONE_SECONDS):
            return True
        return bool(self._client.get(self._keys.alone) == job.encode())

    def end_alone(self, job: str) -> None:
        """Let other jobs try documents alone."""
        self._end_alone(keys=[self._keys.alone], args=[job])

    def keep_trace(self, agent: str, documents: Sequence[DocumentKey], trace: str) -> None:
        """Keep the trace of marked documents for the job that commits them."""
        key = self._keys.traces(agent)
        for _, part in _slices(documents):
            self._client.hset(key, mapping=dict.fromkeys(part, trace))
        self._client.expire(key, _TRACES_KEPT_SECONDS)  # workers without tracing never take them

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

    def waiting(self, agent: str) -> Waiting:
        """Return the numbers of documents that wait, by lane, and of those that jobs hold."""
        with self._client.pipeline(transaction=False) as pipe:
            pipe.zcard(self._keys.waiting(agent, Lane.LIVE))
            pipe.zcard(self._keys.waiting(agent, Lane.BACKFILL))
            pipe.hlen(self._keys.running(agent))
            return Waiting(*map(int, pipe.execute()))

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
        keys = [*self._all(agent), self._keys.crashes(agent)]
        for _, part in _slices(documents):
            over += map(float, self._finish(keys=keys, args=[f"{now:.6f}", job, agent, back, *part]))
        return over

    def _given_back(self, agent: str, place: str, alive: int, jobs: Sequence[str]) -> int:
        sequence, _, live, backfill, running, _ = self._all(agent)
        keys = [sequence, live, backfill, running, self._keys.crashes(agent), self._keys.alone]
        return int(self._recover(keys=keys, args=[place, alive, *jobs]))

    def _all(self, agent: str) -> list[str]:
        keys = self._keys
        waiting = [keys.waiting(agent, lane) for lane in (Lane.LIVE, Lane.BACKFILL)]
        return [keys.sequence(agent), keys.since(agent), *waiting, keys.running(agent), keys.agents]


def _slices(documents: Sequence[DocumentKey]) -> Iterator[tuple[int, list[str]]]:
    """Yield the place of each slice, and its documents' names."""
    for start in range(0, len(documents), _SLICE):
        yield start, [key.encode() for key in documents[start : start + _SLICE]]


def _text(raw: bytes | str) -> str:
    return raw.decode("utf-8", "surrogateescape") if isinstance(raw, bytes) else raw
