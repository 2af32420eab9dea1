"""Pending set: documents that changed and are not committed yet.

Every event marks its document. A document waits once for any number of marks. A mark made while its job runs makes it
wait once more after the job. Lua scripts make each step atomic, the message for a mark included. Lost marks lose no
memory: the next comparison marks the documents again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from memory.telemetry import tracing
from schemas.documents import DocumentKey, Lane
from schemas.ports import Pending
from workers.queue.connection import BrokerClient
from workers.queue.names import Keys
from workers.queue.quarantine import ALONE_FROM, ALONE_SECONDS, Quarantine

#: Documents in one script call: bounds the time that the server is busy.
_SLICE = 500

#: Documents of an agent that wait in the live lane at most. More of them (a checked-out branch, an unpacked archive)
#: wait in the backfill lane: a note saved later does not wait behind them.
LIVE_DOCUMENTS = 100

#: Documents that `MarkedBefore` names.
SOME = 64

#: Seconds after the last mark for which traces are kept.
_TRACES_KEPT_SECONDS = 86_400

#: Seconds for which the last finished work is known.
MOVED_KEPT_SECONDS = 86_400

#: All steps in one script.
_STEPS = Path(__file__).with_name("pending.lua").read_text(encoding="utf-8")

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
    Dramatiq 2.2 keeps it. `counter`: field of the counter of marked documents. `turns`: see `Keys.turns`.
    """

    queue: str
    queued: str
    kept_seconds: int
    name: str
    body: bytes
    counter: str = ""
    turns: str = ""

    def keys(self, keys: Keys) -> dict[str, str]:
        """Return the keys that the script writes, by kind."""
        queue = self.queue
        return {
            "queued": self.queued,
            "messages": keys.messages(queue),
            "queue": keys.queue(queue),
            "bell": keys.bell(queue),
            **({"turns": self.turns} if self.turns else {}),
        }

    def arguments(self) -> dict[str, str | int]:
        """Return the arguments of the script."""
        return {
            "kept_seconds": self.kept_seconds,
            "name": self.name,
            "body": self.body.decode(),
            "counter": self.counter,
        }


