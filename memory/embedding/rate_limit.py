"""Rate limiter of one provider account: one cool-down, and limits a minute.

Every request passes: `acquire` before it leaves, `report` when it is over. The broker keeps the limits a minute, by the
generic cell rate algorithm (ITU-T I.371). A process alone has the cool-down only.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from memory.embedding.breaker import Breaker, Permit
from memory.embedding.providers.provider import ProviderLimits
from schemas.documents import Lane
from schemas.errors import (
    BrokerUnavailable,
    Paced,
    RecalldError,
    Stopped,
    Terminal,
    Throttled,
    Transient,
    Unusable,
    Waiting,
    backoff,
)

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

#: Seconds between two looks for the early end of a cool-down that other processes share.
LOOK_SECONDS = 0.25

#: Seconds between two attempts to send documents under a limit a minute while the broker is away.
BROKER_AWAY_SECONDS = 1.0

#: Characters of a provider's refusal that are kept.
_LONGEST_REFUSAL = 1000


def _budget(limit: int | None, lane: Lane | None, *, at_once: float, part: float = 0.0) -> tuple[float, float]:
    """Return a rate a second on average, 0 for no limit, and the amount that a lane may use at once.

    They keep every minute, `60 * rate + burst`, within the limit and the `part` of a request that is none. `at_once` is
    the share of the limit in the burst.
    """
    if not limit:
        return 0.0, 0.0
    burst = max(1.0, limit * at_once)
    return max(limit - burst + part, 0.5) / 60.0, burst * (1 - _LEFT_FOR_LIVE if lane is Lane.BACKFILL else 1.0)


def request_tokens(limit: int, tokens_per_minute: int | None) -> float:
    """Return the tokens that one request may hold under a provider's limit and a limit a minute."""
    if tokens_per_minute is None:
        return float(limit)
    return min(float(limit), tokens_per_minute * _TOKEN_BURST * (1 - _LEFT_FOR_LIVE))


@dataclass(frozen=True, slots=True)
class AccountState:
    """State of an account and model after a step.

    No request leaves for `seconds`. `refusal` is the provider's refusal for good. A limit a minute has room in `paced`
    seconds. `failures` came in a row. `failing`: the last one is not long ago, and the provider named no time.
    `useless` says why a provider is stopped whose answers were billed in vain.
    """

    seconds: float = 0.0
    refusal: str | None = None
    paced: float = 0.0
    failures: int = 0
    failing: bool = False
    useless: str | None = None

    def error(self) -> Terminal | Waiting:
        """Return the error of a request that must not leave."""
        if self.refusal is not None:
            return Terminal(self.refusal)
        if self.useless is not None:
            return Stopped(self.useless, retry_after=self.seconds)
        reason = "does not answer" if self.failing else "asked to wait"
        return Waiting(f"the embedding provider {reason}", retry_after=self.seconds)


#: Step of an account's state, by name and arguments (`workers.health.rate_limit` lists them).
Step = Callable[..., AccountState]


