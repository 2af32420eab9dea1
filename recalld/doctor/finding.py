"""Finding of the doctor: one sentence, and what to do; as JSON and as lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any

import click

from memory.status.condition_texts import counted, remedy_of, what_happened
from recalld.invocation import to_type
from recalld.terminal_text import fields, printable_name
from schemas.conditions import Condition
from schemas.errors import RecalldError

#: Agents that a sentence names; the others are counted. The answer in JSON has them all.
_NAMED = 5


class Level(StrEnum):
    """Severity of a finding. Only problems make the doctor's exit code 4."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


_MARKS = {Level.OK: ("ok", "green"), Level.WARNING: ("!", "yellow"), Level.PROBLEM: ("x", "red")}


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check.

    `message` is one sentence, `action` what to do about it. `agents` are the agents that it is about. `heal` is a
    remedy that loses nothing; it returns a sentence about what it did. After an attempt to heal, `healed` is what the
    doctor did, or `failed` why it could not.
    """

    check: str
    message: str
    level: Level = Level.OK
    action: str | None = None
    agents: tuple[str, ...] = ()
    heal: Callable[[], str] | None = None
    code: str | None = None
    healed: str | None = None
    failed: str | None = None

    @classmethod
    def of(cls, check: str, condition: Condition, **more: Any) -> Finding:
        """Return the problem that a condition is: what happened, and what to do."""
        action = remedy_of(condition) or "`recalld status` says when it is over; the folder log in the home says more"
        return cls(check, what_happened(condition), Level.PROBLEM, action, code=condition.code, **more)

    @property
    def is_open(self) -> bool:
        """Return True if a problem is left."""
        return self.level is Level.PROBLEM and self.healed is None

    def after_healing(self) -> Finding:
        """Repair what can be repaired, and return the outcome."""
        if self.heal is None:
            return self
        try:
            return replace(self, healed=self.heal())
        except (RecalldError, OSError) as error:
            return replace(self, failed=str(error))


def in_common(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield the findings with their agents' names; equal findings of several agents become one."""
    groups: dict[Finding, list[str]] = {}
    for one in findings:
        groups.setdefault(replace(one, agents=()), []).extend(one.agents)
    for shared, agents in groups.items():
        named = ", ".join(agents[:_NAMED])
        more = f" and {len(agents) - _NAMED} more" if len(agents) > _NAMED else ""
        yield replace(shared, message=f"{named}{more}: {shared.message}", agents=tuple(agents)) if agents else shared


def answer(findings: Sequence[Finding]) -> Mapping[str, Any]:
    """Return the findings as one JSON object."""
    return {"ok": not any(one.is_open for one in findings), "findings": [_body(one) for one in findings]}


def _body(found: Finding) -> dict[str, Any]:
    only = found.agents[0] if len(found.agents) == 1 else None
    body = {
        **fields(found, "check", "level", "message", "action", "healed", "failed", "code"),
        "agent": only,
        "agents": found.agents if found.agents and only is None else None,
        "canBeHealed": found.heal is not None,
    }
    return {name: value for name, value in body.items() if value is not None}


def lines(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield the findings for a terminal, styled."""
    several = len({agent for one in findings for agent in one.agents}) > 1
    for found in findings:
        typed = partial(to_type, agent=found.agents[0] if several and len(found.agents) == 1 else None)
        mark, colour = _MARKS[found.level] if found.healed is None else ("healed", "green")
        check = click.style(f"{found.check:<12}", dim=True)
        yield f"{click.style(f'{mark:<7}', fg=colour)}{check}{typed(printable_name(found.message))}"
        below = f"could not be healed: {found.failed}" if found.failed else found.action and f"-> {found.action}"
        if below := found.healed or below:
            yield f"{'':<19}{typed(printable_name(below))}"
    left = sum(one.is_open for one in findings)
    yield f"{counted(left, 'problem')} left" if left else "nothing is wrong"
