"""Coordination of all requests to one provider: rate limit, claims, requests without an answer, and usage."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from memory.embedding.providers.provider import EmbeddingProvider
from memory.embedding.rate_limit import RateLimiter
from schemas.ports import Unanswered, Usage, UsageRecorder

#: Seconds after which an answer is late: a live request takes less than one, a full one a few.
UNUSUAL_SECONDS = 10.0


class InFlightRequests:
    """Requests of a process without an answer, late after `unusual_seconds`. Thread-safe. `clock` gives seconds.

    A request that fails after an unusual time is a failure of its account like any other.
    """

    def __init__(
        self, *, unusual_seconds: float = UNUSUAL_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._unusual_seconds = unusual_seconds
        self._clock = clock
        self._lock = threading.Lock()
        #: Request -> its provider, and its begin.
        self._requests: dict[object, tuple[EmbeddingProvider, float]] = {}

    @contextmanager
    def request(self, provider: EmbeddingProvider) -> Iterator[None]:
        """Record one request, for as long as the block runs; it may raise."""
        request = object()
        with self._lock:
            self._requests[request] = provider, self._clock()
        try:
            yield
        finally:
            with self._lock:
                del self._requests[request]

    def unanswered(self) -> list[Unanswered]:
        """Return the oldest late request of each account and model. A model on this machine is never late."""
        now = self._clock()
        oldest: dict[tuple[str, str], Unanswered] = {}
        with self._lock:
            oldest_last = sorted(self._requests.values(), key=lambda request: -request[1])
        for provider, began_at in oldest_last:
            if provider.account and now - began_at >= self._unusual_seconds:
                where = f"{provider.name} at {provider.address}" if provider.address else provider.name
                late = Unanswered(provider.account, provider.model, where, now - began_at)
                oldest[provider.account, provider.model] = late
        return list(oldest.values())


#: Largest plausible ratio of billed to estimated tokens, and a constant on top: tokenizers differ, and add some tokens
#: of their own.
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
        """Count one request that is over. `billed` is the provider's count, None without one.

        A failed request costs nothing, unless the provider says otherwise.
        """
        estimated = sum(item.tokens for item in items)
        billed = believed(billed, estimated)
        tokens = billed if billed is not None else 0 if failed else round(estimated)
        request = Usage(self._provider.name, self._provider.model, requests=1, failed=int(failed))
        agents: dict[str, Usage] = {}
        rest, estimated_rest = tokens, estimated
        for agent in dict.fromkeys(item.agent for item in items if item.agent):
            tokens_of_agent = [item.tokens for item in items if item.agent == agent]
            # A share of the rest, so that the parts add up to the whole.
            part = round(rest * sum(tokens_of_agent) / estimated_rest) if estimated_rest > 0 else 0
            rest, estimated_rest = rest - part, estimated_rest - sum(tokens_of_agent)
            agents[agent] = replace(request, inputs=0 if failed else len(tokens_of_agent), tokens=part)
        usage = replace(request, inputs=0 if failed else len(items), tokens=tokens)
        self._recorder.record_usage(usage, agents=agents, queries=self._queries)


class Claims(ABC):
    """Claims on texts that are being embedded, so that two processes with the same text pay once.

    Thread-safe; never raises. A claim lasts until it is released, or until its process is dead.
    """

    @abstractmethod
    def take(self, hashes: Collection[str]) -> set[str]:
        """Claim texts; return those that this process holds now. Other processes embed the rest: the cache will have
        them soon."""

    @abstractmethod
    def release(self, hashes: Collection[str]) -> None:
        """End claims that this process holds: the vectors are in the cache, or will not come."""


class NoClaims(Claims):
    """Claims of a process that is alone: every text is granted."""

    def take(self, hashes: Collection[str]) -> set[str]:
        return set(hashes)

    def release(self, hashes: Collection[str]) -> None:
        pass


class NoUsage(UsageRecorder):
    """Counts nothing."""

    def record_usage(self, usage: Usage, *, agents: Mapping[str, Usage], queries: bool = False) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Coordination:
    """Rate limiter of a provider's account and model, claims of its identity, and recorder of its usage.

    `asking` are this process's requests to all providers.
    """

    limiter: RateLimiter
    claims: Claims = field(default_factory=NoClaims)
    usage: UsageRecorder = field(default_factory=NoUsage)
    asking: InFlightRequests = field(default_factory=InFlightRequests)


#: Function that returns the coordination of a provider.
Coordinate = Callable[[EmbeddingProvider], Coordination]


def alone(provider: EmbeddingProvider) -> Coordination:
    """Return the coordination of a process without a broker."""
    return Coordination(RateLimiter(provider.limits))
