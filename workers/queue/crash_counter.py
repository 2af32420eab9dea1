"""Quarantine of documents and texts that crash workers (poison messages).

The message of a crashed job comes back, so a document that exhausts the memory or crashes a library would kill one
worker after the other. So every document of a crashed job is counted. One crash changes nothing: the machine may have
been switched off. From the second crash on, a document is tried alone, one in all processes at a time, so that the next
crash names the culprit. After `MOST_DEATHS` crashes it becomes a dead letter, until its file, the settings or the
program change. A crashed round of embedding is retried in parts, down to the single text.

The counts may be lost with the broker: then they start anew.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import redis

from schemas.documents import DocumentKey
from workers.queue.names import Keys

#: Crashes of a document's jobs from which on it is tried alone.
ALONE_FROM = 2

#: Crashes after which a document is given up. A machine that is switched off a few times does not reach them.
MOST_DEATHS = 5

#: Crashes after which a text that is embedded alone is given up.
MOST_DEATHS_ALONE = 3

#: Factor by which a crashed round of embedding is reduced.
SMALLER = 8

#: Seconds after which another job may try a suspect if the turn was not given back.
TURN_SECONDS = 120

#: Seconds for which the rounds of jobs that did not come back are kept.
ROUNDS_KEPT_SECONDS = 86_400

#: `error_class` of a document that was given up.
WORKER_DIED = "WorkerDied"

_END_TURN = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end"


@dataclass(frozen=True, slots=True)
class Round:
    """Batch of texts that a job embeds: its size, the hash of the first text, and the crashes of that text alone."""

    job: str
    size: int
    first: str = ""
    deaths: int = 0


class CrashCounter:
    """Crash counts of all agents in one namespace. Raises `redis.RedisError` if the server does not answer."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._client: Any = client
        self._keys = keys
        self._end_turn = client.register_script(_END_TURN)

    def record(self, agent: str, documents: Sequence[DocumentKey]) -> None:
        """Record a crash of a job that held these documents."""
        with self._client.pipeline(transaction=False) as pipe:
            for key in documents:
                pipe.hincrby(self._keys.deaths(agent), key.encode(), 1)
            pipe.execute()

    def counts(self, agent: str) -> dict[DocumentKey, int]:
        """Return the crashes of each document."""
        found = self._client.hgetall(self._keys.deaths(agent))
        return {_key(name): int(number) for name, number in found.items()}

    def survived(self, agent: str, key: DocumentKey) -> None:
        """Clear the count of a document that was tried without a crash."""
        self._client.hdel(self._keys.deaths(agent), key.encode())

    def give_up(self, agent: str, key: DocumentKey, look: str) -> None:
        """Quarantine the document while its file, the settings and the program match `look`."""
        with self._client.pipeline(transaction=True) as pipe:
            pipe.hset(self._keys.given_up(agent), key.encode(), look)
            pipe.hdel(self._keys.deaths(agent), key.encode())
            pipe.execute()

    def given_up(self, agent: str) -> dict[DocumentKey, str]:
        """Return the quarantined documents and their `look`."""
        return {_key(name): look.decode() for name, look in self._client.hgetall(self._keys.given_up(agent)).items()}

    def suspect_again(self, agent: str, key: DocumentKey) -> None:
        """A document that was given up changed, or is to be tried again: alone, like all suspects."""
        with self._client.pipeline(transaction=True) as pipe:
            pipe.hdel(self._keys.given_up(agent), key.encode())
            pipe.hset(self._keys.deaths(agent), key.encode(), ALONE_FROM)
            pipe.execute()

    def take_turn(self, job: str) -> bool:
        """Return True if this job may try a suspect now: one of all processes at a time. A crashed job keeps it."""
        if self._client.set(self._keys.suspects, job, nx=True, ex=TURN_SECONDS):
            return True
        owner = self._client.get(self._keys.suspects)
        return owner is not None and bool(owner.decode() == job)

    def end_turn(self, job: str) -> None:
        """Give the turn to other jobs."""
        self._end_turn(keys=[self._keys.suspects], args=[job])

    def begin_round(self, agent: str, this: Round) -> None:
        """Record the batch before embedding it. A job that finds its own record crashed while embedding it."""
        key = self._keys.embedding(agent)
        with self._client.pipeline(transaction=False) as pipe:
            pipe.hset(key, this.job, json.dumps(asdict(this)))
            pipe.expire(key, ROUNDS_KEPT_SECONDS)
            pipe.execute()

    def last_round(self, agent: str, job: str) -> Round | None:
        """Return the round that the job began last and did not end."""
        raw = self._client.hget(self._keys.embedding(agent), job)
        return Round(**json.loads(raw)) if raw is not None else None

    def end_rounds(self, agent: str, job: str) -> None:
        """Remove the record: the job ended without a crash."""
        self._client.hdel(self._keys.embedding(agent), job)


def _key(raw: bytes) -> DocumentKey:
    return DocumentKey.decode(raw.decode("utf-8", "surrogateescape"))
