"""What starting processes again would put right: they run with settings that were changed since, or are of another
recalld than this one."""

from __future__ import annotations

import time
from collections.abc import Sequence

from schemas.status import OutdatedState, ProcessState, TroubleState

#: The workers of a command that ends by itself.
_PASSING = "index"


def start_again_troubles(states: Sequence[ProcessState], *, version: str, now: float) -> list[TroubleState]:
    """One sentence for all who run with the same changed file, and one for each other version of recalld."""
    troubles = []
    staying = [state for state in states if state.role != _PASSING]
    files = dict.fromkeys(state.outdated.file for state in staying if state.outdated is not None)
    for file in files:
        those = [state for state in staying if state.outdated is not None and state.outdated.file == file]
        last = max(those, key=_changed_at).outdated
        assert last is not None  # noqa: S101 - those have it
        troubles.append(TroubleState(part="settings", message=_settings(last, those), since=min(last.changed_at, now)))
    for other in dict.fromkeys(state.version for state in staying if state.version not in (None, version)):
        those = [state for state in staying if state.version == other]
        message = f"{_who(those)} {_run(those)} recalld {other}, and this is {version}: start {_again(those)} again"
        troubles.append(TroubleState(part="version", message=message, since=min(state.started_at for state in those)))
    return troubles


def _settings(outdated: OutdatedState, those: Sequence[ProcessState]) -> str:
    readings = [state.outdated.read_at for state in those if state.outdated is not None]
    what = "was changed" if not outdated.invalid else "was changed, to what is not valid,"
    mend = "" if not outdated.invalid else "`recalld config show` says what to mend; then "
    return (
        f"{outdated.file} {what} at {_clock(outdated.changed_at)}; {_who(those)} {_run(those)} with what was read at "
        f"{_clock(min(readings))}: {mend}start {_again(those)} again"
    )


def _who(those: Sequence[ProcessState]) -> str:
    roles = list(dict.fromkeys(state.role for state in those))
    # It starts the others.
    named = ["up"] if "up" in roles else roles
    return " and ".join(f"`recalld {role}`" for role in named)


def _run(those: Sequence[ProcessState]) -> str:
    return "runs" if " and " not in _who(those) else "run"


def _again(those: Sequence[ProcessState]) -> str:
    return "it" if _run(those) == "runs" else "them"


def _clock(at: float) -> str:
    today = time.strftime("%Y-%m-%d", time.localtime(at)) == time.strftime("%Y-%m-%d")
    return time.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M", time.localtime(at))


def _changed_at(state: ProcessState) -> float:
    return state.outdated.changed_at if state.outdated is not None else 0.0
