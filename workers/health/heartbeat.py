"""Heartbeats of processes through the broker, with the steps of their threads.

A process that ends in order removes its heartbeat. So an old heartbeat means that the process is gone, stopped, or cut
off from the broker. All times in the broker are the server's.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import structlog

from memory.embedding.coordination import InFlightRequests
from memory.status.processes import Pulses
from memory.status.run_files import born, is_stopped, is_the_same
from schemas.conditions import ConditionCode
from schemas.ports import Unanswered
from schemas.settings import Settings
from schemas.status import OutdatedState, ProcessState
from schemas.version import recalld_version
from workers.queue.connection import IMPATIENT_SECONDS, BrokerAway, BrokerClient, connect, namespace
from workers.queue.names import Keys

log = structlog.get_logger(__name__)

#: Seconds between two heartbeats.
BEAT_SECONDS = 3.0

#: Seconds after which a process of this machine that does not exist any more is gone: it owes one heartbeat.
GONE_SECONDS = 4.0

#: Seconds without a heartbeat after which a process is silent.
SILENT_SECONDS = 10.0

#: Seconds after which a heartbeat from another machine is forgotten.
FORGOTTEN_AFTER_SECONDS = 3600.0

#: Fields of a heartbeat that are fields of its `ProcessState`.
_OF_STATE = ("role", "host", "pid", "startedAt", "stuck", "doing", "version", "outdated")

_SAY: Final = """
-- KEYS: processes, heard; ARGV: process, JSON
local time = redis.call('TIME')
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('ZADD', KEYS[2], string.format('%.3f', time[1] + time[2] / 1000000), ARGV[1])
"""


class Heartbeat:
    """Heartbeat of this process, sent by a thread between `start` and `stop`.

    It carries the steps of the threads, the unanswered requests of `in_flight`, and the `outdated` settings. With each
    heartbeat, `flush` publishes the counts of the process.
    """

    def __init__(
        self,
        settings: Settings,
        role: str,
        pulses: Pulses,
        *,
        beat_seconds: float = BEAT_SECONDS,
        in_flight: InFlightRequests | None = None,
        outdated: Callable[[], OutdatedState | None] = lambda: None,
        flush: Callable[[], None] = lambda: None,
    ) -> None:
        self._client: Any = connect(settings, answer_seconds=IMPATIENT_SECONDS)
        self._keys = Keys(namespace(settings))
        self._say = self._client.register_script(_SAY)
        self._role = role
        self._pulses = pulses
        self._in_flight = in_flight or InFlightRequests()
        self._beat_seconds = beat_seconds
        self._outdated = outdated
        self._flush = flush
        self._started_at = time.time()
        self._id = f"{role}:{socket.gethostname()}:{os.getpid()}:{int(self._started_at * 1000)}"
        self._stop = threading.Event()
        self._refused: str | None = None
        #: True once the dead processes that this one replaces are forgotten.
        self._replaced = False
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Send the first heartbeat, and forget the dead processes that this one replaces."""
        self._beat()
        self._thread.start()

    def stop(self) -> None:
        """Remove the heartbeat: this process ends in order. Call it after the work."""
        self._pulses.close()
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        with suppress(BrokerAway):
            _forget(self._client, self._keys, self._id)
        self._client.close()

    def _run(self) -> None:
        while not self._stop.wait(self._beat_seconds):
            self._beat()
            self._flush()

    def _beat(self) -> None:
        outdated = self._outdated()
        body = {
            "role": self._role,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "born": born(os.getpid()),
            "startedAt": self._started_at,
            "stuck": self._pulses.problems(),
            "doing": self._pulses.long_steps(),
            "unanswered": [asdict(request) for request in self._in_flight.unanswered()],
            "version": recalld_version(),
            "outdated": asdict(outdated) if outdated is not None else None,
        }
        try:
            if not self._replaced:  # the broker may be away at the start
                forget_dead(self._client, self._keys, role=None if self._role == "up" else self._role)
                self._replaced = True
            self._say(keys=[self._keys.processes, self._keys.heard], args=[self._id, json.dumps(body)])
        except BrokerAway as error:
            if error.refusal is not None and error.refusal != self._refused:
                log.warning("broker_refuses", error=error.refusal)
            self._refused = error.refusal
        else:
            self._refused = None


