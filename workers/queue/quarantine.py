"""Quarantine of poison: documents and texts at which workers crash.

The message of a crashed job comes back. Its begin counts a crash for each document that the job held (`pending.lua`); a
job that embeds counts its own crash in advance. From `ALONE_FROM` crashes on, a document or text is tried alone, one in
all processes at a time, so that the next crash names the culprit. After `MOST_CRASHES` it is given up. Counts may be
lost with the broker: then they start anew.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from schemas.documents import DocumentKey
from workers.queue.connection import BrokerClient
from workers.queue.names import Keys

#: Crashes from which on a document or text is tried alone. A machine that is switched off twice does not reach them.
ALONE_FROM = 3

#: Seconds after which another document may be tried alone if its job did not say that it is done.
ALONE_SECONDS = 120

#: Crashes after which a document becomes a dead letter, and a text is refused.
MOST_CRASHES = 5

#: Class of the error in the dead letter of a document at which workers crashed.
WORKER_DIED = "WorkerDied"


class Verdict(Enum):
    """Treatment of a document that was there at several crashes: try it alone, give it up, or leave a dead letter."""

    TRY = "try"
    GIVE_UP = "give up"
    LEAVE = "leave"


class Quarantine:
    """Crashes of documents and texts in one namespace. Raises BrokerUnavailable."""

    def __init__(self, client: BrokerClient, keys: Keys) -> None:
        self._client: Any = client
        self._keys = keys
        self._end_trial = client.register_script(
            "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end"
        )

    # Trials alone

    def begin_trial(self, job: str) -> bool:
        """Return True if the job may try a document or text alone; a crashed job keeps its turn."""
        if self._client.set(self._keys.alone, job, nx=True, ex=ALONE_SECONDS):
            return True
        return bool(self._client.get(self._keys.alone) == job.encode())

    def end_trial(self, job: str) -> None:
        """Let other jobs try documents and texts alone."""
        self._end_trial(keys=[self._keys.alone], args=[job])

    # Documents

    def verdict(self, agent: str, document: DocumentKey, *, crashes: str, state: str, is_dead: bool) -> Verdict:
        """Return the treatment of a document that was claimed alone.

        `crashes` is that of the claim: their number, or the state that `leave` recorded. A dead letter in another
        `state` is tried again: its next crash is one of several.
        """
        if crashes.isdecimal():
            return Verdict.TRY if int(crashes) < MOST_CRASHES else Verdict.GIVE_UP
        if crashes == state and is_dead:
            return Verdict.LEAVE
        self._note(agent, document.encode(), ALONE_FROM)
        return Verdict.TRY

    def leave(self, agent: str, document: DocumentKey, *, state: str) -> None:
        """Record the state in which a document stays a dead letter."""
        self._note(agent, document.encode(), state)

    # Texts

    def begin_job(self, agent: str, job: str) -> int:
        """Count a crash of a job that embeds, in advance. Return its earlier crashes."""
        return int(self._client.hincrby(self._keys.crashes(agent), _count(job), 1)) - 1

    def set_crashes(self, agent: str, job: str, crashes: int) -> None:
        """Set the crashes of a job that embeds."""
        self._note(agent, _count(job), crashes)

    def begin_text(self, agent: str, job: str, text_hash: str) -> None:
        """Record a text before it is embedded alone."""
        self._note(agent, _text(job), text_hash)

    def last_text(self, agent: str, job: str) -> str:
        """Return the hash of the last text that a job embedded alone; empty without one."""
        text_hash = self._client.hget(self._keys.crashes(agent), _text(job))
        return text_hash.decode() if text_hash is not None else ""

    def survived(self, agent: str, job: str) -> None:
        """Forget the crashes of a job that embeds: it ends without one."""
        self._client.hdel(self._keys.crashes(agent), _count(job), _text(job))

    def _note(self, agent: str, name: str, value: str | int) -> None:
        self._client.hset(self._keys.crashes(agent), name, value)


def reason(crashes: int, *, of_text: bool = False) -> str:
    """Return the sentence of a dead letter, or of a refused text."""
    if of_text:
        return f"the worker died {crashes} times while it embedded this, at last alone"
    return (
        f"the worker died {crashes} times while it worked on this document, as when memory runs out or a library "
        "crashes; it is tried again when the file, the settings or recalld change"
    )


def _count(job: str) -> str:
    return f"job {job}"


def _text(job: str) -> str:
    return f"text of job {job}"
