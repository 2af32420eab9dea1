"""Pending set: documents that changed and are not committed yet.

Every event marks its document. A document waits once for any number of marks. A mark made while its job runs makes it
wait once more after the job. Lua scripts make each step atomic, the message for a mark included. Lost marks lose no
memory: the next comparison marks the documents again.

Poison messages: the message of a crashed job comes back, and `begin` counts a crash for each document that the job
held. A document with `ALONE_FROM` crashes is claimed alone, one in all processes at a time, so that the next crash
names the culprit. Counts may be lost with the broker: then they start anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

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

#: Seconds for which the last finished work is known.
MOVED_KEPT_SECONDS = 86_400

_COMMON = """
-- KEYS of every script: since, waiting:live, waiting:backfill, running, crashes, alone, agents, moved
local SINCE, LIVE, BACKFILL, RUNNING, CRASHES, ALONE, AGENTS, MOVED = unpack(KEYS, 1, 8)

-- Returns job, lane, crashes ('' for none) and the lane of a mark that was made meanwhile ('' for none).
local function parts(claim)
  return string.match(claim, '^([^|]*)|([^|]*)|?([^|]*)|?(.*)$')
end

local function wait(document, lane, place)
  redis.call('ZADD', lane == 'live' and LIVE or BACKFILL, 'NX', place, document)
end

-- Gives back what jobs hold that are over, and counts their crashes. Returns how many documents.
local function give_back(is_over, place, crashed)
  local claims, back = redis.call('HGETALL', RUNNING), 0
  for i = 1, #claims, 2 do
    local document = claims[i]
    local job, lane, _, again = parts(claims[i + 1])
    if is_over(job) then
      redis.call('HDEL', RUNNING, document)
      wait(document, again == 'live' and again or lane, place + i)
      if crashed and tonumber(redis.call('HGET', CRASHES, document) or 0) then
        redis.call('HINCRBY', CRASHES, document, 1)
      end
      if redis.call('GET', ALONE) == job then redis.call('DEL', ALONE) end
      back = back + 1
    end
  end
  return back
end

