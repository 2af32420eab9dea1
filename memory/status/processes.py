"""Conditions of the processes that should run: not well, with older settings, or of another version."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Sequence

from memory.status.condition_texts import text_of
from schemas.conditions import Condition, ConditionCode, Param
from schemas.ports import PendingReader
from schemas.status import ProcessState

#: Seconds after which every process has sent another heartbeat.
_NEXT_BEAT_SECONDS = 4.0

#: The workers of a command that ends by itself: they are not missed.
_PASSING = "index"


def known_processes(
    reader: PendingReader, *, wait: Callable[[float], object] | None = time.sleep
) -> Sequence[ProcessState]:
    """Return the state of every process that should run.

    When all are silent, the machine may have slept until now: they are looked at once more after a wait. A process that
    cannot `wait` knows nothing for that moment.
    """
    states = reader.processes()
    if states and all(state.condition == "silent" for state in states):
        if wait is None:
            return ()
        wait(_NEXT_BEAT_SECONDS)
        states = reader.processes()
    return states


def not_watched(states: Sequence[ProcessState]) -> Condition | None:
    """Return why changed files are not noticed, when no process that watches is well; None when one is."""
    watching = [state for state in states if state.role == "watch"]
    if any(state.code is None for state in watching):
        return None
    return next(process_conditions(watching), None)


def process_conditions(states: Sequence[ProcessState]) -> Iterator[Condition]:
    """Yield a condition for each process that is not well."""
    for state in states:
        if state.code is not None:
            params: dict[str, Param] = {"pid": state.pid}
            if state.host != socket.gethostname():
                params["host"] = state.host
            if state.stuck:
                params["threads"] = "; ".join(state.stuck)
            yield Condition(ConditionCode(state.code), state.role, state.heard_at, params)


def with_problem(state: ProcessState) -> ProcessState:
    """Return the state with its condition in words."""
    problem = next(map(text_of, process_conditions([state])), None)
    return state if problem is None else state.model_copy(update={"problem": problem})


def outdated_conditions(states: Sequence[ProcessState], *, version: str, now: float) -> Iterator[Condition]:
    """Yield a condition for each settings file that changed since processes read it, and for each other version."""
    staying = [state for state in states if state.role != _PASSING]
    changed = [(state, state.outdated) for state in staying if state.outdated is not None]
    for file in dict.fromkeys(outdated.file for _, outdated in changed):
        those = [(state, outdated) for state, outdated in changed if outdated.file == file]
        last = max((outdated for _, outdated in those), key=lambda outdated: outdated.changed_at)
        code = ConditionCode.SETTINGS_INVALID if last.invalid else ConditionCode.SETTINGS_CHANGED
        params: dict[str, Param] = {
            "changed_at": last.changed_at,
            "read_at": min(outdated.read_at for _, outdated in those),
            "commands": _commands([state for state, _ in those]),
        }
        yield Condition(code, file, min(last.changed_at, now), params)
    for other in dict.fromkeys(state.version for state in staying if state.version not in (None, version)):
        of_other = [state for state in staying if state.version == other]
        since = min(state.started_at for state in of_other)
        yield Condition(
            ConditionCode.VERSION_DIFFERS, str(other), since, {"version": version, "commands": _commands(of_other)}
        )


def _commands(states: Sequence[ProcessState]) -> str:
    roles = list(dict.fromkeys(state.role for state in states))
    # It starts the others.
    named = ["up"] if "up" in roles else roles
    return " and ".join(f"`recalld {role}`" for role in named)
