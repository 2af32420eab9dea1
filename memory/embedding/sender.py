"""Sending of one batch: retries, splitting, refusals.

Pure of threads and futures: `BatchSender.results` yields the result of each response as it comes.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import tenacity

from memory.embedding.breaker import SOON_SECONDS
from memory.embedding.coordination import Coordination, Item
from memory.embedding.providers.provider import EmbeddingProvider, Matrix
from memory.embedding.rate_limit import is_asked
from memory.embedding.vectors import round_rows
from memory.store.writer import Refusal
from schemas.documents import Lane
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
    backoff,
)

T = TypeVar("T", bound=Item)

#: Seconds that one request may spend waiting between its attempts; longer waits are the job's, not ours.
PATIENCE_SECONDS = 5.0

#: Attempts of one request, even if its waits were short.
_MOST_ATTEMPTS = 8

#: Seconds of the first and of the longest wait between them.
_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.25, 2.0

#: How often a text fails alone, in turn with another text that is answered, before it is refused.
TRIALS = 3

#: Seconds between two looks at callers of a request that waits for its turn in the minute.
_LOOK_SECONDS = 0.5

#: Harmless text, to which no provider objects.
_HARMLESS = "memory"

#: Result of texts: float32 rounded vectors with a row for each, a refusal of them all, or the error that keeps them
#: waiting.
Result: TypeAlias = "Matrix | Refusal | Transient | Terminal"


@dataclass(slots=True)
class _Batch:
    """Values that all requests of one batch share: `is_wanted` returns True if a caller still waits."""

    lane: Lane
    is_wanted: Callable[[], bool]
    attempts: int = _MOST_ATTEMPTS


class _Blocked(Exception):
    """Failure of the endpoint that keeps all texts waiting that have no result yet."""

    def __init__(self, reason: Transient | Terminal) -> None:
        super().__init__(str(reason))
        self.reason = reason


class BatchSender:
    """Sends batches to one provider. Thread-safe."""

    def __init__(
        self,
        provider: EmbeddingProvider,
        coordination: Coordination,
        *,
        stopping: threading.Event,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._provider = provider
        self._coordination = coordination
        self._limiter = coordination.limiter
        self._stopping = stopping
        self._patience = patience_seconds
        self._proven = False
        #: Texts with a useless answer when they were sent alone.
        self._suspects: set[str | None] = set()
        #: Width of the vectors, None if unknown; learned from the first good response when no caller names it.
        self.dimensions: int | None = None

    def results(
        self, items: Sequence[T], *, lane: Lane, is_wanted: Callable[[], bool] = lambda: True
    ) -> Iterator[tuple[Sequence[T], Result]]:
        """Embed different items; yield the texts and result of every response, in all exactly one for each text.

        `is_wanted` is called before another attempt, which needs a caller that still waits.
        """
        batch = _Batch(lane, is_wanted)
        # A text that cannot be at fault tells if a stopped provider is right again.
        if self._is_stopped() and (error := self._probe(batch)) is not None:
            yield items, error if isinstance(error, Transient | Terminal) else Transient(str(error))
            return
        undecided = dict.fromkeys(items)
        try:
            for part, result in self._send(items, batch):
                for entry in part:
                    del undecided[entry]
                yield part, result
        except _Blocked as blocked:
            yield list(undecided), blocked.reason

    def _send(
        self, items: Sequence[T], batch: _Batch, *, again: bool = False, trial: int = 1
    ) -> Iterator[tuple[Sequence[T], Result]]:
        """Send texts in one request, and in further ones until the text at fault is found.

        `again`: their vectors came back unusable among good ones. `trial` is the number of tries of a text alone.

        Raises:
            _Blocked: the endpoint is at fault.
        """
        alone = items[0].text if len(items) == 1 else None
        again = again or alone in self._suspects
        try:
            matrix, unusable = self._ask(items, batch, again=again)
        except Unusable as error:
            # Vectors of another width are no text's fault.
            of_this_text = alone is not None and error.got is None
            if of_this_text and again:
                self._suspects.discard(alone)
                yield items, Refusal(f"{error}, while {self._provider.name} answered others")
                return
            if of_this_text:
                self._suspects.add(alone)
            if (self._is_stopped() and self._probe(batch) is not None) or not of_this_text:
                # Until the time of the next question.
                error.retry_after = max(self._limiter.breaker.seconds(), SOON_SECONDS)
                raise _Blocked(error) from error
            yield from self._send(items, batch)
        except (Permanent, Transient, Terminal) as error:
            self._blame(error, batch, last=trial == TRIALS)
            if len(items) > 1:
                middle = (len(items) + 1) // 2
                yield from self._send(items[:middle], batch)
                yield from self._send(items[middle:], batch)
            elif isinstance(error, Permanent):
                yield items, self._embed_alone(items[0], error, batch)
            elif trial < TRIALS:
                yield from self._send(items, batch, again=again, trial=trial + 1)
            else:
                reason = f"{self._provider.name} failed on it {TRIALS} times while it answered others: {error}"
                yield items, Refusal(reason)
        else:
            if not unusable.all():
                yield [entry for entry, bad in zip(items, unusable, strict=True) if not bad], matrix[~unusable]
            flawed = [entry for entry, bad in zip(items, unusable, strict=True) if bad]
            self._suspects.discard(alone)
            if flawed and again:
                yield flawed, Refusal("the provider returned a vector that is zero or not finite, twice")
            elif flawed:
                # While the provider is stopped, because most vectors are bad, this one is not sent.
                yield from self._send(flawed, batch, again=True)

    def _blame(self, error: Permanent | Transient | Terminal, batch: _Batch, *, last: bool) -> None:
        """Find out if these texts are at fault.

        If the provider named no cause, a harmless text is sent: if that fails too, the endpoint is at fault. That text
        is billed; it leaves after the first failure and before a text is refused.

        Raises:
            _Blocked: the endpoint is at fault.
        """
        if isinstance(error, Permanent):
            # Else an endpoint that refuses everything would be asked twice for every single text.
            if not self._proven and isinstance(self._probe(batch), Permanent):
                refusal = Terminal(f"{error} It refuses every text: look at the provider, model and remote settings.")
                self._coordination.report(self._provider, refusal)
                raise _Blocked(refusal)
            return
        may_probe = last or batch.attempts > 1
        if _blames_endpoint(error) or (may_probe and self._probe(batch) is not None):
            raise _Blocked(error)
        # The endpoint works, so a text that breaks it does so at once.
        batch.attempts = 1

    def _embed_alone(self, entry: Item, error: Permanent, batch: _Batch) -> Result:
        """Embed a text that was refused alone in pieces if it was too long, else give it up."""
        if isinstance(error, TooLarge):
            for pieces in cut_in_pieces(entry):
                try:
                    matrix, unusable = self._ask(pieces, batch)
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
        self, items: Sequence[Item], batch: _Batch, *, again: bool = False
    ) -> tuple[Matrix, npt.NDArray[np.bool_]]:
        """Send one request, after its turn in the minute has come, and with short waits after passing failures."""
        failure: Transient | None = None

        def attempt() -> tuple[Matrix, npt.NDArray[np.bool_]]:
            nonlocal failure
            while True:
                try:
                    return self._attempt(items, batch, again=again)
                except Paced as paced:
                    if self._stopping.is_set() or not batch.is_wanted():
                        raise
                    self._sleep(min(paced.retry_after or _LOOK_SECONDS, _LOOK_SECONDS))
                except (Waiting, Unusable):
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
                or state.attempt_number >= batch.attempts
                or self._stopping.is_set()
                or not batch.is_wanted()
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

    def _sleep(self, seconds: float) -> None:
        self._stopping.wait(seconds)

    def _attempt(self, items: Sequence[Item], batch: _Batch, *, again: bool) -> tuple[Matrix, npt.NDArray[np.bool_]]:
        is_harmless = items[0].text == _HARMLESS

        def blame(failure: RecalldError) -> RecalldError | None:
            # A text that failed alone before is at fault, not the provider, which answered another one meanwhile.
            if again and len(items) == 1 and isinstance(failure, Unusable) and failure.got is None:
                return None
            # The endpoint was shown to work: its backoff would hold up the texts beside this one.
            if batch.attempts == 1 and not is_harmless and type(failure) is Transient and not is_asked(failure):
                return Permanent(str(failure))
            return failure

        # No document needs the vector of the harmless text.
        rounded, unusable = self._coordination.send(
            self._provider,
            items,
            lane=batch.lane,
            dimensions=self.dimensions,
            again=again,
            in_vain=is_harmless,
            blame=blame,
        )
        self._proven = True
        self.dimensions = self.dimensions or rounded.shape[1]
        return rounded, unusable

    def _is_stopped(self) -> bool:
        waste = self._limiter.breaker.waste()
        return waste is not None and waste.stopped

    def _probe(self, batch: _Batch) -> RecalldError | None:
        """Send the harmless text; return the error, None if it is answered."""
        if self._stopping.is_set() or not batch.is_wanted():
            return Transient("no caller waits")
        try:
            self._ask([Item(_HARMLESS)], batch)
        except RecalldError as error:
            return error
        return None


def _blames_endpoint(error: Transient | Terminal) -> bool:
    """Return True if the provider itself says that the failure is not one of these texts."""
    return isinstance(error, Terminal | Paced) or is_asked(error)


def _wait(state: tenacity.RetryCallState) -> float:
    """Return a full-jitter exponential backoff, or the provider's requested pause and a little more."""
    error = state.outcome.exception() if state.outcome is not None else None
    retry_after = error.retry_after if isinstance(error, Transient) else None
    longest = backoff(state.attempt_number, first=_FIRST_WAIT_SECONDS, longest=_LONGEST_WAIT_SECONDS)
    jittered = random.uniform(0.0, longest)  # noqa: S311 - no secret
    # A fraction on top, so that threads with the same pause do not return in the same millisecond.
    return jittered if retry_after is None else retry_after + min(jittered, retry_after * 0.1 + 0.01)


#: Pieces of the first try; doubled each time up to the most.
_FEWEST_PIECES, _MOST_PIECES = 2, 32

#: Characters that a piece should have at least.
_SHORTEST_PIECE = 40


def cut_in_pieces(entry: Item) -> Iterator[list[Item]]:
    """Yield a text cut into 2, 4, 8 ... pieces of about the same length, as long as they are long enough."""
    pieces = _FEWEST_PIECES
    while pieces <= _MOST_PIECES and len(entry.text) >= pieces * _SHORTEST_PIECE:
        parts = [part for part in _cut(entry.text, pieces) if part.strip()]
        yield [Item(part, entry.agent) for part in parts]
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
