"""Who of those that should be there is not well: gone, stopped, silent or stuck."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence

from memory.status.local_processes import is_stopped, is_the_same
from schemas.ports import ProcessSign
from schemas.status import OutdatedState, ProcessState, TroubleState

#: A process not heard of for longer is not well: it says that it lives every three seconds.
SILENT_SECONDS = 10.0

#: A process of this machine that is not there any more is known to be gone when it owes one sign.
GONE_SECONDS = 4.0

#: Seconds that everybody gets to be heard of again after the machine slept.
AWAKENING_SECONDS = 5.0

#: The workers of a command that ends by itself: nobody misses them.
_PASSING = "index"

_MEANS = {
    "up": "what dies is not started again",
    "watch": "changed files are not noticed",
    "work": "what it had taken waits, and so may the rest",
    "serve": "searches are not answered",
}


def process_states(
    read: Callable[[], Sequence[ProcessSign]], *, wait: Callable[[float], object] = time.sleep
) -> tuple[ProcessState, ...]:
    """The state of everybody who should be there.

    When nobody at all was heard of, the machine may have slept until now: they are looked at once more a moment later.
    """
    signs = read()
    if signs and all(_condition(sign, awake=False) == "silent" for sign in signs):
        wait(GONE_SECONDS)
        signs = read()
    awake = any(sign.awoke_seconds is not None and sign.awoke_seconds < AWAKENING_SECONDS for sign in signs)
    states = (_state(sign, awake=awake) for sign in signs)
    return tuple(state for state in states if state.role != _PASSING or state.condition != "gone")


def glanced_states(signs: Sequence[ProcessSign]) -> tuple[ProcessState, ...]:
    """The same of signs that were read just now, for a living process that says signs itself and cannot wait.

    When nobody is heard of, it is not either: the machine slept until now, and nothing is known for a moment.
    """
    if all(_condition(sign, awake=False) == "silent" for sign in signs):
        return ()
    return process_states(lambda: signs)


def not_watched(states: Sequence[ProcessState]) -> str | None:
    """Why changed files are not noticed, when nobody of those who watch is well; None when that is not so."""
    watching = [state for state in states if state.role == "watch"]
    if not watching or any(state.problem is None for state in watching):
        return None
    return f"watch: {watching[0].problem}"


def process_troubles(states: Sequence[ProcessState]) -> list[TroubleState]:
    """A trouble for each that is not well, since when it is so."""
    return [
        TroubleState(part=state.role, message=state.problem, since=state.heard_at)
        for state in states
        if state.problem is not None
    ]


def _state(sign: ProcessSign, *, awake: bool) -> ProcessState:
    condition = _condition(sign, awake=awake)
    return ProcessState(
        role=sign.role,
        host=sign.host,
        pid=sign.pid,
        started_at=sign.started_at,
        heard_at=sign.heard_at,
        condition=condition,
        problem=_problem(sign, condition),
        doing=sign.doing if condition in {"well", "stuck"} else (),
        version=sign.version,
        outdated=_outdated(sign) if condition != "gone" else None,
    )


def _condition(sign: ProcessSign, *, awake: bool) -> str:
    if sign.host == socket.gethostname():
        if sign.silent_seconds > GONE_SECONDS and not is_the_same(sign.pid, sign.born):
            return "gone"
        if sign.silent_seconds > GONE_SECONDS and is_stopped(sign.pid):
            return "stopped"
    if sign.silent_seconds > SILENT_SECONDS and not awake:
        return "silent"
    return "stuck" if sign.stuck else "well"


def _outdated(sign: ProcessSign) -> OutdatedState | None:
    found = sign.outdated
    if found is None:
        return None
    return OutdatedState(
        file=found.file if sign.host == socket.gethostname() else f"{found.file} on {sign.host}",
        changed_at=found.changed_at,
        read_at=found.read_at,
        invalid=found.invalid,
    )


def _problem(sign: ProcessSign, condition: str) -> str | None:
    here = sign.host == socket.gethostname()
    who = f"process {sign.pid}" if here else f"process {sign.pid} on {sign.host}"
    means = _MEANS.get(sign.role, "its work waits")
    if condition == "gone":
        means = "another worker takes over what it had taken" if sign.role == "work" else means
        return (
            f"{who} ended without a word, and {means}; start it again the way it was started (`recalld up`, its "
            "service or its container)"
        )
    if condition == "stopped":
        return f"{who} is stopped, and {means}; `kill -CONT {sign.pid}` lets it go on"
    if condition == "silent":
        where = "the folder log in the home" if here else f"its log on {sign.host}"
        return f"{who} gives no sign of life, and {means}; look into {where}, and start it again"
    if condition == "stuck":
        return f"{who} does not get on: {'; '.join(sign.stuck)}; if it stays so, start it again"
    return None
