"""Signs of life: each process says every few seconds, through the broker, that it lives and whether its threads get on.

A process that ends in order takes its sign back. So a sign that grows old means that a process is gone, frozen, or cut
off from the broker; all times are the server's, whatever the machines' clocks say.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Final

import redis
import structlog

from memory.embedding.asking import Asking
from memory.status.local_processes import born, is_the_same
from memory.status.pulses import Pulses
from schemas.ports import OutdatedState, ProcessSign, Unanswered
from schemas.settings import Settings
from schemas.version import recalld_version
from workers.queue.broker_errors import refusal
from workers.queue.connection import IMPATIENT_SECONDS, connect, namespace
from workers.queue.names import Keys

log = structlog.get_logger(__name__)

#: Seconds between two signs of life.
BEAT_SECONDS = 3.0

#: A pause longer than this was no pause of ours: the process, or the machine, stood still.
STOOD_STILL_SECONDS = 3.0

#: Seconds after which a sign from another machine is forgotten.
FORGOTTEN_AFTER_SECONDS = 3600.0

#: Seconds for which a worker of this machine that ended without a word is told of while others work.
MISSED_SECONDS = 60.0

#: Seconds between two looks of a worker at who is missed no more.
BURY_SECONDS = 15.0

_SAY: Final = """
-- KEYS: processes, heard; ARGV: process, JSON
local time = redis.call('TIME')
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('ZADD', KEYS[2], string.format('%.3f', time[1] + time[2] / 1000000), ARGV[1])
"""


class LifeSigns:
    """Says every few seconds that this process lives, from a small thread, between `start` and `stop`.

    The thread tells how the working threads are, so that it does not go on as if nothing were while they are stuck,
    what they are `asking` embedding endpoints, and whether the settings are `outdated`.
    """

    def __init__(
        self,
        settings: Settings,
        role: str,
        pulses: Pulses,
        *,
        beat_seconds: float = BEAT_SECONDS,
        asking: Asking | None = None,
        outdated: Callable[[], OutdatedState | None] = lambda: None,
    ) -> None:
        self._client: Any = connect(settings, answer_seconds=IMPATIENT_SECONDS)
        self._keys = Keys(namespace(settings))
        self._say = self._client.register_script(_SAY)
        self._role = role
        self._pulses = pulses
        self._asking = asking or Asking()
        self._beat_seconds = beat_seconds
        self._outdated = outdated
        self._host = socket.gethostname()
        self._started_at = time.time()
        self._id = f"{role}:{self._host}:{os.getpid()}:{int(self._started_at * 1000)}"
        self._stop = threading.Event()
        self._awoke: float | None = None
        self._told_of: str | None = None
        self._thread = threading.Thread(target=self._run, name="life", daemon=True)

    def __enter__(self) -> LifeSigns:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Say it for the first time, and forget the dead whose place this process takes."""
        with suppress(redis.RedisError):
            bury(self._client, self._keys, role=None if self._role == "up" else self._role)
        self._beat()
        self._thread.start()

    def stop(self) -> None:
        """Take the sign back: this process ends in order. Call it when the work is over."""
        self._pulses.close()
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        with suppress(redis.RedisError):
            _forget(self._client, self._keys, self._id)
        self._client.close()

    def _run(self) -> None:
        asked_at = buried_at = time.monotonic()
        while not self._stop.wait(self._beat_seconds):
            stood_still = time.monotonic() - asked_at - self._beat_seconds
            if stood_still > STOOD_STILL_SECONDS:
                log.info("stood_still", seconds=round(stood_still, 1))
                self._awoke = time.monotonic()
                self._pulses.forgive(stood_still)
                self._asking.forgive(stood_still)
            self._beat()
            asked_at = time.monotonic()
            if self._role == "work" and asked_at - buried_at >= BURY_SECONDS:
                buried_at = asked_at
                self._bury_workers()

    def _bury_workers(self) -> None:
        """What a dead worker had taken went back to the queue, so nobody has to do anything about it.

        With nobody else to work it stays told, and so does anybody else who died: nobody took their place.
        """
        with suppress(redis.RedisError):
            for gone in bury(self._client, self._keys, role="work", silent_seconds=MISSED_SECONDS):
                log.info("forgot_dead_worker", host=gone.host, pid=gone.pid)

    def _beat(self) -> None:
        sign = {
            "role": self._role,
            "host": self._host,
            "pid": os.getpid(),
            "born": born(os.getpid()),
            "startedAt": self._started_at,
            "awokeSeconds": time.monotonic() - self._awoke if self._awoke is not None else None,
            "stuck": self._pulses.problems(),
            "doing": self._pulses.long_steps(),
            "unanswered": [asdict(one) for one in self._asking.unanswered()],
            "version": recalld_version(),
            "outdated": asdict(outdated) if (outdated := self._outdated()) is not None else None,
        }
        try:
            self._say(keys=[self._keys.processes, self._keys.heard], args=[self._id, json.dumps(sign)])
        except redis.RedisError as error:
            self._not_said(error)
        else:
            self._told_of = None

    def _not_said(self, error: redis.RedisError) -> None:
        why = refusal(error)
        if why is None:
            log.debug("sign_of_life_not_said", error=str(error))
        elif why != self._told_of:
            log.warning("broker_refuses", error=why)
        self._told_of = why


