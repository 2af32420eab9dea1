"""What those who embed with one provider have in common, in this process or in all of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from memory.embedding.asking import Asking
from memory.embedding.gate import Gate, LocalGate
from memory.embedding.providers.provider import EmbeddingProvider
from schemas.ports import Usage, UsageRecorder


class Claims(ABC):
    """Who is embedding which text just now, so that two who want the same one pay once. Thread-safe; never raises.

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
    """The coordination of a process that has nobody to ask."""
    return Coordination(LocalGate(provider.limits))
