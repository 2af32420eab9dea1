"""Requests of this process to embedding endpoints that have no answer yet, and the time since they began."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from memory.embedding.providers.provider import EmbeddingProvider
from schemas.errors import Throttled, Transient
from schemas.ports import Unanswered

#: Seconds that a request takes longer than is usual: a live one takes less than one, a full one a few.
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


class Asking:
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