class PendingSet:
    """Marks of all agents in one namespace. Raises BrokerUnavailable."""

    def __init__(self, client: BrokerClient, keys: Keys) -> None:
        self._client: Any = client  # the client's own types mix its asynchronous twin in
        self._keys = keys
        self._script = client.register_script(_STEPS)
        self.quarantine = Quarantine(client, keys)
        self._agents = client.register_script(_AGENTS)

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
            posts = {each.value: post(each) for each in (Lane.LIVE, Lane.BACKFILL)} if post is not None else {}
            raw = self._step(
                "mark",
                agent,
                part,
                keys={"counters": self._keys.counters, **self._of_posts(posts)},
                now=f"{now:.6f}",
                lane=lane.value,
                agent=agent,
                place=_place(now, start),
                most_live=LIVE_DOCUMENTS,
                posts={name: message.arguments() for name, message in posts.items()} or None,
            )
            lane = Lane(_text(raw))

    def post(self, agent: str, message: Post) -> None:
        """Queue a message unless one of its kind waits."""
        keys = self._of_posts({message.queue: message})
        self._step("post", agent, keys=keys, lane=message.queue, message=message.arguments())

    def begin(
        self,
        agent: str,
        *,
        lane: str,
        job: str,
        now: float,
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
        raw = self._step(
            "begin",
            agent,
            keys={"queued": queued, "retrying": retrying, "live_jobs": self._keys.live_jobs},
            now=f"{now:.6f}",
            job=job,
            only_seconds=only_seconds,
            retried=retried,
            lane=lane,
            limit=limit,
            alone_from=ALONE_FROM,
            alone_seconds=ALONE_SECONDS,
        )
        return Claim.of(raw) if raw is not None else None

    def end(self, agent: str, *, job: str, queued: str | None) -> int:
        """End the only job of its kind; None when its time is over. Return the number of live documents that wait."""
        with self._client.pipeline(transaction=False) as pipe:
            pipe.zrem(self._keys.live_jobs, job)
            if queued is not None:
                pipe.delete(queued)
            pipe.zcard(self._keys.waiting(agent, Lane.LIVE))
            return int(pipe.execute()[-1])

    def claim(self, agent: str, *, lane: Lane, job: str, limit: int) -> Claim:
        """Take up to `limit` waiting documents for a job, or a single document after several crashes."""
        alone: dict[str, Any] = {"alone_from": ALONE_FROM, "alone_seconds": ALONE_SECONDS}
        return Claim.of(self._step("claim", agent, job=job, lane=lane.value, limit=limit, **alone))

    def finish(self, agent: str, documents: Sequence[DocumentKey], *, job: str, now: float) -> list[float]:
        """Remove the marks of documents that a job committed.

        Return the Unix times of the oldest change of each document that is up to date now. Documents that were marked
        again meanwhile wait again, and so do those that another job got: the commits of both may be in any order.
        """
        return self._end_claims(agent, documents, job=job, now=now, back=False)

    def give_back(self, agent: str, documents: Sequence[DocumentKey], *, job: str, now: float) -> None:
        """Let documents wait again that a job held and did not index."""
        self._end_claims(agent, documents, job=job, now=now, back=True)

    def recover(self, agent: str, *, alive: Sequence[str], now: float) -> int:
        """Give back the documents of jobs that are not `alive`. Return their number."""
        return int(self._step("recover", agent, place=_place(now), alive=list(alive)))

    def recover_crashed(self, agent: str, *, job: str) -> int:
        """Give back the documents of a crashed job, first in line, and count the crash. Return their number."""
        return int(self._step("recover", agent, place="0", crashed=job))

    def drop_backfill(self, agent: str) -> int:
        """Remove the documents that wait in the backfill lane, with their marks. Return their number."""
        return int(self._step("drop", agent))

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
            traces, _ = pipe.execute()
        return list(dict.fromkeys(_text(trace) for trace in traces if trace is not None))

    def waiting(self, agent: str) -> Waiting:
        """Return the numbers of documents that wait, by lane, and of those that jobs hold."""
        with self._client.pipeline(transaction=False) as pipe:
            pipe.zcard(self._keys.waiting(agent, Lane.LIVE))
            pipe.zcard(self._keys.waiting(agent, Lane.BACKFILL))
            pipe.hlen(self._keys.running(agent))
            return Waiting(*map(int, pipe.execute()))

    def pending(self, agent: str) -> Pending:
        """Return the agent's backlog."""
        return self.backlog([agent])[agent]

    def backlog(self, agents: Sequence[str]) -> dict[str, Pending]:
        """Return the backlog of each agent, in one round trip."""
        with self._client.pipeline(transaction=False) as pipe:
            for agent in agents:
                pipe.zcard(self._keys.since(agent))
                pipe.hlen(self._keys.running(agent))
                pipe.zrange(self._keys.since(agent), 0, 0, withscores=True)
                pipe.sismember(self._keys.held_back, agent)
            answers = iter(pipe.execute())
        return {
            agent: Pending(
                documents=int(documents),
                running=int(running),
                oldest_at=float(oldest[0][1]) if oldest else None,
                held_back=bool(held_back),
            )
            for agent, documents, running, oldest, held_back in zip(
                agents, answers, answers, answers, answers, strict=True
            )
        }

    def marked_before(self, agent: str, at: float) -> MarkedBefore:
        """Return the documents marked up to Unix time `at` that still wait, the oldest mark first."""
        with self._client.pipeline(transaction=False) as pipe:
            pipe.zcount(self._keys.since(agent), "-inf", at)
            pipe.zrangebyscore(self._keys.since(agent), "-inf", at, start=0, num=SOME)
            count, some = pipe.execute()
        return MarkedBefore(int(count), tuple(DocumentKey.decode(_text(raw)) for raw in some))

    def unmarked(self, agent: str, documents: Sequence[DocumentKey]) -> list[DocumentKey]:
        """Return those of the documents that neither wait nor run."""
        names = [document.encode() for document in documents]
        times = self._client.zmscore(self._keys.since(agent), names) if names else ()
        return [document for document, time in zip(documents, times, strict=True) if time is None]

    def agents(self) -> list[str]:
        """Return the agents that have marks."""
        return sorted(_text(raw) for raw in self._agents(keys=[self._keys.agents], args=[self._keys.since("")]))

    def _end_claims(
        self, agent: str, documents: Sequence[DocumentKey], *, job: str, now: float, back: bool
    ) -> list[float]:
        times: list[float] = []
        for _, part in _slices(documents):
            over = self._step(
                "finish",
                agent,
                part,
                now=f"{now:.6f}",
                place=_place(now),
                job=job,
                back=back,
                moved_seconds=MOVED_KEPT_SECONDS,
            )
            times += map(float, over)
        return times

    def _step(
        self,
        step: str,
        of_agent: str,
        documents: Sequence[str] = (),
        /,
        *,
        keys: Mapping[str, str] | None = None,
        **arguments: object,
    ) -> Any:
        """Carry out a step of `pending.lua`, and return its answer."""
        names = self._keys
        all_keys = {
            "since": names.since(of_agent),
            "live": names.waiting(of_agent, Lane.LIVE),
            "backfill": names.waiting(of_agent, Lane.BACKFILL),
            "running": names.running(of_agent),
            "crashes": names.crashes(of_agent),
            "alone": names.alone,
            "agents": names.agents,
            "moved": names.moved,
            **(keys or {}),
        }
        given = {name: argument for name, argument in arguments.items() if argument is not None}
        head = json.dumps({"step": step, "keys": list(all_keys), **given})
        return self._script(keys=list(all_keys.values()), args=[head, *documents])

    def _of_posts(self, posts: Mapping[str, Post]) -> dict[str, str]:
        return {
            f"{kind}:{lane}": key for lane, message in posts.items() for kind, key in message.keys(self._keys).items()
        }


def _place(at: float, start: int = 0) -> str:
    """Return the place of a slice's documents in a lane, in whole microseconds.

    With fractions of a second, the places of two slices could overlap.
    """
    return str(round(at * 1e6) + start)


def _slices(documents: Sequence[DocumentKey]) -> Iterator[tuple[int, list[str]]]:
    """Yield the place of each slice, and its documents' names."""
    for start in range(0, len(documents), _SLICE):
        yield start, [key.encode() for key in documents[start : start + _SLICE]]


def _text(raw: bytes | str) -> str:
    return raw.decode("utf-8", "surrogateescape") if isinstance(raw, bytes) else raw
