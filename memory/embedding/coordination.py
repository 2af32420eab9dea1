"""Coordination of all requests to one provider: rate limit, claims, requests without an answer, and usage.

Every request leaves by `Coordination.send`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import structlog

from memory.chunking.chunker import estimate_tokens
from memory.embedding.breaker import Permit
from memory.embedding.providers.provider import EmbeddingProvider, Matrix
from memory.embedding.rate_limit import RateLimiter, is_asked
from memory.embedding.vectors import round_rows
from schemas.documents import Lane
from schemas.errors import RecalldError, Terminal, Transient, Unusable
from schemas.ports import Unanswered, Usage, UsageRecorder

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

log = structlog.get_logger(__name__)

#: Seconds after which an answer is late: a live request takes less than one, a full one a few.
UNUSUAL_SECONDS = 10.0


class InFlightRequests:
    """Requests of a process without an answer, late after `unusual_seconds`. Thread-safe.

    A request that fails after an unusual time is a failure of its account like any other.
    """

    def __init__(self, *, unusual_seconds: float = UNUSUAL_SECONDS) -> None:
        self._unusual_seconds = unusual_seconds
        self._lock = threading.Lock()
        #: Request -> its provider, and its begin.
        self._requests: dict[object, tuple[EmbeddingProvider, float]] = {}

    @contextmanager
    def request(self, provider: EmbeddingProvider) -> Iterator[None]:
        """Record one request, for as long as the block runs; it may raise."""
        request = object()
        with self._lock:
            self._requests[request] = provider, time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                del self._requests[request]

    def unanswered(self) -> list[Unanswered]:
        """Return the oldest late request of each account and model. A model on this machine is never late."""
        now = time.monotonic()
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


@dataclass(slots=True, eq=False)
class Item:
    """One text to embed: the agent that pays for it ("" for none), and its estimated tokens."""

    text: str
    agent: str = ""
    tokens: float = field(init=False)

    def __post_init__(self) -> None:
        self.tokens = estimate_tokens(self.text)


class Claims:
    """Claims on texts that are being embedded, so that two processes with the same text pay once.

    Thread-safe; never raises. A claim lasts until it is released, or until its process is dead. This class is for a
    process that is alone: it grants every text.
    """

    def take(self, hashes: Collection[str]) -> set[str]:
        """Claim texts; return those that this process holds now. Other processes embed the rest: the cache will have
        them soon."""
        return set(hashes)

    def release(self, hashes: Collection[str]) -> None:
        """End claims that this process holds: the vectors are in the cache, or will not come."""


@dataclass(frozen=True, slots=True)
class Coordination:
    """Rate limiter of a provider's account and model, claims of its identity, and recorder of its usage, if any.

    `in_flight` are this process's requests to all providers.
    """

    limiter: RateLimiter
    claims: Claims = field(default_factory=Claims)
    usage: UsageRecorder | None = None
    in_flight: InFlightRequests = field(default_factory=InFlightRequests)

    def send(
        self,
        provider: EmbeddingProvider,
        items: Sequence[Item],
        *,
        lane: Lane | None,
        dimensions: int | None,
        again: bool = False,
        in_vain: bool = False,
        blame: Callable[[RecalldError], RecalldError | None] = lambda failure: failure,
    ) -> tuple[Matrix, npt.NDArray[np.bool_]]:
        """Send one request if the limiter lets it pass; return its vectors as `round_rows` does, and count its cost.

        A query has no `lane`. Vectors that were unusable before are asked `again`: they are no news of the provider. An
        answer is `in_vain` if its vectors serve no document. `blame` returns the failure that the limiter hears of,
        None for none.

        Raises:
            Terminal, Waiting, Paced: see `RateLimiter.acquire`.
            Unusable: none of the vectors is usable; not for those that are asked again.
        """
        estimated = sum(entry.tokens for entry in items)
        permit = self.limiter.acquire(tokens=estimated, lane=lane, texts=len(items))
        failure: RecalldError | None = Transient("the request failed in an unexpected way")
        billed: int | None = None
        wasted = len(items)
        try:
            with self.in_flight.request(provider):
                texts = [entry.text for entry in items]
                answer = provider.embed_query(texts[0]) if lane is None else provider.embed_documents(texts)
            billed = answer.tokens
            rounded, unusable = round_rows(answer.vectors, expected=len(items), dimensions=dimensions)
            wasted = int(unusable.sum())
            failure = None if again or wasted * 2 <= len(items) else _mostly_unusable(unusable)
            if failure is not None and wasted == len(items):
                raise failure
        except RecalldError as error:
            failure = error
            raise
        finally:
            if isinstance(failure, Unusable) and billed is None:
                billed = round(estimated)
            failed = failure is not None and wasted == len(items)
            self._count(provider, items, failed=failed, billed=billed, is_query=lane is None)
            wasted = len(items) if in_vain else wasted
            blamed = None if failure is None else blame(failure)
            self.report(provider, blamed, permit, wasted=wasted, tokens=(billed or 0) * wasted // len(items))
        return rounded, unusable

    def report(
        self,
        provider: EmbeddingProvider,
        failure: RecalldError | None,
        permit: Permit | None = None,
        *,
        wasted: int = 0,
        tokens: int = 0,
    ) -> None:
        """Report the end of a request to the rate limiter and the log."""
        self.limiter.report(failure, permit, wasted=wasted, tokens=tokens)
        if isinstance(failure, Terminal):
            log.warning("embedding_provider_refuses", provider=provider.name, error=str(failure))
        elif isinstance(failure, Transient) and is_asked(failure):
            pause, error = failure.retry_after, str(failure)
            log.warning("embedding_cool_down", provider=provider.name, seconds=pause, error=error)

    def _count(
        self, provider: EmbeddingProvider, items: Sequence[Item], *, failed: bool, billed: int | None, is_query: bool
    ) -> None:
        """Count one request that is over. `billed` is the provider's count, None without one.

        A failed request costs nothing, unless the provider says otherwise.
        """
        if self.usage is None:
            return
        estimated = sum(entry.tokens for entry in items)
        billed = believed(billed, estimated)
        tokens = billed if billed is not None else 0 if failed else round(estimated)
        request = Usage(provider.name, provider.model, requests=1, failed=int(failed))
        agents: dict[str, Usage] = {}
        rest, estimated_rest = tokens, estimated
        for agent in dict.fromkeys(entry.agent for entry in items if entry.agent):
            tokens_of_agent = [entry.tokens for entry in items if entry.agent == agent]
            # A share of the rest, so that the parts add up to the whole.
            part = round(rest * sum(tokens_of_agent) / estimated_rest) if estimated_rest > 0 else 0
            rest, estimated_rest = rest - part, estimated_rest - sum(tokens_of_agent)
            agents[agent] = replace(request, inputs=0 if failed else len(tokens_of_agent), tokens=part)
        usage = replace(request, inputs=0 if failed else len(items), tokens=tokens)
        self.usage.record_usage(usage, agents=agents, queries=is_query)


def _mostly_unusable(unusable: npt.NDArray[np.bool_]) -> Unusable:
    """Return the error of an answer with more bad vectors than good ones: its endpoint is at fault, not the texts."""
    bad = "only" if unusable.all() else f"{int(unusable.sum())} of {len(unusable)}"
    return Unusable(f"the endpoint returned {bad} vectors that are zero or not finite")


#: Function that returns the coordination of a provider.
Coordinate = Callable[[EmbeddingProvider], Coordination]


def alone(_provider: EmbeddingProvider) -> Coordination:
    """Return the coordination of a process without a broker."""
    return Coordination(RateLimiter())
