"""Rate limiter of one account: a cool-down after "try later", a circuit breaker after "never", limits a minute.

Every request passes: `enter` before it leaves, `leave` when it is over. No request is sent that the last answer to
any process made pointless. Budgets follow the generic cell rate algorithm (ITU-T I.371).
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

    def wait(self, busy_until: float, cost: float, now: float, *, urgency: Urgency) -> float:
        """Return the seconds until `cost` may leave; 0 means now.

        `busy_until` (seconds, same clock as `now`) is when all that left so far is worked off at `rate`. A cost
        above the burst leaves when everything is worked off.
        """
        if urgency is Urgency.QUERY:
            return 0.0
        backlog = max(0.0, busy_until - now)
        return max(0.0, min(backlog, backlog + (cost - self.room(urgency)) / self.rate))

    def room(self, urgency: Urgency) -> float:
        """Return the part of the burst that is open to requests of this urgency."""
        return self.burst * (1 - _LEFT_FOR_LIVE if urgency is Urgency.BACKFILL else 1.0)

    def charge(self, busy_until: float, cost: float, now: float) -> float:
        """Return the new `busy_until` after `cost` left."""
        return max(busy_until, now) + cost / self.rate


def request_budget(per_minute: int) -> Budget:
    """Return the budget that keeps every minute within so many requests."""
    burst = max(1.0, per_minute * _REQUEST_BURST)
    return Budget(rate=max(per_minute - burst, 0.5) / 60.0, burst=burst)


def token_budget(per_minute: int) -> Budget:
    """Return the budget that keeps every minute within so many tokens, except for inputs above a quarter of them."""
    burst = per_minute * _TOKEN_BURST
    return Budget(rate=(per_minute - burst) / 60.0, burst=burst)


def request_tokens(limit: int, tokens_per_minute: int | None) -> float:
    """Return the tokens that one request may hold under a provider's limit and a limit a minute."""
    if tokens_per_minute is None:
        return float(limit)
    return min(float(limit), tokens_per_minute * _TOKEN_BURST * (1 - _LEFT_FOR_LIVE))


#: Seconds that an endpoint which refused for good is left alone before one probe is sent.
PROBE_SECONDS = 60.0

#: Seconds after which a probe without a report is forgotten: its process died.
PROBE_LEASE_SECONDS = 150.0

#: Passing failures in a row, of any process, after which the endpoint is out: single requests find out when it is back.
OUTAGE_FAILURES = 8

#: Seconds of the first pause of an outage, or after a request to slow down that names no time; doubled each time.
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0


class Admission(StrEnum):
    """Kind of a request that may leave."""

    NORMAL = "normal"
    PROBE = "probe"


class Gate(ABC):
    """Rate limiter of one account and model, shared by all processes that use them. Thread-safe.

    Cool-down: no request leaves before the time that the provider named. If it only said "slow down", the pause doubles
    each time. Outage: after `OUTAGE_FAILURES` passing failures in a row the same pauses, and after each of them one
    request (a probe). Breaker: after a refusal for good no request leaves for `PROBE_SECONDS`, then one probe. An
    answered probe ends outage and breaker.
    """

    @abstractmethod
    def enter(self, *, tokens: float, urgency: Urgency) -> Admission:
        """Take the right to send one request of about so many tokens now. Each one taken has to `leave`.

        Raises:
            Terminal: the endpoint refused for good, and no probe is due.
            Paced: a limit a minute is used up; `retry_after` seconds from now there is room. Never for a query.
            Waiting: cooling down, or out; `retry_after` says for how long.
        """

    @abstractmethod
    def leave(self, admission: Admission, error: RecalldError | None) -> None:
        """Report the end of a request; `error` is None after a good answer.

        A `Permanent` error, or any other error that says nothing about the endpoint, only gives a probe back.
        """

    @abstractmethod
    def refusal(self) -> Terminal | None:
        """Return the refusal that stops all requests, as last known; None if requests or a probe may leave. Cheap."""

    @abstractmethod
    def delay(self) -> float:
        """Return the seconds until cool-down and outage let a request leave, as last known. Cheap."""

    @property
    @abstractmethod
    def careful(self) -> bool:
        """True if the next request is a probe, which should be small, as last known. Cheap."""


