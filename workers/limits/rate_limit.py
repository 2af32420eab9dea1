"""Rate limit and cool-down of a provider's account, shared by all processes through the broker."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

import redis

from memory.embedding.providers.provider import ProviderLimits
from memory.embedding.rate_limit import (
    Budget,
    Hold,
    LocalRateLimiter,
    RateLimiter,
    Urgency,
    backoff_of,
    is_asked,
    refusal_of,
    request_budget,
    token_budget,
)
from schemas.errors import BrokerUnavailable, Paced, RecalldError, Terminal, Transient
from workers.health.account_state import Account, AccountState
from workers.limits.circuit_breaker import CircuitBreaker

#: Seconds between two looks for the early end of a cool-down.
LOOK_SECONDS = 0.25

#: Bytes of a provider's message that are kept.
_LONGEST_MESSAGE = 1000


class BrokerRateLimiter(RateLimiter):
    """Rate limiter in the broker. While the broker does not answer, the one of this process decides.

    `acquire` is one round trip, `report` of a failure another one. `clock` replaces the server's clock, for tests.
    """

    def __init__(
        self,
        client: redis.Redis,
        breaker: CircuitBreaker,
        *,
        account: str,
        model: str,
        limits: ProviderLimits | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._account = Account(client, account, model, clock=clock)
        self._breaker = breaker
        self._clock = clock or time.monotonic
        self._requests, self._tokens = (request_budget(limits), token_budget(limits)) if limits else (None, None)
        self._local = LocalRateLimiter(limits, clock=self._clock)
        self._known: AccountState | None = None
        self._known_at = 0.0

    def acquire(self, *, tokens: float, urgency: Urgency) -> None:
        waits = 0 if urgency is Urgency.QUERY else 1
        try:
            state = self._step(
                "acquire", waits, *_limit(self._requests, urgency), tokens, *_limit(self._tokens, urgency)
            )
        except BrokerUnavailable:
            self._local.acquire(tokens=tokens, urgency=urgency)
            return
        if state.hold is not None:
            raise state.hold.error()
        if state.paced > 0:
            raise Paced("the limit of requests or tokens a minute is used up", retry_after=state.paced)
        with suppress(RecalldError):
            # Charged here, too: if the broker goes away now, no budget is spent twice.
            self._local.acquire(tokens=tokens, urgency=Urgency.QUERY)

    def report(self, error: RecalldError | None) -> None:
        self._local.report(error)
        with suppress(BrokerUnavailable):
            if isinstance(error, Terminal):
                self._step("refused", refusal_of(error).encode("utf-8", "replace")[:_LONGEST_MESSAGE])
            elif isinstance(error, Transient):
                asked = "" if error.retry_after is None else error.retry_after
                self._step("failed", asked, *backoff_of(error), "cool" if is_asked(error) else "until")
            elif error is None and (self._known is None or self._known.failed or self._known.refusal is not None):
                self._step("answered")

    def hold(self) -> Hold | None:
        known = self._known
        if known is None:
            return self._local.hold()
        if known.hold is not None and self._clock() - self._known_at > LOOK_SECONDS:
            try:
                known = self._step("look")
            except BrokerUnavailable:
                return self._local.hold()
        left = known.seconds - (self._clock() - self._known_at)
        return Hold(left, known.refusal, failing=known.failing) if left > 0 else None

    def _step(self, name: str, *arguments: object) -> AccountState:
        """Run a step of the account's script.

        Raises:
            BrokerUnavailable: the broker does not answer. What it said before counts no longer.
        """
        try:
            state = self._breaker.ask(lambda: self._account.step(name, *arguments))
        except BrokerUnavailable:
            self._known = None
            raise
        self._known, self._known_at = state, self._clock()
        return state


def _limit(budget: Budget | None, urgency: Urgency) -> tuple[float, float]:
    return (budget.rate, budget.room(urgency)) if budget is not None else (0, 0)
