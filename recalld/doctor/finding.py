"""Finding of the doctor: a sentence and its remedy, as JSON and as lines."""

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


_LABELS = {Level.OK: ("ok", "green"), Level.WARNING: ("!", "yellow"), Level.PROBLEM: ("x", "red")}


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check.

    `message` is one sentence, `action` the remedy for a person. `agents` are the affected agents. `heal` repairs the
    fault without any loss, and returns a sentence about the repair. After an attempt to heal, `healed` is that
    sentence, or `failed` the reason of the failure.
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
        """Return a condition as a problem, with its remedy."""
        action = remedy_of(condition) or "`recalld status` says when it is over; see `recalld logs`"
        return cls(check, what_happened(condition), Level.PROBLEM, action, code=condition.code, **more)

    @property
    def is_open(self) -> bool:
        """Return True for a problem that is not healed."""
        return self.level is Level.PROBLEM and self.healed is None

    def after_healing(self) -> Finding:
        """Apply `heal`, if there is one, and return the finding with the outcome."""
        if self.heal is None:
            return self
        try:
            return replace(self, healed=self.heal())
        except (RecalldError, OSError) as error:
            return replace(self, failed=str(error))


def merge_equal(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield the findings with their agents' names; equal findings of several agents become one."""
    groups: dict[Finding, list[str]] = {}
    for finding in findings:
        groups.setdefault(replace(finding, agents=()), []).extend(finding.agents)
    for shared, agents in groups.items():
        names = ", ".join(agents[:_NAMED])
        more = f" and {len(agents) - _NAMED} more" if len(agents) > _NAMED else ""
        yield replace(shared, message=f"{names}{more}: {shared.message}", agents=tuple(agents)) if agents else shared


def answer(findings: Sequence[Finding]) -> Mapping[str, Any]:
    """Return the findings as one JSON object."""
    is_ok = not any(finding.is_open for finding in findings)
    return {"ok": is_ok, "findings": [_body(finding) for finding in findings]}


def _body(finding: Finding) -> dict[str, Any]:
    only = finding.agents[0] if len(finding.agents) == 1 else None
    body = {
        **fields(finding, "check", "level", "message", "action", "healed", "failed", "code"),
        "agent": only,
        "agents": finding.agents if finding.agents and only is None else None,
        "canBeHealed": finding.heal is not None,
    }
    return {name: value for name, value in body.items() if value is not None}


def lines(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield the findings for a terminal, styled."""
    several = len({agent for finding in findings for agent in finding.agents}) > 1
    for finding in findings:
        typed = partial(to_type, agent=finding.agents[0] if several and len(finding.agents) == 1 else None)
        label, colour = _LABELS[finding.level] if finding.healed is None else ("healed", "green")
        check = click.style(f"{finding.check:<12}", dim=True)
        yield f"{click.style(f'{label:<7}', fg=colour)}{check}{typed(printable_name(finding.message))}"
        below = (
            f"could not be healed: {finding.failed}" if finding.failed else finding.action and f"-> {finding.action}"
        )
        if below := finding.healed or below:
            yield f"{'':<19}{typed(printable_name(below))}"
    open_count = sum(finding.is_open for finding in findings)
    yield f"{counted(open_count, 'problem')} left" if open_count else "nothing is wrong"