class LocalGate(Gate):
    """Rate limiter for a single process, also used while the broker is down."""

    def __init__(
        self,
        limits: ProviderLimits | None = None,
        *,
        probe_seconds: float = PROBE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._requests = request_budget(limits.requests_per_minute) if limits and limits.requests_per_minute else None
        self._tokens = token_budget(limits.tokens_per_minute) if limits and limits.tokens_per_minute else None
        self._probe_seconds = probe_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._error: Terminal | None = None
        self._not_before = 0.0
        self._probe_until = 0.0
        self._failures = 0
        self._throttles = 0
        self._requests_until = 0.0
        self._tokens_until = 0.0

    def enter(self, *, tokens: float, urgency: Urgency) -> Admission:
        with self._lock:
            now = self._clock()
            if self._error is not None and now < self._not_before:
                raise Terminal(str(self._error))
            if now < self._not_before:
                raise Waiting("the embedding provider asked to wait", retry_after=self._not_before - now)
            probing = self._error is not None or self._failures >= OUTAGE_FAILURES
            if probing and now < self._probe_until:
                if self._error is not None:
                    raise Terminal(str(self._error))
                raise Waiting("the embedding provider does not answer", retry_after=FIRST_PAUSE_SECONDS)
            self._pay(tokens, urgency, now)
            if not probing:
                return Admission.NORMAL
            self._probe_until = now + PROBE_LEASE_SECONDS
            return Admission.PROBE

    def leave(self, admission: Admission, error: RecalldError | None) -> None:
        with self._lock:
            now = self._clock()
            if admission is Admission.PROBE:
                self._probe_until = 0.0
            if error is None:
                # Requests that were on their way when the breaker opened say nothing about it.
                if admission is Admission.PROBE:
                    self._error = None
                    self._not_before = 0.0
                if self._error is None:
                    self._failures = self._throttles = 0
            elif isinstance(error, Terminal):
                self._error = error
                self._not_before = now + self._probe_seconds
            elif isinstance(error, Transient):
                self._failed(error, now)

    def refusal(self) -> Terminal | None:
        with self._lock:
            return self._error if self._error is not None and self._clock() < self._not_before else None

    def delay(self) -> float:
        with self._lock:
            return max(0.0, self._not_before - self._clock()) if self._error is None else 0.0

    @property
    def careful(self) -> bool:
        with self._lock:
            return self._error is not None or self._failures >= OUTAGE_FAILURES

    def _failed(self, error: Transient, now: float) -> None:
        pause = error.retry_after or 0.0
        if isinstance(error, Throttled):
            self._throttles += 1
            if error.retry_after is None:
                pause = pause_after(self._throttles)
        elif error.retry_after is None:
            self._failures += 1
            if self._failures >= OUTAGE_FAILURES:
                pause = pause_after(self._failures - OUTAGE_FAILURES + 1)
        if self._error is not None:
            # The breaker stays as it was; a probe that told nothing is followed by another one.
            pause = max(pause, FIRST_PAUSE_SECONDS)
        # A shorter cool-down never shortens a longer one.
        self._not_before = max(self._not_before, now + pause)

    def _pay(self, tokens: float, urgency: Urgency, now: float) -> None:
        wait = 0.0
        if self._requests is not None:
            wait = self._requests.wait(self._requests_until, 1.0, now, urgency=urgency)
        if self._tokens is not None:
            wait = max(wait, self._tokens.wait(self._tokens_until, tokens, now, urgency=urgency))
        if wait > 0:
            raise Paced("the limit of requests or tokens a minute is used up", retry_after=wait)
        if self._requests is not None:
            self._requests_until = self._requests.charge(self._requests_until, 1.0, now)
        if self._tokens is not None:
            self._tokens_until = self._tokens.charge(self._tokens_until, tokens, now)


def pause_after(failures: int) -> float:
    """Return the seconds of the pause after this number of failures in a row (at least 1)."""
    return min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(failures - 1, 10))
