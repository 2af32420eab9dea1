"""What embedding documents cost while a command ran; what others searched for meanwhile is theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

from memory.embedding.prices import price_of
from recalld.status_view import FREE_OF_CHARGE, amount, dollars
from schemas.ports import Usage
from schemas.settings import AgentSettings
from workers.health.board import Board


class Spending:
    """Counts from the moment it is made on."""

    def __init__(self, board: Board, agents: Sequence[AgentSettings]) -> None:
        self._board = board
        self._agents = {agent.id: agent for agent in agents}
        self._before = {
            (agent.id, usage.provider, usage.model): usage
            for agent in agents
            for usage in board.indexing_usage(agent.id)
        }

    def of(self, agent: str) -> list[Usage]:
        """What an agent's texts have cost since then, by provider and model; nothing for those that cost nothing."""
        return [usage for usage in self.all_of(agent) if usage.requests and usage.provider not in FREE_OF_CHARGE]

    def all_of(self, agent: str) -> list[Usage]:
        """What was embedded for an agent since then, at whatever price."""
        return [self._since(agent, usage) for usage in self._board.indexing_usage(agent)]

    def sentence(self, agent: str, usage: Usage) -> str:
        """One line for a person."""
        text = f"{usage.provider} {usage.model}: {usage.requests:,} request{'s' if usage.requests != 1 else ''}"
        if usage.failed:
            text += f" ({usage.failed:,} failed)"
        text += f", {amount(usage.tokens)} tokens"
        price = price_of(self._agents[agent], usage.provider, usage.model)
        return f"{text}, {dollars(price * usage.tokens / 1e6)}" if price and usage.tokens else text

    def _since(self, agent: str, usage: Usage) -> Usage:
        before = self._before.get((agent, usage.provider, usage.model))
        if before is None:
            return usage
        counts = [field.name for field in fields(Usage) if field.name not in {"provider", "model"}]
        return replace(usage, **{name: getattr(usage, name) - getattr(before, name) for name in counts})
