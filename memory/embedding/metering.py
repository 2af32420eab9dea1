"""Costs of requests, and whose texts they carried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from memory.embedding.providers.provider import EmbeddingProvider
from schemas.ports import Usage, UsageRecorder

#: A provider's count of tokens is believed up to so many times the estimate, and so many more: tokenizers differ, and
#: add some tokens of their own.
_MOST_TIMES = 4
_MOST_MORE = 100


def believed(billed: int | None, estimated: float) -> int | None:
    """Return the tokens that a provider says it counted; None if it does not say, or if that cannot be."""
    return billed if billed is not None and 0 <= billed <= _MOST_TIMES * estimated + _MOST_MORE else None


@dataclass(frozen=True, slots=True)
class Item:
    """One text to embed: its estimated tokens, and the agent that pays for it ("" for nobody's)."""

    text: str
    tokens: float
    agent: str = ""


class Meter:
    """Counts the requests of one provider; those of searches if they are `queries`."""

    def __init__(self, provider: EmbeddingProvider, recorder: UsageRecorder, *, queries: bool = False) -> None:
        self._provider = provider
        self._queries = queries
        self._recorder = recorder

    def count(self, items: Sequence[Item], *, failed: bool, billed: int | None) -> None:
        """Count one request that is over. `billed` is what the provider says it counted, None when it does not say.

        A failed request costs nothing, unless the provider says otherwise.
        """
        estimated = sum(item.tokens for item in items)
        billed = believed(billed, estimated)
        tokens = billed if billed is not None else 0 if failed else round(estimated)
        shares: dict[str, tuple[int, float]] = {}
        for item in items:
            if item.agent:
                count, share = shares.get(item.agent, (0, 0.0))
                shares[item.agent] = count + 1, share + item.tokens
        rest, left = tokens, estimated
        agents: dict[str, Usage] = {}
        for agent, (count, share) in shares.items():
            # Of what is left, so that the parts add up to the whole.
            part = round(rest * share / left) if left > 0 else 0
            rest, left = rest - part, left - share
            agents[agent] = self._usage(0 if failed else count, part, failed=failed)
        self._recorder.record_usage(
            self._usage(0 if failed else len(items), tokens, failed=failed),
            agents=agents,
            queries=self._queries,
        )

    def _usage(self, inputs: int, tokens: int, *, failed: bool) -> Usage:
        return Usage(
            provider=self._provider.name,
            model=self._provider.model,
            requests=1,
            failed=int(failed),
            inputs=inputs,
            tokens=tokens,
        )
