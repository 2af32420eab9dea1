"""Coordination of everything that embeds with one provider: rate limit, claims, and counts of usage."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from memory.embedding.asking import Asking
from memory.embedding.gate import Gate, LocalGate
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
    """One text to embed: its estimated tokens, and the agent that pays for it, "" for none."""

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


class Claims(ABC):
    """Claims on texts that are being embedded, so that two processes with the same text pay once.

    Thread-safe; never raises.

    A claim lasts until it is released, or until its process has been dead for a few seconds.
    """

    @abstractmethod
    def take(self, hashes: Collection[str]) -> set[str]:
        """Claim texts; returns those that are ours now. The others are on their way: look in the cache again soon."""

    @abstractmethod
    def release(self, hashes: Iterable[str]) -> None:
        """Say that these texts' vectors are in the cache, or will not come."""


class NoClaims(Claims):
    """For a process that is alone: everything is granted."""

    def take(self, hashes: Collection[str]) -> set[str]:
        return set(hashes)

    def release(self, hashes: Iterable[str]) -> None:
        pass


class NoUsage(UsageRecorder):
    """Counts nothing."""

    def record_usage(self, usage: Usage, *, agents: Mapping[str, Usage], queries: bool = False) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Coordination:
    """The gate of the provider's account and model, the claims of its identity, and where usage is counted.

    `asking` are this process's requests to all providers.
    """

    gate: Gate
    claims: Claims = field(default_factory=NoClaims)
    usage: UsageRecorder = field(default_factory=NoUsage)
    asking: Asking = field(default_factory=Asking)


#: How a process finds what it has in common with the others.
Coordinate = Callable[[EmbeddingProvider], Coordination]


def alone(provider: EmbeddingProvider) -> Coordination:
    """Return the coordination of a process without a broker."""
    return Coordination(LocalGate(provider.limits))
