"""Heartbeats of processes through the broker, with the state of their threads.

A process that ends in order removes its heartbeat. So an old heartbeat means that the process is gone, frozen, or cut
off from the broker. All times are the server's.
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

from memory.embedding.coordination import InFlightRequests
from memory.status.local_processes import born, is_the_same
from memory.status.pulses import Pulses
from schemas.ports import OutdatedState, ProcessSign, Unanswered
from schemas.settings import Settings
from schemas.version import recalld_version
from workers.queue.connection import IMPATIENT_SECONDS, connect, namespace, refusal
from workers.queue.names import Keys

log = structlog.get_logger(__name__)

#: Seconds between two heartbeats.
BEAT_SECONDS = 3.0

#: Seconds of delay of a heartbeat after which the process, or the machine, stood still.
STOOD_STILL_SECONDS = 3.0

#: Seconds after which a heartbeat from another machine is forgotten.
FORGOTTEN_AFTER_SECONDS = 3600.0

#: Seconds for which status shows a crashed worker of this machine while other workers run.
MISSED_SECONDS = 60.0

#: Seconds between two looks of a worker for dead workers to forget.
FORGET_SECONDS = 15.0

_SAY: Final = """
-- KEYS: processes, heard; ARGV: process, JSON
local time = redis.call('TIME')
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('ZADD', KEYS[2], string.format('%.3f', time[1] + time[2] / 1000000), ARGV[1])
"""


class Heartbeat:
    """Heartbeat of this process, sent by a thread between `start` and `stop`.

    It carries the stuck threads, the unanswered requests of `asking`, and the `outdated` settings.
    """

    def __init__(
        self,
        settings: Settings,
        role: str,
        pulses: Pulses,
        *,
        beat_seconds: float = BEAT_SECONDS,
        asking: InFlightRequests | None = None,
        outdated: Callable[[], OutdatedState | None] = lambda: None,
    ) -> None:
        self._client: Any = connect(settings, answer_seconds=IMPATIENT_SECONDS)
        self._keys = Keys(namespace(settings))
        self._say = self._client.register_script(_SAY)
        self._role = role
        self._pulses = pulses
        self._asking = asking or InFlightRequests()
        self._beat_seconds = beat_seconds
        self._outdated = outdated
        self._host = socket.gethostname()
        self._started_at = time.time()
        self._id = f"{role}:{self._host}:{os.getpid()}:{int(self._started_at * 1000)}"
        self._stop = threading.Event()
        self._awoke: float | None = None
        self._told_of: str | None = None
        self._thread = threading.Thread(target=self._run, name="life", daemon=True)

    def __enter__(self) -> Heartbeat:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Send the first heartbeat, and forget the dead processes that this one replaces."""
        with suppress(redis.RedisError):
            forget_dead(self._client, self._keys, role=None if self._role == "up" else self._role)
        self._beat()
        self._thread.start()

    def stop(self) -> None:
        """Remove the heartbeat: this process ends in order. Call it after the work."""
        self._pulses.close()
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        with suppress(redis.RedisError):
            _forget(self._client, self._keys, self._id)
        self._client.close()

    def _run(self) -> None:
        asked_at = forgot_at = time.monotonic()
        while not self._stop.wait(self._beat_seconds):
            stood_still = time.monotonic() - asked_at - self._beat_seconds
            if stood_still > STOOD_STILL_SECONDS:
                log.info("stood_still", seconds=round(stood_still, 1))
                self._awoke = time.monotonic()
                self._pulses.forgive(stood_still)
                self._asking.forgive(stood_still)
            self._beat()
            asked_at = time.monotonic()
            if self._role == "work" and asked_at - forgot_at >= FORGET_SECONDS:
                forgot_at = asked_at
                self._forget_dead_workers()

    def _forget_dead_workers(self) -> None:
        """Forget dead workers of this machine: their jobs went back to the queue, and this worker does them.

        Without a living worker the record stays: no other worker has replaced the dead one.
        """
        with suppress(redis.RedisError):
            for gone in forget_dead(self._client, self._keys, role="work", silent_seconds=MISSED_SECONDS):
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
    """Return the last heartbeat of every process. Raises `redis.RedisError`."""
    return [sign for _, sign in _read(client, keys) if not _is_forgotten(sign)]


def forget_dead(client: redis.Redis, keys: Keys, *, role: str | None, silent_seconds: float = 0.0) -> list[ProcessSign]:
    """Forget dead processes of this machine, of one role or of all, and processes not heard of for an hour.

    Dead processes are forgotten after `silent_seconds` without a heartbeat.

    Returns the forgotten ones. Raises `redis.RedisError`.
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
            # In this machine's time, like all times of status.
            heard_at=time.time() - silent,
            silent_seconds=silent,
            awoke_seconds=awoke + silent if awoke is not None else None,
            stuck=tuple(body["stuck"]),
            # A process that was started before an upgrade does not send these.
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
