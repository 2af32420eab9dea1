"""Finding of the doctor: one sentence, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial

from memory.status.condition_texts import remedy_of, what_happened
from schemas.conditions import Condition, ConditionCode

#: What to do about a condition whose own words do not say it.
_LOOK = "`recalld status` says when it is over; the folder log in the home says more"

#: Agents that a sentence names; the others are counted. The answer in JSON has them all.
_NAMED = 5


class Level(StrEnum):
    """Severity of a finding. Only problems make the doctor's exit code 4."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check.

    `message` is one sentence, `action` what to do about it. `heal` is a remedy that loses nothing; it returns a
    sentence about what it did. `agent` names the index that the finding is about, `agents` several indexes.
    `covers` are the conditions of status that report the same fact. `condition` is the source of the message. After
    an attempt to heal, `healed` is what the doctor did, or `failed` why it could not.
    """

    check: str
    level: Level
    message: str
    action: str | None = None
    agent: str | None = None
    heal: Callable[[], str] | None = None
    covers: frozenset[ConditionCode] = frozenset()
    agents: tuple[str, ...] = ()
    condition: Condition | None = field(default=None, compare=False)
    healed: str | None = None
    failed: str | None = None

    @property
    def is_open(self) -> bool:
        """Return True if a problem is left."""
        return self.level is Level.PROBLEM and self.healed is None

    def may_concern(self, agent: str) -> bool:
        """Return True if the finding names this agent, or no agent."""
        return agent in (self.agent, *self.agents) or (self.agent is None and not self.agents)

    @classmethod
    def fine(cls, check: str, message: str) -> Finding:
        """Return a finding that needs no action."""
        return cls(check, Level.OK, message)

    @classmethod
    def of(
        cls, check: str, level: Level, condition: Condition, *, agent: str | None, heal: Callable[[], str] | None = None
    ) -> Finding:
        """Return the finding on a condition: what happened, and what to do."""
        return cls(
            check,
            level,
            what_happened(condition),
            remedy_of(condition) or _LOOK,
            agent=agent,
            heal=heal,
            covers=frozenset({condition.code}),
            condition=condition,
        )


def of_check(check: str, *, agent: str | None = None) -> tuple[Callable[..., Finding], Callable[..., Finding]]:
    """Return the functions that make the warnings and the problems of one check."""
    return partial(Finding, check, Level.WARNING, agent=agent), partial(Finding, check, Level.PROBLEM, agent=agent)


def in_common(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield the findings with their agents' names; equal findings of several agents become one."""
    groups: dict[Finding, list[str]] = {}
    for one in findings:
        groups.setdefault(replace(one, agent=None), []).extend([one.agent] if one.agent is not None else [])
    for shared, agents in groups.items():
        if not agents:
            yield shared
            continue
        named = ", ".join(agents[:_NAMED])
        more = f" and {len(agents) - _NAMED} more" if len(agents) > _NAMED else ""
        whose = {"agent": agents[0]} if len(agents) == 1 else {"agents": tuple(agents)}
        yield replace(shared, message=f"{named}{more}: {shared.message}", **whose)
