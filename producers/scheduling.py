"""When each agent's files are compared with its index. Pure: time comes in as an argument."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

#: Seconds after which a comparison that failed is tried again: doubled from the first to the second.
RETRY_SECONDS = (1.0, 30.0)


@dataclass(slots=True)
class _Plan:
    at: float
    rank: int
    reason: str


class ReconcileSchedule:
    """One plan an agent: the earliest that was asked for. Not thread-safe.

    `intervals` gives each agent's seconds between two comparisons, None for never. All agents are due at once,
    in the order given. The periodic comparisons of many agents are spread over the interval.
    """

    def __init__(self, intervals: Mapping[str, float | None], *, now: float) -> None:
        self._intervals = dict(intervals)
        self._plans = {agent: _Plan(now, 1, "start") for agent in intervals}
        self._failures: dict[str, int] = {}
        count = len(self._intervals)
        # The first periodic comparison comes after half an interval at the earliest, the last one after a whole.
        self._first_share = {agent: 0.5 + 0.5 * (index + 1) / count for index, agent in enumerate(self._intervals)}

    def request(
        self, agents: str | Iterable[str], reason: str, *, now: float, delay_seconds: float = 0.0, urgent: bool = False
    ) -> None:
        """Compare these agents after `delay_seconds`, unless it happens earlier anyway. Urgent ones go first."""
        for agent in [agents] if isinstance(agents, str) else agents:
            if agent in self._intervals:
                self._plan(agent, _Plan(now + delay_seconds, 0 if urgent else 1, reason))

    def take(self, *, now: float) -> tuple[str, str] | None:
        """Remove and return the next agent that is due, and why; None when none is."""
        due = [(plan.rank, plan.at, agent) for agent, plan in self._plans.items() if plan.at <= now]
        if not due:
            return None
        # Of equals the one configured first: `min` keeps the first it sees, and the tuple's name must not decide.
        agent = min(due, key=lambda entry: entry[:2])[2]
        return agent, self._plans.pop(agent).reason

    def next_at(self) -> float | None:
        """When the next agent is due; None when nothing is planned."""
        return min((plan.at for plan in self._plans.values()), default=None)

    def done(self, agent: str, *, now: float) -> None:
        """The comparison succeeded: plan the next periodic one."""
        self._failures.pop(agent, None)
        interval = self._intervals[agent]
        if interval is not None:
            self._plan(agent, _Plan(now + interval * self._first_share.pop(agent, 1.0), 2, "interval"))

    def failed(self, agent: str, *, now: float) -> float:
        """The comparison failed: try again, later each time. Returns the seconds until then."""
        failures = self._failures[agent] = self._failures.get(agent, 0) + 1
        pause = min(RETRY_SECONDS[0] * 2.0 ** (failures - 1), RETRY_SECONDS[1])
        self._plan(agent, _Plan(now + pause, 1, "retry"))
        return pause

    def _plan(self, agent: str, plan: _Plan) -> None:
        known = self._plans.get(agent)
        if known is None:
            self._plans[agent] = plan
            return
        if plan.at < known.at:
            known.at, known.reason = plan.at, plan.reason
        known.rank = min(known.rank, plan.rank)
