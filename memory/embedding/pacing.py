"""How many requests and tokens may leave in a minute: the generic cell rate algorithm (ITU-T I.371), pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

#: Share of a minute's requests that may leave at once.
_REQUEST_BURST = 0.1

#: Share of a minute's tokens that may leave at once; no request is cut larger.
_TOKEN_BURST = 0.25

#: Share of the burst that backfill leaves for live texts.
_LEFT_FOR_LIVE = 0.3


class Urgency(StrEnum):
    """Who wants to send: a query is charged and never waits; backfill leaves some room for live texts."""

    QUERY = "query"
    LIVE = "live"
    BACKFILL = "backfill"


@dataclass(frozen=True, slots=True)
class Budget:
    """What may leave: `rate` a second on average, `burst` at once; in no minute more than `60 * rate + burst`."""

    rate: float
    burst: float

    def wait(self, busy_until: float, cost: float, now: float, *, urgency: Urgency) -> float:
        """Seconds until `cost` may leave; 0 means now.

        `busy_until` (seconds, same clock as `now`) is when all that left so far is worked off at `rate`. A cost
        above the burst leaves when everything is worked off.
        """
        if urgency is Urgency.QUERY:
            return 0.0
        backlog = max(0.0, busy_until - now)
        return max(0.0, min(backlog, backlog + (cost - self.room(urgency)) / self.rate))

    def room(self, urgency: Urgency) -> float:
        """What of the burst is open to so urgent requests."""
        return self.burst * (1 - _LEFT_FOR_LIVE if urgency is Urgency.BACKFILL else 1.0)

    def charge(self, busy_until: float, cost: float, now: float) -> float:
        """The new `busy_until` after `cost` left."""
        return max(busy_until, now) + cost / self.rate


def request_budget(per_minute: int) -> Budget:
    """The budget that keeps every minute within so many requests."""
    burst = max(1.0, per_minute * _REQUEST_BURST)
    return Budget(rate=max(per_minute - burst, 0.5) / 60.0, burst=burst)


def token_budget(per_minute: int) -> Budget:
    """The budget that keeps every minute within so many tokens, single inputs above a quarter of them aside."""
    burst = per_minute * _TOKEN_BURST
    return Budget(rate=(per_minute - burst) / 60.0, burst=burst)


def request_tokens(limit: int, tokens_per_minute: int | None) -> float:
    """Tokens that one request may hold under a provider's limit and a limit a minute."""
    if tokens_per_minute is None:
        return float(limit)
    return min(float(limit), tokens_per_minute * _TOKEN_BURST * (1 - _LEFT_FOR_LIVE))
