"""What the doctor found: one sentence, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from memory.status.condition_texts import text_of
from schemas.conditions import Condition


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
    `speaks_for` names parts of status' troubles that are the same thing in other words. `condition` is the fact that
    the message was made of.
    """

    check: str
    level: Level
    message: str
    action: str | None = None
    agent: str | None = None
    heal: Callable[[], str] | None = None
    speaks_for: frozenset[str] = frozenset()
    agents: tuple[str, ...] = ()
    condition: Condition | None = None

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
    def of(cls, check: str, level: Level, condition: Condition) -> Finding:
        """Return a condition of an agent as a finding."""
        return cls(check, level, text_of(condition), agent=condition.subject, condition=condition)


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
