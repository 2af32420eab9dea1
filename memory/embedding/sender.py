"""One batch and everything that can become of it: retries, splitting, refusals.

Pure of threads and tickets: `BatchSender.outcomes` yields what each response decided, as it comes.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import structlog
import tenacity

from memory.chunking.chunker import estimate_tokens
from memory.embedding.coordination import InFlightRequests, Item, Meter
from memory.embedding.gate import Admission, Gate, Urgency
from memory.embedding.providers.provider import EmbeddingProvider, Matrix
from memory.embedding.vectors import round_rows
from memory.store.writer import Refusal
from schemas.errors import Paced, Permanent, RecalldError, Terminal, Throttled, TooLarge, Transient, Waiting

log = structlog.get_logger(__name__)

#: Seconds that one request may spend waiting between its attempts; longer waits are the job's, not ours.
PATIENCE_SECONDS = 5.0

#: Attempts of one request, whatever the waits were.
_MOST_ATTEMPTS = 8

#: How often a text whose vector came back unusable among good ones is asked again before it is refused.
_MOST_REPEATS = 2

#: How often a text may fail alone, all attempts used up, while the endpoint answers others, before it is refused.
MOST_STRIKES = 3

#: Texts whose strikes are remembered.
_MOST_STRUCK = 1_000

#: Seconds between two looks at callers of a request that waits for its turn in the minute.
_LOOK_SECONDS = 0.5

#: A text that no provider objects to: tells whether it is the texts or the endpoint that is refused.
_HARMLESS = "memory"

#: Outcome of a request that no caller waited for: it says nothing about the endpoint.
_ABANDONED: Final = RecalldError("the request was abandoned")


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one response for the texts at `places`.

    `result`: a float32 matrix of rounded vectors with a row for each place, a refusal of them all, or the
    error that keeps them waiting.
    """

    places: Sequence[int]
    result: Matrix | Refusal | Transient | Terminal


@dataclass(frozen=True, slots=True)
class _Part:
    places: Sequence[int]
    repeats: int = 0


@dataclass(frozen=True, slots=True)
class _Errand:
    """Values that all requests of one batch share."""

    urgency: Urgency
    wanted: Callable[[], bool]


