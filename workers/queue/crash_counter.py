"""What was being worked on when a worker process died: it may be why.

A document that kills whoever reads it (memory that runs out, a library that crashes) would kill workers for ever: its
message comes back, and the next process dies of it. So what a dead job held is counted. One death is nobody's fault (a
machine was switched off) and changes nothing. What was there at a second one is tried alone from then on, one document
in all processes at a time, so that the next death names the culprit. One that was there too often is given up and
becomes a dead letter, until its file, the settings or the program change.
Embedding is cut down alike: the round that a process died of is tried again in parts, down to the one text.

All of it may be lost with the broker: then it is found out once more.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import redis

from schemas.documents import DocumentKey
from workers.queue.names import Keys

#: CrashCounter of a worker that a document was there at before it is tried alone.
ALONE_FROM = 2

#: The same before it is given up: a machine that is switched off some times in a row is no document's fault.
MOST_DEATHS = 5

#: The same of one text that was embedded alone.
MOST_DEATHS_ALONE = 3

#: A round of embedding that a process died of is cut down by this.
SMALLER = 8

#: Seconds after which somebody else may try a suspect though the turn was never given back.
TURN_SECONDS = 120

#: Seconds for which the rounds of jobs that never came back are remembered.
ROUNDS_KEPT_SECONDS = 86_400

#: `error_class` of a document that was given up.
WORKER_DIED = "WorkerDied"

_END_TURN = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end"


@dataclass(frozen=True, slots=True)
class Round:
    """Texts that a job embeds at once: how many at most, the hash of the first one, and how often a process died of
    that one alone."""

    job: str
    size: int
    first: str = ""
    deaths: int = 0


class CrashCounter:
    """The counts of all agents in one namespace. Raises `redis.RedisError` when the server does not answer."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._client: Any = client
        self._keys = keys
        self._end_turn = client.register_script(_END_TURN)

    def record(self, agent: str, documents: Sequence[DocumentKey]) -> None:
        """A process died while a job of it held these documents."""
        with self._client.pipeline(transaction=False) as pipe:
            for key in documents:
                pipe.hincrby(self._keys.deaths(agent), key.encode(), 1)
            pipe.execute()

    def counts(self, agent: str) -> dict[DocumentKey, int]:
        """Documents, and at how many deaths each was there."""
        found = self._client.hgetall(self._keys.deaths(agent))
        return {_key(name): int(number) for name, number in found.items()}

    def survived(self, agent: str, key: DocumentKey) -> None:
        """The document was tried, and the process lives."""
        self._client.hdel(self._keys.deaths(agent), key.encode())

    def give_up(self, agent: str, key: DocumentKey, look: str) -> None:
        """Leave the document alone for as long as it and what reads it look like this."""
        with self._client.pipeline(transaction=True) as pipe:
            pipe.hset(self._keys.given_up(agent), key.encode(), look)
            pipe.hdel(self._keys.deaths(agent), key.encode())
            pipe.execute()

    def given_up(self, agent: str) -> dict[DocumentKey, str]:
        """The documents that were given up, and what they looked like."""
        return {_key(name): look.decode() for name, look in self._client.hgetall(self._keys.given_up(agent)).items()}

    def suspect_again(self, agent: str, key: DocumentKey) -> None:
        """A document that was given up changed, or is to be tried again: alone, like all suspects."""
        with self._client.pipeline(transaction=True) as pipe:
            pipe.hdel(self._keys.given_up(agent), key.encode())
            pipe.hset(self._keys.deaths(agent), key.encode(), ALONE_FROM)
            pipe.execute()

    def take_turn(self, job: str) -> bool:
        """Whether this job may try a suspect now: of all processes, one at a time. A job that died keeps its turn."""
        if self._client.set(self._keys.suspects, job, nx=True, ex=TURN_SECONDS):
            return True
        owner = self._client.get(self._keys.suspects)
        return owner is not None and bool(owner.decode() == job)

    def end_turn(self, job: str) -> None:
        """Let others try theirs."""
        self._end_turn(keys=[self._keys.suspects], args=[job])

    def begin_round(self, agent: str, this: Round) -> None:
        """Said before texts are embedded; whoever finds it said by itself died of it."""
        key = self._keys.embedding(agent)
        with self._client.pipeline(transaction=False) as pipe:
            pipe.hset(key, this.job, json.dumps(asdict(this)))
            pipe.expire(key, ROUNDS_KEPT_SECONDS)
            pipe.execute()

    def last_round(self, agent: str, job: str) -> Round | None:
        """The round that the job began last and did not end."""
        raw = self._client.hget(self._keys.embedding(agent), job)
        return Round(**json.loads(raw)) if raw is not None else None

    def end_rounds(self, agent: str, job: str) -> None:
        """Nobody died of embedding."""
        self._client.hdel(self._keys.embedding(agent), job)


def _key(raw: bytes) -> DocumentKey:
    return DocumentKey.decode(raw.decode("utf-8", "surrogateescape"))