def read_signs(client: redis.Redis, keys: Keys) -> list[ProcessSign]:
    """Everybody's last sign. Raises `redis.RedisError`."""
    return [sign for _, sign in _read(client, keys) if not _is_forgotten(sign)]


def bury(client: redis.Redis, keys: Keys, *, role: str | None, silent_seconds: float = 0.0) -> list[ProcessSign]:
    """Forget processes of this machine that are gone, of one role or of all, and those not heard of for an hour.

    Those that are gone are forgotten when they were not heard of for `silent_seconds`.

    Returns who was forgotten. Raises `redis.RedisError`.
    """
    here = socket.gethostname()
    gone = [
        (name, sign)
        for name, sign in _read(client, keys)
        if _is_forgotten(sign)
        or (
            role in (None, sign.role)
            and sign.host == here
            and sign.silent_seconds >= silent_seconds
            and not is_the_same(sign.pid, sign.born)
        )
    ]
    for name, _ in gone:
        _forget(client, keys, name)
    return [sign for _, sign in gone]


def _is_forgotten(sign: ProcessSign) -> bool:
    return sign.silent_seconds > FORGOTTEN_AFTER_SECONDS and sign.host != socket.gethostname()


def _read(client: redis.Redis, keys: Keys) -> list[tuple[str, ProcessSign]]:
    with client.pipeline(transaction=True) as pipe:
        asked: Any = pipe
        asked.time()
        asked.hgetall(keys.processes)
        asked.zrange(keys.heard, 0, -1, withscores=True)
        (seconds, micros), bodies, heard = asked.execute()
    now = seconds + micros / 1e6
    times = dict(heard)
    found = []
    for name, raw in bodies.items():
        body, at = json.loads(raw), times.get(name, 0.0)
        silent = max(0.0, now - at)
        awoke = body["awokeSeconds"]
        sign = ProcessSign(
            role=body["role"],
            host=body["host"],
            pid=body["pid"],
            born=body["born"],
            started_at=body["startedAt"],
            # Told in this machine's time, like all that status says.
            heard_at=time.time() - silent,
            silent_seconds=silent,
            awoke_seconds=awoke + silent if awoke is not None else None,
            stuck=tuple(body["stuck"]),
            # A process that was started before an upgrade does not tell.
            doing=tuple(body.get("doing", ())),
            unanswered=tuple(Unanswered(**one) for one in body.get("unanswered", ())),
            version=body.get("version"),
            outdated=OutdatedState(**outdated) if (outdated := body.get("outdated")) else None,
        )
        found.append((name.decode(), sign))
    return sorted(found, key=lambda one: (one[1].role, one[1].host, one[1].started_at))


def _forget(client: redis.Redis, keys: Keys, name: str) -> None:
    with client.pipeline(transaction=True) as pipe:
        pipe.hdel(keys.processes, name)
        pipe.zrem(keys.heard, name)
        pipe.execute()
