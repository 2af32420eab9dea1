"""What the doctor found: one sentence, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum

from memory.status.condition_texts import remedy_of, what_happened
from schemas.conditions import Condition, ConditionCode

#: What to do about a condition whose own words do not say it.
_LOOK = "`recalld status` says when it is over; the folder log in the home says more"


class Level(StrEnum):
    """How bad it is. Only problems make the doctor's exit code 4."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One check's result.

    `message` is one sentence, `action` what to do about it. `heal`, where there is a remedy that loses nothing, does
    it and says what it did; `agent` is whose index it is about, `agents` whose where several have it in common.
    `covers` are conditions of status that are the same fact, found out by more than status knows. `condition` is the
    fact that the message was made of.
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

    def is_about(self, agent: str) -> bool:
        """Whether it is this agent's matter in particular."""
        return agent == self.agent or agent in self.agents

    def may_concern(self, agent: str) -> bool:
        """Whether it is this agent's matter, or everybody's."""
        return self.is_about(agent) or (self.agent is None and not self.agents)

    @classmethod
    def fine(cls, check: str, message: str) -> Finding:
        """Nothing to do."""
        return cls(check, Level.OK, message)

    @classmethod
    def of(
        cls, check: str, level: Level, condition: Condition, *, agent: str | None, heal: Callable[[], str] | None = None
    ) -> Finding:
        """Return a condition as a finding: what happened, and what to do."""
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


#: Agents that a sentence names; the others are counted. The answer in JSON has them all.
_NAMED = 5


def in_common(findings: Iterable[Finding]) -> Iterator[Finding]:
    """The same findings, each agent named, and what several agents have in common told once."""
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
