"""States of the processes that should be there: well, gone, stopped, silent or stuck; out of date or not."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from memory.status.condition_texts import text_of
from memory.status.local_processes import is_stopped, is_the_same
from schemas.conditions import Condition, ConditionCode, Param
from schemas.ports import OutdatedState, ProcessSign
from schemas.status import ProcessState

#: A process not heard of for longer is not well: it says that it lives every three seconds.
SILENT_SECONDS = 10.0

#: A process of this machine that is not there any more is known to be gone when it owes one sign.
GONE_SECONDS = 4.0

#: Seconds that every process gets for its next sign after the machine slept.
AWAKENING_SECONDS = 5.0

#: The workers of a command that ends by itself: they are not missed.
_PASSING = "index"

_CODES = {
    "gone": ConditionCode.PROCESS_GONE,
    "stopped": ConditionCode.PROCESS_STOPPED,
    "silent": ConditionCode.PROCESS_SILENT,
    "stuck": ConditionCode.PROCESS_STUCK,
}


def process_states(
    read: Callable[[], Sequence[ProcessSign]], *, wait: Callable[[float], object] = time.sleep
) -> tuple[ProcessState, ...]:
    """Return the state of every process that should be there.

    When all are silent, the machine may have slept until now: they are looked at once more a moment later.
    """
    signs = read()
    if signs and all(_state_of(sign, awake=False) == "silent" for sign in signs):
        wait(GONE_SECONDS)
        signs = read()
    awake = any(sign.awoke_seconds is not None and sign.awoke_seconds < AWAKENING_SECONDS for sign in signs)
    states = (_state(sign, awake=awake) for sign in signs)
    return tuple(state for state in states if state.role != _PASSING or state.condition != "gone")


def glanced_states(signs: Sequence[ProcessSign]) -> tuple[ProcessState, ...]:
    """Return the states by signs that were read just now, for a process that gives signs itself and cannot wait.

    When all are silent, this one was too: the machine slept until now, and nothing is known for a moment.
    """
    if all(_state_of(sign, awake=False) == "silent" for sign in signs):
        return ()
    return process_states(lambda: signs)


def not_watched(states: Sequence[ProcessState]) -> Condition | None:
    """Return why changed files are not noticed, when no process that watches is well; None when one is."""
    watching = [state for state in states if state.role == "watch"]
    if any(state.problem is None for state in watching):
        return None
    return next(process_conditions(watching), None)


def process_conditions(states: Sequence[ProcessState]) -> Iterator[Condition]:
    """Yield a condition for each process that is not well."""
    for state in states:
        if state.code is not None:
            yield _condition(state)


def outdated_conditions(states: Sequence[ProcessState], *, version: str, now: float) -> Iterator[Condition]:
    """Yield a condition for each settings file that changed since processes read it, and for each other version."""
    staying = [state for state in states if state.role != _PASSING]
    for file in dict.fromkeys(state.outdated.file for state in staying if state.outdated is not None):
        those = [state for state in staying if state.outdated is not None and state.outdated.file == file]
        readings = [state.outdated for state in those if state.outdated is not None]
        last = max(readings, key=lambda reading: reading.changed_at)
        code = ConditionCode.SETTINGS_INVALID if last.invalid else ConditionCode.SETTINGS_CHANGED
        params: dict[str, Param] = {
            "changed_at": last.changed_at,
            "read_at": min(reading.read_at for reading in readings),
            "commands": _commands(those),
        }
        yield Condition(code, file, min(last.changed_at, now), params)
    for other in dict.fromkeys(state.version for state in staying if state.version not in (None, version)):
        those = [state for state in staying if state.version == other]
        since = min(state.started_at for state in those)
        yield Condition(
            ConditionCode.VERSION_DIFFERS, str(other), since, {"version": version, "commands": _commands(those)}
        )


def stopped_broker(pid: int, *, now: float) -> ProcessState:
    """Return the state of a private broker that stands still: neither it nor the others can report that."""
    state = ProcessState(
        role="broker",
        host=socket.gethostname(),
        pid=pid,
        started_at=now,
        heard_at=now,
        condition="stopped",
        code=ConditionCode.PROCESS_STOPPED,
    )
    return state.model_copy(update={"problem": text_of(_condition(state))})


def _commands(states: Sequence[ProcessState]) -> str:
    roles = list(dict.fromkeys(state.role for state in states))
    # It starts the others.
    named = ["up"] if "up" in roles else roles
    return " and ".join(f"`recalld {role}`" for role in named)


def _state(sign: ProcessSign, *, awake: bool) -> ProcessState:
    condition = _state_of(sign, awake=awake)
    state = ProcessState(
        role=sign.role,
        host=sign.host,
        pid=sign.pid,
        started_at=sign.started_at,
        heard_at=sign.heard_at,
        condition=condition,
        code=_CODES.get(condition),
        stuck=sign.stuck if condition == "stuck" else (),
        doing=sign.doing if condition in {"well", "stuck"} else (),
        version=sign.version,
        outdated=_outdated(sign) if condition != "gone" else None,
    )
    return state if state.code is None else state.model_copy(update={"problem": text_of(_condition(state))})


def _condition(state: ProcessState) -> Condition:
    assert state.code is not None  # noqa: S101 - of a process that is not well
    params: dict[str, Param] = {"pid": state.pid}
    if state.host != socket.gethostname():
        params["host"] = state.host
    if state.stuck:
        params["threads"] = "; ".join(state.stuck)
    return Condition(ConditionCode(state.code), state.role, state.heard_at, params)


def _state_of(sign: ProcessSign, *, awake: bool) -> str:
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
    if found is None or sign.host == socket.gethostname():
        return found
    return replace(found, file=f"{found.file} on {sign.host}")