class BatchSender:
    """Sends batches to one provider. Thread-safe.

    `dimensions` is learned from the first good response when not given. `largest` is the number of inputs
    that the endpoint was found to take at most, None while it never objected.
    """

    def __init__(
        self,
        provider: EmbeddingProvider,
        gate: Gate,
        meter: Meter,
        *,
        stopping: threading.Event,
        asking: InFlightRequests | None = None,
        dimensions: int | None = None,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._provider = provider
        self._gate = gate
        self._meter = meter
        self._asking = asking or InFlightRequests()
        self._stopping = stopping
        self._patience = patience_seconds
        self._lock = threading.Lock()
        self._proven = False
        self._strikes: OrderedDict[str, int] = OrderedDict()
        self._probes = 0
        self.dimensions = dimensions
        self.largest: int | None = None

    def outcomes(
        self, items: Sequence[Item], *, urgency: Urgency, wanted: Callable[[], bool] = lambda: True
    ) -> Iterator[Outcome]:
        """Embed the texts; yields every response's outcome, in all exactly one for each text.

        `wanted` is asked before another attempt, which needs a caller that still waits.
        """
        errand = _Errand(urgency, wanted)
        parts = [_Part(range(len(items)))]
        too_much: list[Sequence[int]] = []
        failed: set[int] = set()
        while parts:
            part = parts.pop()
            try:
                matrix, unusable = self._ask([items[place] for place in part.places], part.repeats, errand)
            except Permanent as error:
                verdict = self._judge(errand, error)
                if verdict is not None:
                    yield from _given_up(verdict, [part, *parts])
                    return
                if len(part.places) == 1:
                    failed.update(part.places)
                    yield self._alone(items[part.places[0]], part.places, error, errand)
                else:
                    too_much.append(part.places)
                    parts += _halves(part)
                continue
            except (Transient, Terminal) as error:
                if not self._is_the_texts_fault(errand, error):
                    yield from _given_up(error, [part, *parts])
                    return
                failed.update(part.places)
                if len(part.places) == 1:
                    yield Outcome(part.places, self._strike(items[part.places[0]].text, error))
                else:
                    parts += _halves(part)
                continue
            good = [place for place, bad in zip(part.places, unusable, strict=True) if not bad]
            if good:
                self._learn(matrix.shape[1])
                yield Outcome(good, matrix if len(good) == len(part.places) else matrix[~unusable])
            if len(good) == len(part.places):
                continue
            rest = [place for place, bad in zip(part.places, unusable, strict=True) if bad]
            failed.update(rest)
            if part.repeats < _MOST_REPEATS:
                parts.append(_Part(rest, part.repeats + 1))
            else:
                yield Outcome(
                    rest, Refusal("the provider returned a vector that is zero or not finite, again and again")
                )
        self._remember_limit([places for places in too_much if failed.isdisjoint(places)])

    def abandon(self) -> None:
        """Give back the probes in flight: no other probe leaves before they are back."""
        with self._lock:
            probes, self._probes = self._probes, 0
        for _ in range(probes):
            self._gate.leave(Admission.PROBE, _ABANDONED)

    def _alone(self, item: Item, places: Sequence[int], error: Permanent, errand: _Errand) -> Outcome:
        """Embed a text that was refused alone in pieces if it was too long, else give it up."""
        if not isinstance(error, TooLarge):
            return Outcome(places, Refusal(error.reason))
        for pieces in cut_in_pieces(item):
            try:
                matrix, unusable = self._ask(pieces, 0, errand)
            except TooLarge:
                continue
            except Permanent as refused:
                return Outcome(places, Refusal(refused.reason))
            except (Transient, Terminal) as failure:
                return Outcome(places, failure)
            whole, useless = round_rows(mean_of(pieces, matrix), expected=1, dimensions=None)
            if not unusable.any() and not useless.any():
                self._learn(matrix.shape[1])
                return Outcome(places, whole)
            break
        return Outcome(places, Refusal(error.reason))

    def _ask(self, items: Sequence[Item], repeats: int, errand: _Errand) -> tuple[Matrix, npt.NDArray[np.bool_]]:
        """Send one request, with short waits after passing failures."""
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(Transient),
            wait=_wait,
            stop=lambda state: (
                state.idle_for + state.upcoming_sleep > self._patience
                or state.attempt_number >= _MOST_ATTEMPTS
                or self._stopping.is_set()
                or not errand.wanted()
            ),
            sleep=self._sleep,
            reraise=True,
        )
        seen: list[Transient] = []

        def attempt() -> tuple[Matrix, npt.NDArray[np.bool_]]:
            try:
                return self._attempt(items, repeats, errand)
            except (Paced, Waiting):
                raise
            except Transient as error:
                seen.append(error)
                raise

        try:
            return retrying(attempt)
        except Waiting as waiting:
            if not seen:
                raise
            # The failure itself says more than the wait that it caused.
            kind = Throttled if isinstance(seen[-1], Throttled) else Transient
            raise kind(str(seen[-1]), retry_after=waiting.retry_after) from seen[-1]

    def _sleep(self, seconds: float) -> None:
        self._stopping.wait(seconds)

    def _attempt(self, items: Sequence[Item], repeats: int, errand: _Errand) -> tuple[Matrix, npt.NDArray[np.bool_]]:
        admission = self._enter(items, errand)
        with self._lock:
            self._probes += admission is Admission.PROBE
        failure: RecalldError | None = Transient("the request failed in an unexpected way")
        billed: int | None = None
        try:
            with self._asking.request(self._provider):
                answer = self._provider.embed_documents([item.text for item in items])
            billed = answer.tokens
            rounded, unusable = round_rows(answer.vectors, expected=len(items), dimensions=self.dimensions)
            if unusable.all() and not repeats:
                # Without one good vector, the endpoint is at fault, not these texts.
                raise Transient("the endpoint returned only vectors that are zero or not finite")
            failure = None
        except RecalldError as error:
            failure = error
            raise
        finally:
            self._leave(admission, failure)
            self._tell(failure)
            self._meter.count(items, failed=failure is not None, billed=billed)
        return rounded, unusable

    def _enter(self, items: Sequence[Item], errand: _Errand) -> Admission:
        """Take the right to send, waiting for the minute's limits as long as a caller wants the answer."""
        tokens = sum(item.tokens for item in items)
        while True:
            try:
                return self._gate.enter(tokens=tokens, urgency=errand.urgency)
            except Paced as paced:
                if self._stopping.is_set() or not errand.wanted():
                    raise
                self._sleep(min(paced.retry_after or _LOOK_SECONDS, _LOOK_SECONDS))

    def _leave(self, admission: Admission, failure: RecalldError | None) -> None:
        if admission is Admission.PROBE:
            with self._lock:
                if not self._probes:
                    return  # it was abandoned: another one may be out by now
                self._probes -= 1
        self._gate.leave(admission, failure)

    def _tell(self, failure: RecalldError | None) -> None:
        if isinstance(failure, Terminal):
            log.warning("embedding_provider_refuses", provider=self._provider.name, error=str(failure))
        elif isinstance(failure, Throttled) or (isinstance(failure, Transient) and failure.retry_after):
            log.warning(
                "embedding_cool_down", provider=self._provider.name, seconds=failure.retry_after, error=str(failure)
            )

    def _judge(self, errand: _Errand, error: Permanent) -> Terminal | None:
        """Return the error of an endpoint that refuses every text because of its settings, None if it refuses these.

        Without this, an endpoint that refuses everything would be asked twice for every single text.
        """
        with self._lock:
            if self._proven:
                return None
        try:
            self._attempt([_harmless()], 0, errand)
        except Permanent:
            verdict = Terminal(f"{error} It refuses every text: look at the provider, model and remote settings.")
            self._gate.leave(Admission.NORMAL, verdict)
            self._tell(verdict)
            return verdict
        except (Transient, Terminal):
            # Nothing learned; the texts decide.
            return None
        with self._lock:
            self._proven = True
        return None

    def _is_the_texts_fault(self, errand: _Errand, error: Transient | Terminal) -> bool:
        """Return True if the endpoint, which failed on these texts, answers another one: then a text breaks it."""
        if isinstance(error, Terminal | Throttled | Paced) or error.retry_after is not None:
            return False
        if self._stopping.is_set() or not errand.wanted():
            return False
        try:
            self._attempt([_harmless()], 0, errand)
        except RecalldError:
            return False
        return True

    def _strike(self, text: str, error: Transient | Terminal) -> Refusal | Transient:
        """Count a failure of a text alone; refuse it after `MOST_STRIKES` of them."""
        with self._lock:
            strikes = self._strikes.pop(text, 0) + 1
            if strikes >= MOST_STRIKES:
                return Refusal(f"{self._provider.name} failed on it {strikes} times while it answered others: {error}")
            self._strikes[text] = strikes
            if len(self._strikes) > _MOST_STRUCK:
                self._strikes.popitem(last=False)
        return Transient(str(error))

    def _learn(self, dimensions: int) -> None:
        with self._lock:
            self._proven = True
            if self.dimensions is None:
                self.dimensions = dimensions

    def _remember_limit(self, too_much: Sequence[Sequence[int]]) -> None:
        """Send smaller batches from now on if batches were refused whole and accepted in halves."""
        if not too_much:
            return
        most = max(8, min(map(len, too_much)) // 2)
        with self._lock:
            if self.largest is None or most < self.largest:
                self.largest = most
                log.warning("embedding_batch_limit_learned", provider=self._provider.name, inputs=most)


def _harmless() -> Item:
    return Item(_HARMLESS, estimate_tokens(_HARMLESS))


def _halves(part: _Part) -> list[_Part]:
    """Return both halves, the first one last, because the last part is sent first."""
    middle = (len(part.places) + 1) // 2
    return [_Part(part.places[middle:]), _Part(part.places[:middle])]


def _given_up(error: Transient | Terminal, parts: Sequence[_Part]) -> Iterator[Outcome]:
    for part in parts:
        yield Outcome(part.places, error)


_backoff = tenacity.wait_random_exponential(multiplier=0.25, max=2.0)


def _wait(state: tenacity.RetryCallState) -> float:
    """Return a full-jitter exponential backoff, or the provider's requested pause and a little more."""
    error = state.outcome.exception() if state.outcome is not None else None
    asked = error.retry_after if isinstance(error, Transient) else None
    jittered: float = _backoff(state)
    # A fraction on top, so that threads with the same pause do not return in the same millisecond.
    return jittered if asked is None else asked + min(jittered, asked * 0.1 + 0.01)


#: Pieces of the first try; doubled each time up to the most.
_FEWEST_PIECES, _MOST_PIECES = 2, 32

#: Characters that a piece should have at least.
_SHORTEST_PIECE = 40


def cut_in_pieces(item: Item) -> Iterator[list[Item]]:
    """Yield a text cut into 2, 4, 8 ... pieces of about the same length, as long as they are long enough."""
    pieces = _FEWEST_PIECES
    while pieces <= _MOST_PIECES and len(item.text) >= pieces * _SHORTEST_PIECE:
        parts = [part for part in _cut(item.text, pieces) if part.strip()]
        yield [Item(part, estimate_tokens(part), item.agent) for part in parts]
        pieces *= 2


def mean_of(pieces: Sequence[Item], vectors: Matrix) -> Matrix:
    """Return the mean of unit vectors, weighted by their pieces' tokens; shape (1, dimensions), not of unit length."""
    weights = np.array([piece.tokens for piece in pieces], dtype=np.float32)
    mean: Matrix = (weights[None, :] @ vectors) / weights.sum()
    return mean


def _cut(text: str, pieces: int) -> Iterator[str]:
    """Yield the text's parts, cut at a space or line end near equal parts' ends."""
    start = 0
    for number in range(1, pieces):
        ideal = len(text) * number // pieces
        reach = len(text) // pieces // 4
        space = max(text.rfind(" ", ideal - reach, ideal), text.rfind("\n", ideal - reach, ideal))
        end = space + 1 if space > start else ideal
        yield text[start:end]
        start = end
    yield text[start:]
