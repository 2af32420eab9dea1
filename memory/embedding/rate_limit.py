"""Rate limiter of one provider account: one cool-down, and limits a minute.

Every request passes: `acquire` before it leaves, `report` when it is over. The limits a minute follow the generic cell
rate algorithm (ITU-T I.371).
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from memory.embedding.providers.provider import ProviderLimits
from schemas.errors import Paced, RecalldError, Terminal, Throttled, Transient, Waiting

#: Share of a minute's requests that may leave at once.
_REQUEST_BURST = 0.1

#: Share of a minute's tokens that may leave at once; no request is cut larger.
_TOKEN_BURST = 0.25

#: Share of the burst that backfill leaves for live texts.
_LEFT_FOR_LIVE = 0.3

#: Seconds of the cool-down after a refusal for good.
REFUSED_SECONDS = 60.0

#: Seconds of the first and of the longest backoff, doubled with each failure in a row: after a request to slow down
#: that names no time, and after any other failure. The latter is shorter than a request's patience: one bad text stops
#: no others for long.
THROTTLED_BACKOFF = (1.0, 60.0)
FAILED_BACKOFF = (0.125, 4.0)

#: Seconds below which there is no backoff: a single failure stops no other request.
SHORTEST_BACKOFF_SECONDS = 0.2


class Urgency(StrEnum):
    """Urgency of a request: a query is charged and never waits; backfill leaves some room for live texts."""

    QUERY = "query"
    LIVE = "live"
    BACKFILL = "backfill"


@dataclass(frozen=True, slots=True)
class Budget:
    """Budget of `rate` a second on average and `burst` at once; in no minute more than `60 * rate + burst`."""

    rate: float
    burst: float

    def room(self, urgency: Urgency) -> float:
        """Return the part of the burst that is open to requests of this urgency."""
        return self.burst * (1 - _LEFT_FOR_LIVE if urgency is Urgency.BACKFILL else 1.0)


def request_budget(limits: ProviderLimits) -> Budget | None:
    """Return the budget that keeps every minute within the limit of requests; None without a limit."""
    if not limits.requests_per_minute:
        return None
    burst = max(1.0, limits.requests_per_minute * _REQUEST_BURST)
    return Budget(rate=max(limits.requests_per_minute - burst, 0.5) / 60.0, burst=burst)


def token_budget(limits: ProviderLimits) -> Budget | None:
    """Return the budget that keeps every minute within the limit of tokens, except for inputs above a quarter of it;
    None without a limit."""
    if not limits.tokens_per_minute:
        return None
    burst = limits.tokens_per_minute * _TOKEN_BURST
    return Budget(rate=(limits.tokens_per_minute - burst) / 60.0, burst=burst)


def request_tokens(limit: int, tokens_per_minute: int | None) -> float:
    """Return the tokens that one request may hold under a provider's limit and a limit a minute."""
    if tokens_per_minute is None:
        return float(limit)
    return min(float(limit), tokens_per_minute * _TOKEN_BURST * (1 - _LEFT_FOR_LIVE))


@dataclass(frozen=True, slots=True)
class Hold:
    """Cool-down: no request leaves for `seconds`.

    `refusal` is the provider's refusal for good. `failing`: requests failed, and the provider named no time.
    """

    seconds: float
    refusal: str | None = None
    failing: bool = False

    def error(self) -> Terminal | Waiting:
        """Return the error of a request that must not leave."""
        if self.refusal is not None:
            return Terminal(self.refusal)
        reason = "does not answer" if self.failing else "asked to wait"
        return Waiting(f"the embedding provider {reason}", retry_after=self.seconds)


class RateLimiter(ABC):
    """Rate limiter of one account and model. Thread-safe.

    The cool-down lasts for as long as the provider named. Without a time it is a backoff, which doubles with each
    failure in a row. Outcomes of requests that left before a cool-down began neither lengthen nor end it.
    """

    @abstractmethod
    def acquire(self, *, tokens: float, urgency: Urgency) -> None:
        """Take the right to send one request of about so many tokens now.

        Raises:
            Terminal: the provider refused for good a moment ago.
            Waiting: cool-down; `retry_after` says for how long.
            Paced: a limit a minute is used up; `retry_after` seconds from now there is room. Never for a query.
        """

    @abstractmethod
    def report(self, error: RecalldError | None) -> None:
        """Report the end of a request, None after a good answer. An error of the input says nothing of the account."""

    @abstractmethod
    def hold(self) -> Hold | None:
        """Return the cool-down as far as this process knows it; None if requests may leave. Cheap."""


class LocalRateLimiter(RateLimiter):
    """Rate limiter of a single process, also used while the broker is down."""

    def __init__(self, limits: ProviderLimits | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._budgets = [request_budget(limits), token_budget(limits)] if limits else [None, None]
        self._busy_until = [0.0, 0.0]
        self._clock = clock
        self._lock = threading.Lock()
        self._until = 0.0
        self._refusal: str | None = None
        self._failures = 0
        self._asked = False

    def acquire(self, *, tokens: float, urgency: Urgency) -> None:
        with self._lock:
            now = self._clock()
            hold = self._hold(now)
            if hold is not None:
                raise hold.error()
            wait, charged = 0.0, list(self._busy_until)
            for place, (budget, cost) in enumerate(zip(self._budgets, (1.0, tokens), strict=True)):
                if budget is not None:
                    ahead = max(0.0, self._busy_until[place] - now)
                    # A cost above the burst leaves when everything is worked off.
                    wait = max(wait, min(ahead, ahead + (cost - budget.room(urgency)) / budget.rate))
                    charged[place] = now + ahead + cost / budget.rate
            if wait > 0 and urgency is not Urgency.QUERY:
                raise Paced("the limit of requests or tokens a minute is used up", retry_after=wait)
            self._busy_until = charged

    def report(self, error: RecalldError | None) -> None:
        with self._lock:
            now = self._clock()
            early = now < self._until
            if error is None and not early:
                self._refusal, self._failures = None, 0
            elif isinstance(error, Terminal):
                self._refusal, self._until = refusal_of(error), now + REFUSED_SECONDS
            elif isinstance(error, Transient):
                self._failures += not early
                self._asked = is_asked(error)
                self._until = max(self._until, now + pause_after(error, self._failures))

    def hold(self) -> Hold | None:
        with self._lock:
            return self._hold(self._clock())

    def _hold(self, now: float) -> Hold | None:
        left = self._until - now
        return Hold(left, self._refusal, failing=not self._asked) if left > 0 else None


def is_asked(error: Transient) -> bool:
    """Return True if the provider asked to wait, which holds for the whole account; other failures are a model's."""
    return isinstance(error, Throttled) or error.retry_after is not None


def backoff_of(error: Transient) -> tuple[float, float]:
    """Return the seconds of the first and of the longest backoff."""
    return THROTTLED_BACKOFF if isinstance(error, Throttled) else FAILED_BACKOFF


def pause_after(error: Transient, failures: int) -> float:
    """Return the seconds of the cool-down after the last of so many failures in a row."""
    if error.retry_after is not None:
        return error.retry_after
    first, longest = backoff_of(error)
    seconds = min(longest, first * 2.0 ** min(max(failures, 1) - 1, 10))
    return seconds if seconds >= SHORTEST_BACKOFF_SECONDS else 0.0


def refusal_of(error: Terminal) -> str:
    """Return the provider's refusal in words."""
    return str(error) or "the embedding provider refuses"
