"""Rate limit and cool-down of a provider's account, shared by all processes through the broker."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import redis

from memory.embedding.gate import (
    PROBE_SECONDS,
    Admission,
    Budget,
    Gate,
    LocalGate,
    Urgency,
    request_budget,
    token_budget,
)
from memory.embedding.providers.provider import ProviderLimits
from schemas.errors import BrokerUnavailable, Paced, RecalldError, Terminal, Throttled, Transient, Waiting
from workers.health.account_state import ENTER, LEAVE, LOOK, Answer
from workers.limits.circuit_breaker import CircuitBreaker
from workers.queue.names import account_key

#: Seconds for which a state that was read before is good enough for `refusal`, `delay` and `careful`.
KNOWN_SECONDS = 0.25

#: Differences in seconds that the local gate does not need to learn.
_SAME_SECONDS = 0.05

#: Bytes of a provider's message that are kept.
_LONGEST_SENTENCE = 1000


@dataclass(frozen=True, slots=True)
class _Known:
    """State at `at`; no request leaves before `not_before`. Times of this process's clock."""

    at: float
    sentence: str | None
    not_before: float
    careful: bool


class BrokerGate(Gate):
    """Gate in the broker. While the broker does not answer, the local gate of this process decides.

    `enter` and `leave` are one round trip each. The other methods use the state of the last round trip, or read it
    again after `KNOWN_SECONDS`. `clock` replaces the server's clock, for tests.
    """

    def __init__(
        self,
        client: redis.Redis,
        reach: CircuitBreaker,
        *,
        account: str,
        model: str,
        limits: ProviderLimits | None = None,
        probe_seconds: float = PROBE_SECONDS,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._reach = reach
        self._keys = [account_key(account)]
        self._model = model
        self._probe_seconds = probe_seconds
        self._server_clock = clock
        self._clock = clock or time.monotonic
        self._enter_script: Any = client.register_script(ENTER)
        self._leave_script: Any = client.register_script(LEAVE)
        self._look_script: Any = client.register_script(LOOK)
        self._requests = request_budget(limits.requests_per_minute) if limits and limits.requests_per_minute else None
        self._tokens = token_budget(limits.tokens_per_minute) if limits and limits.tokens_per_minute else None
        self._local = LocalGate(limits, probe_seconds=probe_seconds, clock=self._clock)
        self._looking = threading.Lock()
        self._known: _Known | None = None
        self._was_alone = False

    def enter(self, *, tokens: float, urgency: Urgency) -> Admission:
        args = [
            secrets.token_hex(8),
            tokens,
            0 if urgency is Urgency.QUERY else 1,
            *_limit(self._requests, urgency),
            *_limit(self._tokens, urgency),
        ]
        try:
            answer = self._ask(self._enter_script, args)
        except BrokerUnavailable:
            return self._local.enter(tokens=tokens, urgency=urgency)
        if answer.verdict == "refused":
            raise Terminal(answer.sentence or "")
        if answer.verdict == "waiting":
            raise Waiting("the embedding provider asked to wait", retry_after=answer.wait)
        if answer.verdict == "out":
            raise Waiting("the embedding provider does not answer", retry_after=answer.wait)
        if answer.verdict == "paced":
            raise Paced("the limit of requests or tokens a minute is used up", retry_after=answer.wait)
        if answer.verdict == "probe":
            return Admission.PROBE
        with suppress(RecalldError):
            # Charged locally, too: if the broker goes away now, no budget is spent twice.
            self._local.enter(tokens=tokens, urgency=Urgency.QUERY)
        return Admission.NORMAL

    def leave(self, admission: Admission, error: RecalldError | None) -> None:
        try:
            self._ask(self._leave_script, self._ending(admission, error))
        except BrokerUnavailable:
            self._local.leave(admission, error)

    def refusal(self) -> Terminal | None:
        known = self._look()
        if known is None:
            return self._local.refusal()
        return Terminal(known.sentence) if known.sentence is not None and self._clock() < known.not_before else None

    def delay(self) -> float:
        known = self._look()
        if known is None:
            return self._local.delay()
        return max(0.0, known.not_before - self._clock()) if known.sentence is None else 0.0

    @property
    def careful(self) -> bool:
        known = self._look()
        return known.careful if known is not None else self._local.careful

    def _look(self) -> _Known | None:
        """Return the state, at most `KNOWN_SECONDS` old; None while the broker does not answer."""
        known = self._known
        if known is not None and self._clock() - known.at < KNOWN_SECONDS:
            return known
        if self._looking.acquire(blocking=False):
            try:
                self._ask(self._look_script, [])
            except BrokerUnavailable:
                return None
            finally:
                self._looking.release()
        return self._known

    def _ask(self, script: Any, args: list[Any]) -> Answer:
        try:
            if self._was_alone:
                self._tell_what_happened()
            answer = self._run(script, args)
        except BrokerUnavailable:
            self._was_alone = True
            self._known = None
            raise
        now = self._clock()
        self._known = _Known(now, answer.sentence, now + answer.delay, answer.careful)
        self._teach(answer)
        return answer

    def _run(self, script: Any, args: list[Any]) -> Answer:
        now = self._server_clock() if self._server_clock is not None else ""
        return Answer.of(self._reach.ask(lambda: script(keys=self._keys, args=[self._model, now, *args])))

    def _tell_what_happened(self) -> None:
        """Report the local gate's refusal or pause to a broker that is back: it may have missed them."""
        refused, delay = self._local.refusal(), self._local.delay()
        if refused is not None:
            self._run(self._leave_script, self._ending(Admission.NORMAL, refused))
        elif delay > 0:
            self._run(self._leave_script, self._ending(Admission.NORMAL, Transient("", retry_after=delay)))
        self._was_alone = False

    def _teach(self, answer: Answer) -> None:
        """Copy the broker's state to the local gate, for the time when the broker is away."""
        local = self._local
        if answer.sentence is not None:
            if answer.delay > _SAME_SECONDS and local.refusal() is None:
                local.leave(Admission.NORMAL, Terminal(answer.sentence))
            return
        if local.careful and not answer.careful:
            local.leave(Admission.PROBE, None)
        if answer.delay > local.delay() + _SAME_SECONDS:
            local.leave(Admission.NORMAL, Transient("", retry_after=answer.delay))

    def _ending(self, admission: Admission, error: RecalldError | None) -> list[Any]:
        asked: float | None = None
        outcome, sentence = "neither", b""
        if error is None:
            outcome = "answered"
        elif isinstance(error, Terminal):
            outcome = "refused"
            sentence = (str(error) or "the embedding provider refuses").encode("utf-8", "replace")[:_LONGEST_SENTENCE]
        elif isinstance(error, Transient):
            outcome = "throttled" if isinstance(error, Throttled) else "failed"
            asked = error.retry_after
        probe = int(admission is Admission.PROBE)
        return [probe, outcome, "" if asked is None else asked, sentence, self._probe_seconds]


def _limit(budget: Budget | None, urgency: Urgency) -> list[float]:
    return [budget.rate, budget.room(urgency)] if budget is not None else [0, 0]
