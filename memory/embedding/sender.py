"""Sending of one batch: retries, splitting, refusals.

Pure of threads and futures: `BatchSender.outcomes` yields the outcome of each response as it comes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import structlog
import tenacity

from memory.chunking.chunker import estimate_tokens
from memory.embedding.breaker import SOON_SECONDS, Permit
from memory.embedding.coordination import Coordination, Item, Meter
from memory.embedding.providers.provider import EmbeddingProvider, Matrix
from memory.embedding.rate_limit import Urgency
from memory.embedding.vectors import round_rows
from memory.store.writer import Refusal
from schemas.errors import (
    Paced,
    Permanent,
    RecalldError,
    Stopped,
    Terminal,
    Throttled,
    TooLarge,
    Transient,
    Unusable,
    Waiting,
)

log = structlog.get_logger(__name__)

#: Seconds that one request may spend waiting between its attempts; longer waits are the job's, not ours.
PATIENCE_SECONDS = 5.0

#: Attempts of one request, even if its waits were short.
_MOST_ATTEMPTS = 8

#: How often a text fails alone, in turn with another text that is answered, before it is refused.
TRIALS = 3

#: Seconds between two looks at callers of a request that waits for its turn in the minute.
_LOOK_SECONDS = 0.5

#: Harmless text, to which no provider objects.
_HARMLESS = "memory"


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
    """Texts of one request. `again`: their vectors came back unusable among good ones. `trials` of a text alone."""

    places: Sequence[int]
    again: bool = False
    trials: int = 1


@dataclass(frozen=True, slots=True)
class _Errand:
    """Values that all requests of one batch share: `is_wanted` returns True if a caller still waits."""

    urgency: Urgency
    is_wanted: Callable[[], bool]
    attempts: int = _MOST_ATTEMPTS


class BatchSender:
    """Sends batches to one provider. Thread-safe.

    `dimensions` is learned from the first good response when not given.
    """

    def __init__(
        self,
        provider: EmbeddingProvider,
        coordination: Coordination,
        *,
        stopping: threading.Event,
        dimensions: int | None = None,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._provider = provider
        self._limiter = coordination.limiter
        self._meter = Meter(provider, coordination.usage)
        self._asking = coordination.asking
        self._stopping = stopping
        self._patience = patience_seconds
        self._proven = False
        #: Texts with a useless answer when they were sent alone.
        self._suspects: set[str | None] = set()
        self.dimensions = dimensions

    def outcomes(
        self, items: Sequence[Item], *, urgency: Urgency, is_wanted: Callable[[], bool] = lambda: True
    ) -> Iterator[Outcome]:
        """Embed the texts; yields every response's outcome, in all exactly one for each text.

        `is_wanted` is called before another attempt, which needs a caller that still waits.
        """
        errand = _Errand(urgency, is_wanted)
        parts = [_Part(range(len(items)))]
        # A text that cannot be at fault tells if a stopped provider is right again.
        if self._is_stopped() and (error := self._probe(errand)) is not None:
            yield Outcome(parts[0].places, error if isinstance(error, Transient | Terminal) else Transient(str(error)))
            return
        while parts:
            part = parts.pop()
            texts = [items[place] for place in part.places]
            alone = texts[0].text if len(texts) == 1 else None
            again = part.again or alone in self._suspects
            try:
                matrix, unusable = self._ask(texts, errand, again=again)
            except Unusable as error:
                # Vectors of another width are no text's fault.
                of_this_text = alone is not None and error.got is None
                if of_this_text and again:
                    self._suspects.discard(alone)
                    yield Outcome(part.places, Refusal(f"{error}, while {self._provider.name} answered others"))
                    continue
                if of_this_text:
                    self._suspects.add(alone)
                if (self._is_stopped() and self._probe(errand) is not None) or not of_this_text:
                    yield from (Outcome(unsent.places, self._with_retry_time(error)) for unsent in (part, *parts))
                    return
                parts.append(part)
            except (Permanent, Transient, Terminal) as error:
                blocking = self._fault_of_all(error, errand, last=part.trials == TRIALS)
                if blocking is not None:
                    yield from (Outcome(unsent.places, blocking) for unsent in (part, *parts))
                    return
                if isinstance(error, Transient):
                    # The endpoint works, so a text that breaks it does so at once.
                    errand = replace(errand, attempts=1)
                if len(texts) > 1:
                    middle = (len(texts) + 1) // 2
                    # The first half last, because the last part is sent first.
                    parts += [_Part(part.places[middle:]), _Part(part.places[:middle])]
                elif isinstance(error, Permanent):
                    yield Outcome(part.places, self._embed_alone(texts[0], error, errand))
                elif part.trials < TRIALS:
                    parts.append(replace(part, trials=part.trials + 1))
                else:
                    reason = f"{self._provider.name} failed on it {TRIALS} times while it answered others: {error}"
                    yield Outcome(part.places, Refusal(reason))
            else:
                if not unusable.all():
                    sound = [place for place, bad in zip(part.places, unusable, strict=True) if not bad]
                    yield Outcome(sound, matrix[~unusable])
                flawed = [place for place, bad in zip(part.places, unusable, strict=True) if bad]
                self._suspects.discard(alone)
                if flawed and again:
                    yield Outcome(flawed, Refusal("the provider returned a vector that is zero or not finite, twice"))
                elif flawed:
                    # While the provider is stopped, because most vectors are bad, this one is not sent.
                    parts.append(_Part(flawed, again=True))

    def _fault_of_all(self, error: RecalldError, errand: _Errand, *, last: bool) -> Transient | Terminal | None:
        """Return the error that keeps all texts waiting; None if these texts are at fault.

        If the provider named no cause, a harmless text is sent: if that fails too, the endpoint is at fault. That text
        is billed; it leaves after the first failure and before a text is refused.
        """
        if isinstance(error, Permanent):
            # Else an endpoint that refuses everything would be asked twice for every single text.
            if self._proven or not isinstance(self._probe(errand), Permanent):
                return None
            refusal = Terminal(f"{error} It refuses every text: look at the provider, model and remote settings.")
            self._report(refusal)
            return refusal
        if not isinstance(error, Transient | Terminal):
            return None
        may_probe = last or errand.attempts > 1
        return error if _blames_endpoint(error) or (may_probe and self._probe(errand) is not None) else None

    def _embed_alone(self, item: Item, error: Permanent, errand: _Errand) -> Matrix | Refusal | Transient | Terminal:
        """Embed a text that was refused alone in pieces if it was too long, else give it up."""
        if isinstance(error, TooLarge):
            for pieces in cut_in_pieces(item):
                try:
                    matrix, unusable = self._ask(pieces, errand)
                except TooLarge:
                    continue
                except Permanent as refusal:
                    return Refusal(refusal.reason)
                except (Transient, Terminal) as failure:
                    return failure
                vector, useless = round_rows(mean_of(pieces, matrix), expected=1, dimensions=None)
                if unusable.any() or useless.any():
                    break
                return vector
        return Refusal(error.reason)

    def _ask(
        self, items: Sequence[Item], errand: _Errand, *, again: bool = False
    ) -> tuple[Matrix, npt.NDArray[np.bool_]]:
        """Send one request, with short waits after passing failures."""
        failure: Transient | None = None

        def attempt() -> tuple[Matrix, npt.NDArray[np.bool_]]:
            nonlocal failure
            try:
                return self._attempt(items, errand, again=again)
            except (Paced, Waiting, Unusable):
                raise
            except Transient as error:
                failure = error
                raise

        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(
                lambda error: isinstance(error, Transient) and not isinstance(error, Unusable | Stopped)
            ),
            wait=_wait,
            stop=lambda state: (
                state.idle_for + state.upcoming_sleep > self._patience
                or state.attempt_number >= errand.attempts
                or self._stopping.is_set()
                or not errand.is_wanted()
            ),
            sleep=self._sleep,
            reraise=True,
        )
        try:
            return retrying(attempt)
        except Waiting as waiting:
            if failure is None or isinstance(waiting, Stopped):
                raise
            # The failure itself says more than the wait that it caused.
            kind = Throttled if isinstance(failure, Throttled) else Transient
            raise kind(str(failure), retry_after=waiting.retry_after) from failure

    def _attempt(
        self, items: Sequence[Item], errand: _Errand, *, again: bool = False
    ) -> tuple[Matrix, npt.NDArray[np.bool_]]:
        permit = self._acquire(items, errand)
        failure: RecalldError | None = Transient("the request failed in an unexpected way")
        billed: int | None = None
        wasted = len(items)
        try:
            with self._asking.request(self._provider):
                answer = self._provider.embed_documents([item.text for item in items])
            billed = answer.tokens
            rounded, unusable = round_rows(answer.vectors, expected=len(items), dimensions=self.dimensions)
            wasted = int(unusable.sum())
            failure = None if again or wasted * 2 <= len(items) else _mostly_unusable(unusable)
            if failure is not None and wasted == len(items):
                raise failure
        except RecalldError as error:
            failure = error
            raise
        finally:
            if isinstance(failure, Unusable) and billed is None:
                billed = round(sum(item.tokens for item in items))
            # A text that failed alone before is at fault, not the provider, which answered another one meanwhile.
            excused = again and len(items) == 1 and isinstance(failure, Unusable) and failure.got is None
            reported: RecalldError | None = None if excused else failure
            harmless = items[0].text == _HARMLESS
            if errand.attempts == 1 and not harmless and type(failure) is Transient and not _blames_endpoint(failure):
                # The endpoint was shown to work: its backoff would hold up the texts beside this one.
                reported = Permanent(str(failure))
            # No document needs the vector of the harmless text.
            in_vain = len(items) if harmless else wasted
            self._report(reported, permit, wasted=in_vain, tokens=(billed or 0) * in_vain // len(items))
            self._meter.count(items, failed=failure is not None and wasted == len(items), billed=billed)
        self._proven = True
        self.dimensions = self.dimensions or rounded.shape[1]
        return rounded, unusable

    def _acquire(self, items: Sequence[Item], errand: _Errand) -> Permit:
        """Take the right to send, waiting for the minute's limits as long as a caller wants the answer."""
        tokens = sum(item.tokens for item in items)
        while True:
            try:
                return self._limiter.acquire(tokens=tokens, urgency=errand.urgency, texts=len(items))
            except Paced as paced:
                if self._stopping.is_set() or not errand.is_wanted():
                    raise
                self._sleep(min(paced.retry_after or _LOOK_SECONDS, _LOOK_SECONDS))

    def _sleep(self, seconds: float) -> None:
        self._stopping.wait(seconds)

    def _is_stopped(self) -> bool:
        waste = self._limiter.breaker.waste()
        return waste is not None and waste.stopped

    def _with_retry_time(self, error: Unusable) -> Unusable:
        """Return the error of a useless answer with the time of the next question."""
        error.retry_after = max(self._limiter.breaker.seconds(), SOON_SECONDS)
        return error

    def _report(
        self, failure: RecalldError | None, permit: Permit | None = None, *, wasted: int = 0, tokens: int = 0
    ) -> None:
        """Report the end of a request to the rate limiter and the log."""
        self._limiter.report(failure, permit, wasted=wasted, tokens=tokens)
        name = self._provider.name
        if isinstance(failure, Terminal):
            log.warning("embedding_provider_refuses", provider=name, error=str(failure))
        elif isinstance(failure, Throttled) or (isinstance(failure, Transient) and failure.retry_after):
            log.warning("embedding_cool_down", provider=name, seconds=failure.retry_after, error=str(failure))

    def _probe(self, errand: _Errand) -> RecalldError | None:
        """Send the harmless text; return the error, None if it is answered."""
        if self._stopping.is_set() or not errand.is_wanted():
            return Transient("no caller waits")
        try:
            self._ask([Item(_HARMLESS, estimate_tokens(_HARMLESS))], errand)
        except RecalldError as error:
            return error
        return None


def _blames_endpoint(error: Transient | Terminal) -> bool:
    """Return True if the provider itself says that the failure is not one of these texts."""
    return isinstance(error, Terminal | Throttled | Paced) or error.retry_after is not None


def _mostly_unusable(unusable: npt.NDArray[np.bool_]) -> Unusable:
    """Return the error of an answer with more bad vectors than good ones: its endpoint is at fault, not the texts."""
    bad = "only" if unusable.all() else f"{int(unusable.sum())} of {len(unusable)}"
    return Unusable(f"the endpoint returned {bad} vectors that are zero or not finite")


_backoff = tenacity.wait_random_exponential(multiplier=0.25, max=2.0)


def _wait(state: tenacity.RetryCallState) -> float:
    """Return a full-jitter exponential backoff, or the provider's requested pause and a little more."""
    error = state.outcome.exception() if state.outcome is not None else None
    retry_after = error.retry_after if isinstance(error, Transient) else None
    jittered: float = _backoff(state)
    # A fraction on top, so that threads with the same pause do not return in the same millisecond.
    return jittered if retry_after is None else retry_after + min(jittered, retry_after * 0.1 + 0.01)


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
