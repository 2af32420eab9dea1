"""One batch and everything that can become of it: retries, splitting, refusals.

Pure of threads and tickets: `BatchSender.outcomes` yields what each response decided, as it comes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import structlog
import tenacity

from memory.embedding.gate import Admission, Gate
from memory.embedding.provider import EmbeddingProvider, Matrix
from memory.embedding.vectors import round_rows
from memory.store.writer import Refusal
from schemas.errors import Permanent, Terminal, Transient

log = structlog.get_logger(__name__)

#: Seconds that one request may spend waiting between its attempts; longer waits are the job's, not ours.
PATIENCE_SECONDS = 5.0

#: Attempts of one request, whatever the waits were.
_MOST_ATTEMPTS = 8

#: How often a text whose vector came back unusable among good ones is asked again before it is refused.
_MOST_REPEATS = 2

#: A text that no provider objects to: tells whether it is the texts or the endpoint that is refused.
_HARMLESS = "memory"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one response decided for the texts at `places`.

    `result`: a float32 matrix of rounded vectors with a row for each place, a refusal of them all, or the
    error that keeps them waiting.
    """

    places: Sequence[int]
    result: Matrix | Refusal | Transient | Terminal


@dataclass(frozen=True, slots=True)
class _Part:
    places: Sequence[int]
    repeats: int = 0


class BatchSender:
    """Sends batches to one provider. Thread-safe.

    `dimensions` is learned from the first good response when not given. `largest` is the number of inputs
    that the endpoint was found to take at most, None while it never objected.
    """

    def __init__(
        self,
        provider: EmbeddingProvider,
        gate: Gate,
        *,
        stopping: threading.Event,
        dimensions: int | None = None,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._provider = provider
        self._gate = gate
        self._stopping = stopping
        self._patience = patience_seconds
        self._lock = threading.Lock()
        self._proven = False
        self.dimensions = dimensions
        self.largest: int | None = None

    def outcomes(
        self,
        texts: Sequence[str],
        *,
        admission: Admission = Admission.NORMAL,
        wanted: Callable[[], bool] = lambda: True,
    ) -> Iterator[Outcome]:
        """Embed the texts; yields every response's outcome, in all exactly one for each text.

        `wanted` is asked before another attempt: when nobody waits any more there is none.
        """
        parts = [_Part(range(len(texts)))]
        too_much: list[Sequence[int]] = []
        failed: set[int] = set()
        while parts:
            part = parts.pop()
            try:
                matrix, unusable = self._ask([texts[place] for place in part.places], part.repeats, wanted)
            except Permanent as error:
                verdict = self._judge(error)
                if verdict is not None:
                    yield from self._give_up(verdict, [part, *parts])
                    return
                if len(part.places) == 1:
                    failed.update(part.places)
                    yield Outcome(part.places, Refusal(error.reason))
                else:
                    too_much.append(part.places)
                    middle = (len(part.places) + 1) // 2
                    parts += [_Part(part.places[middle:]), _Part(part.places[:middle])]
                continue
            except (Transient, Terminal) as error:
                yield from self._give_up(error, [part, *parts])
                return
            self._gate.succeeded(admission)
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

    def _give_up(self, error: Transient | Terminal, parts: Sequence[_Part]) -> Iterator[Outcome]:
        if isinstance(error, Terminal):
            self._gate.trip(error)
            log.error("embedding_provider_refuses", provider=self._provider.name, error=str(error))
        for part in parts:
            yield Outcome(part.places, error)

    def _ask(
        self, texts: Sequence[str], repeats: int, wanted: Callable[[], bool]
    ) -> tuple[Matrix, npt.NDArray[np.bool_]]:
        """One request, with short waits after passing failures."""
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(Transient),
            wait=_wait,
            stop=lambda state: (
                state.idle_for + state.upcoming_sleep > self._patience
                or state.attempt_number >= _MOST_ATTEMPTS
                or self._stopping.is_set()
                or not wanted()
            ),
            sleep=self._sleep,
            reraise=True,
        )
        return retrying(self._attempt, texts, repeats)

    def _sleep(self, seconds: float) -> None:
        self._stopping.wait(seconds)

    def _attempt(self, texts: Sequence[str], repeats: int) -> tuple[Matrix, npt.NDArray[np.bool_]]:
        delay = self._gate.delay()
        if delay > 0:
            raise Transient("the embedding provider asked to wait", retry_after=delay)
        try:
            raw = self._provider.embed_documents(texts)
        except Transient as error:
            if error.retry_after:
                self._gate.cool_down(error.retry_after)
                log.warning(
                    "embedding_cool_down", provider=self._provider.name, seconds=error.retry_after, error=str(error)
                )
            raise
        rounded, unusable = round_rows(raw, expected=len(texts), dimensions=self.dimensions)
        if unusable.all() and not repeats:
            # Not one good vector: it is the endpoint that is ill, not these texts.
            raise Transient("the endpoint returned only vectors that are zero or not finite")
        return rounded, unusable

    def _judge(self, error: Permanent) -> Terminal | None:
        """Whether a refusal is about the endpoint's settings rather than about the texts.

        Without this, an endpoint that refuses everything would be asked twice for every single text.
        """
        with self._lock:
            if self._proven:
                return None
        try:
            self._attempt([_HARMLESS], 0)
        except Permanent:
            return Terminal(f"{error} It refuses every text: look at the provider, model and remote settings.")
        except (Transient, Terminal):
            # Nothing learned; the texts decide.
            return None
        with self._lock:
            self._proven = True
        return None

    def _learn(self, dimensions: int) -> None:
        with self._lock:
            self._proven = True
            if self.dimensions is None:
                self.dimensions = dimensions

    def _remember_limit(self, too_much: Sequence[Sequence[int]]) -> None:
        """Batches that were refused whole and taken in halves were too large: send smaller ones from now on."""
        if not too_much:
            return
        most = max(8, min(map(len, too_much)) // 2)
        with self._lock:
            if self.largest is None or most < self.largest:
                self.largest = most
                log.warning("embedding_batch_limit_learned", provider=self._provider.name, inputs=most)


_backoff = tenacity.wait_random_exponential(multiplier=0.25, max=2.0)


def _wait(state: tenacity.RetryCallState) -> float:
    """Full-jitter exponential backoff, or what the provider asked for and a little more."""
    error = state.outcome.exception() if state.outcome is not None else None
    asked = error.retry_after if isinstance(error, Transient) else None
    jittered: float = _backoff(state)
    # A fraction on top, so that all threads that were told the same second do not come back in the same millisecond.
    return jittered if asked is None else asked + min(jittered, asked * 0.1 + 0.01)