class RateLimiter:
    """Rate limiter of one account and model. Thread-safe.

    `shared` takes the steps of all processes, over the broker. While it raises BrokerUnavailable, this process goes by
    its own answers, and under a limit a minute only queries leave. Without it there are no limits a minute. The
    cool-down lasts for as long as the provider named. Without a time it is a backoff, which doubles with each failure
    in a row. Outcomes of requests that left before a cool-down began neither lengthen nor end it. `breaker` stops a
    provider whose answers are billed and useless.
    """

    def __init__(
        self,
        limits: ProviderLimits | None = None,
        *,
        shared: Step | None = None,
        breaker: Breaker | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._a_minute = (limits.requests_per_minute, limits.tokens_per_minute) if limits else (None, None)
        self._lock = threading.Lock()
        self._shared = shared
        self.breaker = breaker or Breaker()
        self._clock = clock
        #: The state after the last step, and its time.
        self._last_state = AccountState(), 0.0
        self._slowed_until = float("-inf")

    @property
    def slowed(self) -> bool:
        """Return True if the provider asked to wait a moment ago."""
        return self._clock() < self._slowed_until

    @property
    def limited(self) -> bool:
        """Return True if requests are counted, by the settings or by the provider: each should be a full one."""
        return any(self._a_minute) or self.slowed

    def acquire(self, *, tokens: float, lane: Lane | None, texts: int = 1) -> Permit:
        """Take the right to send one request of so many texts and about so many tokens now, to be reported.

        A query has no `lane`: it is charged and never waits for a limit a minute.

        Raises:
            Terminal: the provider refused for good a moment ago.
            Stopped: its answers are useless, or the request is too large for its trial.
            Waiting: cool-down; `retry_after` says for how long.
            Paced: a limit a minute is used up; `retry_after` seconds from now there is room.
        """
        permit = self.breaker.admit(texts, query=lane is None)
        most_requests, most_tokens = self._a_minute
        requests = _budget(most_requests, lane, at_once=_REQUEST_BURST, part=0.9)
        # Every minute is within it, except for inputs above the share.
        token_budget = _budget(most_tokens, lane, at_once=_TOKEN_BURST)
        state = self._step("acquire", (None, Lane.LIVE, Lane.BACKFILL).index(lane), *requests, tokens, *token_budget)
        if state.seconds <= 0 and state.paced <= 0:
            return permit
        self.breaker.release(permit)
        if state.seconds > 0:
            raise state.error()
        raise Paced("the limit of requests or tokens a minute is used up", retry_after=state.paced)

    def report(
        self, error: RecalldError | None, permit: Permit | None = None, *, wasted: int | None = None, tokens: int = 0
    ) -> None:
        """Report the end of a request, None after a good answer. An error of the input says nothing of the account.

        Of the texts of an answer, `wasted` were billed in vain (None: all of a useless one, else none), with so many
        `tokens`.
        """
        state, _ = self._last_state
        permit = permit or Permit()
        if isinstance(error, Unusable):
            self.breaker.failed(error, permit, texts=permit.texts if wasted is None else wasted, tokens=tokens)
            return
        if error is None:
            self.breaker.answered(permit, wasted=wasted or 0, tokens=tokens)
        else:
            self.breaker.release(permit)
        if isinstance(error, Terminal):
            words = str(error).encode("utf-8", "replace").decode() or "the embedding provider refuses"
            self._step("refused", words[:_LONGEST_REFUSAL])
        elif isinstance(error, Transient):
            self._step("failed", self._pause(error), "cool" if is_asked(error) else "until")
        elif error is None and (state.failures or state.refusal is not None):
            self._step("answered")

    def hold(self) -> AccountState | None:
        """Return the cool-down as far as this process knows it; None if requests may leave. Cheap."""
        if (seconds := self.breaker.seconds()) > 0 and (waste := self.breaker.waste()) is not None:
            return AccountState(seconds, useless=waste.error)
        state, since = self._last_state
        if state.seconds > 0 and self._clock() - since > LOOK_SECONDS:
            state = self._step("look")
            since = self._last_state[1]
        seconds = state.seconds - (self._clock() - since)
        return replace(state, seconds=seconds) if seconds > 0 else None

    def _pause(self, error: Transient) -> float:
        """Return the seconds that the provider named after a failure, else of the backoff.

        A failure during a cool-down is of a request that left before, and doubles nothing.
        """
        if error.retry_after is not None:
            return error.retry_after
        state, since = self._last_state
        first, longest = THROTTLED_BACKOFF if isinstance(error, Throttled) else FAILED_BACKOFF
        seconds = backoff(state.failures + (state.seconds <= self._clock() - since), first=first, longest=longest)
        return seconds if seconds >= SHORTEST_BACKOFF_SECONDS else 0.0

    def _step(self, name: str, *arguments: float | str) -> AccountState:
        try:
            state = self._shared(name, *arguments) if self._shared is not None else None
        except BrokerUnavailable:
            state = None
        with self._lock:
            state = state or self._local_step(name, *arguments)
            self._last_state = state, self._clock()
        if state.seconds > 0 and not state.failing and state.refusal is None:
            self._slowed_until = self._clock() + state.seconds + THROTTLED_BACKOFF[1]
        return state

    def _local_step(self, name: str, *arguments: float | str) -> AccountState:
        """Return the state after a step that the broker did not take."""
        state, since = self._last_state
        state = replace(state, seconds=max(0.0, state.seconds - (self._clock() - since)))
        if name == "refused":
            return replace(state, seconds=REFUSED_SECONDS, refusal=str(arguments[0]))
        if name == "failed":
            pause, field = arguments
            failures = state.failures + (state.seconds <= 0)
            return replace(state, seconds=max(state.seconds, float(pause)), failures=failures, failing=field != "cool")
        if name == "answered" and state.seconds <= 0:
            return AccountState()
        waits = name == "acquire" and arguments[0] != 0 and any(self._a_minute) and self._shared is not None
        return replace(state, paced=BROKER_AWAY_SECONDS if waits else 0.0)


def is_asked(error: Transient) -> bool:
    """Return True if the provider asked to wait, which holds for the whole account; other failures are a model's."""
    return isinstance(error, Throttled) or error.retry_after is not None
