"""Coordination of all requests to one provider: rate limit, claims, unanswered requests, and counts of usage."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from memory.embedding.gate import Gate, LocalGate
from memory.embedding.providers.provider import EmbeddingProvider
from schemas.errors import Throttled, Transient
from schemas.ports import Unanswered, Usage, UsageRecorder

#: Seconds after which an answer is late: a live request takes less than one, a full one a few.
UNUSUAL_SECONDS = 10.0

#: Seconds after an unanswered request in which the next one goes on with the same silence; pauses are shorter.
REMEMBERED_SECONDS = 90.0


@dataclass(slots=True)
class _Endpoint:
    """Begin of each request in flight, and of the endpoint's silence; times of the clock."""

    address: str
    begun: dict[object, float] = field(default_factory=dict)
    silent_since: float | None = None
    gave_up_at: float = 0.0


class InFlightRequests:
    """The requests of a process, by the provider's account and model. Thread-safe.

    A request that took unusually long and failed in passing had no answer, even if a proxy said so (HTTP 504). The
    next request continues its silence; the first answer ends it.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._endpoints: dict[tuple[str, str], _Endpoint] = {}

    @contextmanager
    def request(self, provider: EmbeddingProvider) -> Iterator[None]:
        """One request, for as long as the block runs; it may raise. A model on this machine is never waited for."""
        if not provider.account:
            yield
            return
        key, name, begun = (provider.account, provider.model), object(), self._clock()
        where = f"{provider.name} at {provider.address}" if provider.address else provider.name
        with self._lock:
            self._endpoints.setdefault(key, _Endpoint(where)).begun[name] = begun
        answered = True
        try:
            yield
        except Transient as error:
            answered = isinstance(error, Throttled) or self._clock() - begun < UNUSUAL_SECONDS
            raise
        finally:
            with self._lock:
                self._ended(self._endpoints[key], name, answered=answered)

    def unanswered(self) -> list[Unanswered]:
        """Return the endpoints that owe an answer for an unusual time."""
        now = self._clock()
        with self._lock:
            found = [
                Unanswered(account, model, one.address, now - since)
                for (account, model), one in self._endpoints.items()
                if (since := _since(one, now)) is not None
            ]
        return [one for one in found if one.seconds >= UNUSUAL_SECONDS]

    def forgive(self, seconds: float) -> None:
        """Leave out a time in which the process stood still: it is not the endpoints' fault."""
        with self._lock:
            for one in self._endpoints.values():
                one.begun = {name: begun + seconds for name, begun in one.begun.items()}
                one.gave_up_at += seconds
                if one.silent_since is not None:
                    one.silent_since += seconds

    def _ended(self, endpoint: _Endpoint, name: object, *, answered: bool) -> None:
        begun = endpoint.begun.pop(name)
        if answered:
            endpoint.silent_since = None
        else:
            now = self._clock()
            since = _since(endpoint, now)
            endpoint.silent_since = begun if since is None else min(begun, since)
            endpoint.gave_up_at = now


def _since(endpoint: _Endpoint, now: float) -> float | None:
    """Return the time since which an answer is owed; None without one."""
    times = list(endpoint.begun.values())
    if endpoint.silent_since is not None and now - endpoint.gave_up_at < REMEMBERED_SECONDS:
        times.append(endpoint.silent_since)
    return min(times, default=None)


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
            # A share of the rest, so that the parts add up to the whole.
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
        """Claim texts; return those that this process owns now. Other processes embed the rest: the cache will have
        them soon."""

    @abstractmethod
    def release(self, hashes: Iterable[str]) -> None:
        """Release claims: the vectors are in the cache, or will not come."""


class NoClaims(Claims):
    """Claims of a process that is alone: every text is granted."""

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
    asking: InFlightRequests = field(default_factory=InFlightRequests)


#: Function that returns the coordination of a provider.
Coordinate = Callable[[EmbeddingProvider], Coordination]


def alone(provider: EmbeddingProvider) -> Coordination:
    """Return the coordination of a process without a broker."""
    return Coordination(LocalGate(provider.limits))
