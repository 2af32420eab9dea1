"""Cost of embedding for status, by provider and model, with dollars where the price is known."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from memory.embedding.prices import price_of
from schemas.ports import PendingReader, Usage
from schemas.settings import MemorySettings
from schemas.status import Spent, UsageState


def spending(reader: PendingReader, agent: str, memory: MemorySettings) -> tuple[UsageState, ...]:
    """Return the cost of an agent ("*": of all agents) in total and today (UTC), the most asked model first.

    Dollars are the tokens' cost by `memory`'s price or the list price outside batches; None without a price.
    """
    today = reader.usage(agent, day=datetime.now(UTC).date())
    return tuple(
        UsageState(
            provider=usage.provider,
            model=usage.model,
            total=_spent(usage, memory),
            today=_spent(_same(usage, today), memory),
        )
        for usage in reader.usage(agent)
    )


def _same(usage: Usage, others: Sequence[Usage]) -> Usage:
    for other in others:
        if (other.provider, other.model) == (usage.provider, usage.model):
            return other
    return Usage(usage.provider, usage.model)


def _spent(usage: Usage, memory: MemorySettings) -> Spent:
    price = price_of(memory, usage.provider, usage.model)
    return Spent(
        requests=usage.requests,
        failed=usage.failed,
        inputs=usage.inputs,
        tokens=usage.tokens,
        dollars=round(usage.tokens / 1_000_000 * price, 6) if price is not None else None,
    )