-- Claims documents for a job: `most`, or a single one with `limit` crashes, which stays alone for `seconds`.
-- Returns what the claim left ('', 'more', 'alone: ...' or 'busy'), then documents.
local function claim(name, lane, most, limit, seconds)
  local waiting = lane == 'live' and LIVE or BACKFILL
  local documents = redis.call('ZRANGE', waiting, 0, most - 1)
  if #documents == 0 then return {''} end
  local crashes = redis.call('HMGET', CRASHES, unpack(documents))
  local why, taken, claims = #documents == most and 'more' or '', {}, {}
  local function take(i)
    taken[#taken + 1] = documents[i]
    claims[#claims + 1] = documents[i]
    claims[#claims + 1] = table.concat({name, lane, crashes[i] and '1' or '', ''}, '|')
  end
  for i = 1, #documents do
    if not crashes[i] or (tonumber(crashes[i]) or limit) < limit then
      take(i)
    elseif #taken > 0 then
      why = 'more'
    elseif why ~= 'busy' then
      if redis.call('SET', ALONE, name, 'NX', 'EX', seconds) or redis.call('GET', ALONE) == name then
        why = 'alone: ' .. crashes[i]
        take(i)
        break
      end
      why = 'busy'
    end
  end
  if #taken == 0 then return {why} end
  redis.call('ZREM', waiting, unpack(taken))
  redis.call('HSET', RUNNING, unpack(claims))
  return {why == 'busy' and 'more' or why, unpack(taken)}
end

-- Queues the message of a `Post`, given by the places of its first key and argument, unless one of its kind waits.
local function post(key, argument)
  if redis.call('SET', KEYS[key], '1', 'NX', 'EX', ARGV[argument]) then
    redis.call('HSET', KEYS[key + 1], ARGV[argument + 1], ARGV[argument + 2])
    redis.call('RPUSH', KEYS[key + 2], ARGV[argument + 1])
    if redis.call('RPUSH', KEYS[key + 3], 1) > 16 then redis.call('LTRIM', KEYS[key + 3], -16, -1) end
  end
end
"""

_MARK = """
-- More KEYS: counters, those of a post for each lane
-- ARGV: now (seconds), lane, agent, place of the first document, most documents in the live lane, and for each lane
-- the field of its counter and the arguments of its post (empty without posts), document...
-- Returns the lane in which the documents wait.
local place, asked = tonumber(ARGV[4]), ARGV[2]
if asked == 'live' and redis.call('ZCARD', LIVE) + #ARGV - 13 > tonumber(ARGV[5]) then asked = 'backfill' end
for i = 14, #ARGV do
  local document = ARGV[i]
  local fresh = redis.call('ZADD', SINCE, 'NX', ARGV[1], document) == 1
  local claim = not fresh and redis.call('HGET', RUNNING, document)
  if claim then
    local job, lane, crashes, again = parts(claim)
    if again ~= 'live' then
      redis.call('HSET', RUNNING, document, table.concat({job, lane, crashes, asked}, '|'))
    end
  elseif asked == 'live' then
    if not fresh then redis.call('ZREM', BACKFILL, document) end
    wait(document, asked, place + i)
  elseif fresh or not redis.call('ZSCORE', LIVE, document) then
    wait(document, asked, place + i)
  end
end
redis.call('SADD', AGENTS, ARGV[3])
if #KEYS > 9 then
  local live = asked == 'live'
  redis.call('HINCRBY', KEYS[9], live and ARGV[6] or ARGV[10], #ARGV - 13)
  post(live and 10 or 14, live and 7 or 11)
end
return asked
"""

_POST = """
-- More KEYS and ARGV: those of a post
post(9, 1)
"""

_BEGIN = """
-- More KEYS: queued, retrying; ARGV: job, seconds for which it is the only one of its kind (0: others may run, too),
-- it was retried (1) or not, arguments of its first claim. Returns the claim, or nothing when another job is the only
-- one of its kind.
give_back(function(job) return job == ARGV[1] end, 0, true)
local name = 'job:' .. ARGV[1]
if ARGV[3] == '1' and redis.call('GET', KEYS[10]) == ARGV[1] then redis.call('DEL', KEYS[10]) end
if ARGV[2] == '0' then
  redis.call('DEL', KEYS[9])
else
  local holder = redis.call('GET', KEYS[9])
  if holder and holder ~= name and string.sub(holder, 1, 4) == 'job:' then return false end
  redis.call('SET', KEYS[9], name, 'EX', ARGV[2])
end
if ARGV[5] == '0' then return {''} end
return claim(ARGV[1], ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7])
"""

_CLAIM = """
-- ARGV: job, lane, how many, crashes from which on one is claimed alone, seconds for which it stays alone
return claim(ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5])
"""

_FINISH = f"""
-- ARGV: now, job, give back (1) or done (0), document...
-- Returns the times of the marks that are over, as strings.
local over, place = {{}}, tonumber(ARGV[1]) * 1000000
for i = 4, #ARGV do
  local document = ARGV[i]
  local job, lane, crashes, again = parts(redis.call('HGET', RUNNING, document) or '|')
  if job == ARGV[2] then
    redis.call('HDEL', RUNNING, document)
    if again == '' and ARGV[3] == '0' then
      over[#over + 1] = redis.call('ZSCORE', SINCE, document)
      redis.call('ZREM', SINCE, document)
    else
      wait(document, again == 'live' and again or lane, place + i)
    end
    if crashes ~= '' and ARGV[3] == '0' then redis.call('HDEL', CRASHES, document) end
  elseif ARGV[3] == '0' then
    -- It was given to another job, which may have read the document before this one committed what it had read earlier.
    if job ~= '' then
      redis.call('HSET', RUNNING, document, table.concat({{job, lane, crashes, again == '' and lane or again}}, '|'))
    elseif redis.call('ZADD', SINCE, 'NX', ARGV[1], document) == 1 then
      wait(document, 'live', place + i)
    end
  end
end
if #over > 0 then redis.call('SET', MOVED, '1', 'EX', {MOVED_KEPT_SECONDS}) end
return over
"""

_RECOVER = """
-- ARGV: place of the documents, the jobs named are alive (1) or crashed (0), job...
local named, crashed = {}, ARGV[2] == '0'
for i = 3, #ARGV do named[ARGV[i]] = true end
return give_back(function(job) return (named[job] or false) == crashed end, tonumber(ARGV[1]), crashed)
"""

_AGENTS = """
-- KEYS: agents; ARGV: begin of the keys of marks. Returns the agents that have marks, and forgets the others.
local found = {}
for _, agent in ipairs(redis.call('SMEMBERS', KEYS[1])) do
  if redis.call('EXISTS', ARGV[1] .. agent) == 1 then
    found[#found + 1] = agent
  else
    redis.call('SREM', KEYS[1], agent)
  end
end
return found
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

    @classmethod
    def of(cls, answer: Sequence[bytes]) -> Self:
        """Return the claim that a script answered."""
        why, *documents = map(_text, answer)
        rest, _, crashes = why.partition(": ")
        return cls(tuple(map(DocumentKey.decode, documents)), rest, crashes)


@dataclass(frozen=True, slots=True)
class Post:
    """Message that a script queues, unless one of its kind waits.

    `queued`: key of the flag that one of its kind waits, kept for `kept_seconds`. `name` and `body`: the message as
    Dramatiq 2.2 keeps it. `counter`: field of the counter of marked documents.
    """

    queue: str
    queued: str
    kept_seconds: int
    name: str
    body: bytes
    counter: str = ""

    @property
    def args(self) -> tuple[int, str, bytes]:
        """Arguments of the script."""
        return self.kept_seconds, self.name, self.body


class PendingSet:
    """Marks of all agents in one namespace. Raises `redis.RedisError` if the server does not answer."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._client: Any = client  # the client's own types mix its asynchronous twin in
        self._keys = keys
        self._mark, self._post, self._begin, self._claim, self._finish, self._recover = (
            client.register_script(_COMMON + script) for script in (_MARK, _POST, _BEGIN, _CLAIM, _FINISH, _RECOVER)
        )
        self._agents = client.register_script(_AGENTS)
        self._end_alone = client.register_script(_END_ALONE)

    def mark(
        self,
        agent: str,
        documents: Sequence[DocumentKey],
        *,
        lane: Lane,
        now: float,
        post: Callable[[Lane], Post] | None = None,
    ) -> None:
        """Mark documents as changed at Unix time `now`. Jobs take them in the order given.

        With more than `LIVE_DOCUMENTS` of an agent in the live lane, they wait in the other one. `post` returns the
        message for their lane.
        """
        if len(documents) > LIVE_DOCUMENTS:
            lane = Lane.BACKFILL
        for start, part in _slices(documents):
            # A message of its own for each slice: a job may have taken the one for the slice before.
            posts = [post(one) for one in (Lane.LIVE, Lane.BACKFILL)] if post is not None else []
            keys = [key for one in posts for key in self._of_post(one)]
            args = [arg for one in posts for arg in (one.counter, *one.args)] or [""] * 8
            # Whole microseconds: with fractions of a second, the places of two slices could overlap.
            place = round(now * 1e6) + start
            raw = self._mark(
                keys=[*self._all(agent), self._keys.counters, *keys],
                args=[f"{now:.6f}", lane.value, agent, place, LIVE_DOCUMENTS, *args, *part],
            )
            lane = Lane(_text(raw))

    def post(self, agent: str, message: Post) -> None:
        """Queue a message unless one of its kind waits."""
        self._post(keys=[*self._all(agent), *self._of_post(message)], args=message.args)

    def begin(
        self,
        agent: str,
        *,
        lane: str,
        job: str,
        queued: str,
        retrying: str,
        only_seconds: int = 0,
        retried: bool = True,
        limit: int = 0,
    ) -> Claim | None:
        """Begin a job: later marks need a new message. Return its first claim, of up to `limit` documents.

        The documents that it held when its process crashed wait again, first in line; the crash counts for each. With
        `only_seconds` it is the only job of its kind for so long: return None if another one is.
        """
        args: list[str | int] = [job, only_seconds, int(retried), lane, limit, ALONE_FROM, ALONE_SECONDS]
        raw = self._begin(keys=[*self._all(agent), queued, retrying], args=args)
        return Claim.of(raw) if raw is not None else None

    def end(self, agent: str, *, queued: str | None) -> int:
        """End the only job of its kind; None when its time is over. Return the number of live documents that wait."""
        with self._client.pipeline(transaction=False) as pipe:
            if queued is not None:
                pipe.delete(queued)
            pipe.zcard(self._keys.waiting(agent, Lane.LIVE))
            return int(pipe.execute()[-1])

    def claim(self, agent: str, *, lane: Lane, job: str, limit: int) -> Claim:
        """Take up to `limit` waiting documents for a job, or a single document after several crashes."""
        args = [job, lane.value, limit, ALONE_FROM, ALONE_SECONDS]
        return Claim.of(self._claim(keys=self._all(agent), args=args))

    def finish(self, agent: str, documents: Sequence[DocumentKey], *, job: str, now: float) -> list[float]:
        """Remove the marks of documents that a job committed.

        Return the Unix times of the oldest change of each document that is up to date now. Documents that were marked
        again meanwhile wait again, and so do those that another job got: the commits of both may be in any order.
        """
        return self._end_claims(agent, documents, job=job, now=now, back=0)

    def give_back(self, agent: str, documents: Sequence[DocumentKey], *, job: str, now: float) -> None:
        """Let documents wait again that a job held and did not index."""
        self._end_claims(agent, documents, job=job, now=now, back=1)

    def recover(self, agent: str, *, alive: Sequence[str], now: float) -> int:
        """Give back the documents of jobs that are not `alive`. Return their number."""
        return int(self._recover(keys=self._all(agent), args=[round(now * 1e6), 1, *alive]))

    def recover_crashed(self, agent: str, *, job: str) -> int:
        """Give back the documents of a crashed job, first in line, and count the crash. Return their number."""
        return int(self._recover(keys=self._all(agent), args=[0, 0, job]))

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
            pipe.zcard(self._keys.since(agent))
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
        return sorted(_text(raw) for raw in self._agents(keys=[self._keys.agents], args=[self._keys.since("")]))

    def _end_claims(
        self, agent: str, documents: Sequence[DocumentKey], *, job: str, now: float, back: int
    ) -> list[float]:
        over: list[float] = []
        for _, part in _slices(documents):
            over += map(float, self._finish(keys=self._all(agent), args=[f"{now:.6f}", job, back, *part]))
        return over

    def _all(self, agent: str) -> list[str]:
        keys = self._keys
        waiting = [keys.waiting(agent, lane) for lane in (Lane.LIVE, Lane.BACKFILL)]
        of_agent = [keys.since(agent), *waiting, keys.running(agent), keys.crashes(agent)]
        return [*of_agent, keys.alone, keys.agents, keys.moved]

    def _of_post(self, post: Post) -> list[str]:
        keys = self._keys
        return [post.queued, keys.messages(post.queue), keys.queue(post.queue), keys.bell(post.queue)]


def _slices(documents: Sequence[DocumentKey]) -> Iterator[tuple[int, list[str]]]:
    """Yield the place of each slice, and its documents' names."""
    for start in range(0, len(documents), _SLICE):
        yield start, [key.encode() for key in documents[start : start + _SLICE]]


def _text(raw: bytes | str) -> str:
    return raw.decode("utf-8", "surrogateescape") if isinstance(raw, bytes) else raw