@dataclass(frozen=True, slots=True)
class Beat:
    """Last heartbeat of a process, `silent_seconds` ago, with its `state` as the process itself sees it.

    `born` tells it from another process of the same id.
    """

    name: str
    born: str | None
    silent_seconds: float
    state: ProcessState
    unanswered: tuple[Unanswered, ...] = ()

    @property
    def is_here(self) -> bool:
        """Return True if the process runs on this machine."""
        return self.state.host == socket.gethostname()

    @property
    def is_old(self) -> bool:
        """Return True if the process of another machine is to be forgotten."""
        return self.silent_seconds > FORGOTTEN_AFTER_SECONDS and not self.is_here

    def condition(self) -> str:
        """Return the condition of the process as others see it."""
        if self.is_here and self.silent_seconds > GONE_SECONDS:
            if not is_the_same(self.state.pid, self.born):
                return "gone"
            if is_stopped(self.state.pid):
                return "stopped"
        if self.silent_seconds > SILENT_SECONDS:
            return "silent"
        return "stuck" if self.state.stuck else "well"


def process_states(beats: list[Beat]) -> list[ProcessState]:
    """Return the state of every process that should run.

    Killed workers of a command that ends by itself are left out.
    """
    states = [_seen(beat, beat.condition()) for beat in beats]
    return [state for state in states if state.role != "index" or state.condition != "gone"]


def _seen(beat: Beat, condition: str) -> ProcessState:
    state, code = beat.state, None if condition == "well" else ConditionCode(f"process_{condition}")
    outdated = state.outdated if condition != "gone" else None
    if outdated is not None and not beat.is_here:
        outdated = replace(outdated, file=f"{outdated.file} on {state.host}")
    doing = {} if condition in {"well", "stuck"} else {"doing": (), "stuck": ()}
    return state.model_copy(update={"condition": condition, "code": code, **doing, "outdated": outdated})


def read_beats(client: BrokerClient, keys: Keys) -> list[Beat]:
    """Return the last heartbeat of every process. Raises BrokerUnavailable."""
    return [beat for beat in _read(client, keys) if not beat.is_old]


def forget_dead(client: BrokerClient, keys: Keys, *, role: str | None) -> list[Beat]:
    """Forget dead processes of this machine, of one role or of all, and processes not heard of for an hour.

    Returns the forgotten ones. Raises BrokerUnavailable.
    """

    def is_dead(beat: Beat) -> bool:
        return beat.is_here and role in (None, beat.state.role) and not is_the_same(beat.state.pid, beat.born)

    dead_beats = [beat for beat in _read(client, keys) if beat.is_old or is_dead(beat)]
    _forget(client, keys, *(beat.name for beat in dead_beats))
    return dead_beats


def _read(client: BrokerClient, keys: Keys) -> list[Beat]:
    with client.pipeline(transaction=True) as pipe:
        replies: Any = pipe
        replies.time()
        replies.hgetall(keys.processes)
        replies.zrange(keys.heard, 0, -1, withscores=True)
        (seconds, micros), bodies, heard_at = replies.execute()
    now, times = seconds + micros / 1e6, dict(heard_at)
    beats = []
    for name, raw in bodies.items():
        body, silent = json.loads(raw), max(0.0, now - times.get(name, 0.0))
        # A process that was started before an upgrade does not send all of these. Times are this machine's.
        facts = {field: body[field] for field in _OF_STATE if field in body}
        state = ProcessState.model_validate({**facts, "heardAt": time.time() - silent, "condition": "well"})
        unanswered = tuple(Unanswered(**request) for request in body.get("unanswered", ()))
        beats.append(Beat(name.decode(), body["born"], silent, state, unanswered))
    return sorted(beats, key=lambda beat: (beat.state.role, beat.state.host, beat.state.started_at))


def _forget(client: BrokerClient, keys: Keys, *names: str) -> None:
    if names:
        with client.pipeline(transaction=True) as pipe:
            pipe.hdel(keys.processes, *names)
            pipe.zrem(keys.heard, *names)
            pipe.execute()
