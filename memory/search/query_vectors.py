"""The vector of a query: cached, within the deadline, and never waiting twice for a dead provider."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Executor, Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass

import structlog

from memory.embedding.provider import EmbeddingProvider
from memory.embedding.vectors import check_and_round
from memory.store.reader import Vector
from schemas.errors import Permanent, RecalldError

_log = structlog.get_logger(__name__)

#: Query vectors kept in memory, per provider: 2,048 of 512 dimensions are 4 MB.
CACHED_QUERIES = 2048

#: Seconds during which a provider that failed is not asked again.
FAILURE_MEMORY_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Unavailable:
    """Why there is no vector for a query, in words."""

    reason: str


class QueryVectors:
    """Embeds queries with one provider. Thread-safe; work runs on the executor that is handed in.

    A local model is loaded in the background (`warm_up`); until then there is no vector and the answer says so.
    `model_wait_seconds` makes a query wait that long for the model: for a process that asks once and ends.
    """

    def __init__(
        self,
        provider: EmbeddingProvider,
        executor: Executor,
        *,
        capacity: int = CACHED_QUERIES,
        model_wait_seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.provider = provider
        self._executor = executor
        self._capacity = capacity
        self._model_wait_seconds = model_wait_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._cache: OrderedDict[str, Vector] = OrderedDict()
        self._running: dict[str, Future[Vector]] = {}
        self._warm: Future[None] | None = None
        self._is_warm = False
        self._failure: tuple[float, str] | None = None

    def warm_up(self) -> None:
        """Start loading the model unless that is done or under way. Returns at once."""
        with self._lock:
            if self._is_warm or self._warm is not None or self._failed_lately() is not None:
                return
            self._warm = self._executor.submit(self._load)

    def wait_until_warm(self, timeout_seconds: float) -> bool:
        """Wait for the model; whether it is ready then."""
        warm = self._warm
        if warm is not None and timeout_seconds > 0:
            try:
                warm.result(timeout_seconds)
            except FutureTimeout:
                return False
        return self._is_warm

    def get(self, query: str) -> PendingVector:
        """Start embedding a query, or find it in the cache. Waits for nothing but a loading model, if told to."""
        with self._lock:
            known = self._cache.get(query)
            if known is not None:
                self._cache.move_to_end(query)
                return PendingVector(known, None, self)
            failed = self._failed_lately()
            if failed is not None:
                return PendingVector(Unavailable(failed), None, self)
        if not self._is_warm:
            self.warm_up()
            self.wait_until_warm(self._model_wait_seconds)
        with self._lock:
            if not self._is_warm:
                reason = self._failed_lately() or f"the embedding model of {self.provider.name!r} is still loading"
                return PendingVector(Unavailable(reason), None, self)
            running = self._running.get(query)
            if running is None:
                running = self._executor.submit(self._embed, query)
                self._running[query] = running
            return PendingVector(None, running, self)

    def failure(self) -> str | None:
        """Why the provider is not asked at the moment; None when it is."""
        with self._lock:
            return self._failed_lately()

    def probe(self, timeout_seconds: float) -> Unavailable | None:
        """Embed a word, past the memory of failures; None when that works."""
        with self._lock:
            self._failure = None
            self._cache.pop("probe", None)
        self.warm_up()
        deadline = self._clock() + timeout_seconds
        self.wait_until_warm(timeout_seconds)
        outcome = self.get("probe").wait(max(0.0, deadline - self._clock()))
        return outcome if isinstance(outcome, Unavailable) else None

    def note_failure(self, reason: str) -> None:
        """Remember that the provider does not answer."""
        with self._lock:
            self._failure = (self._clock() + FAILURE_MEMORY_SECONDS, reason)
        _log.warning("query_embedding_failed", provider=self.provider.name, reason=reason)

    def close(self) -> None:
        """Let go of the provider."""
        self.provider.close()

    def _failed_lately(self) -> str | None:
        if self._failure is not None and self._clock() < self._failure[0]:
            return self._failure[1]
        self._failure = None
        return None

    def _load(self) -> None:
        try:
            self.provider.warm_up()
        except Exception as error:  # noqa: BLE001 - whatever a model's library raises is the reason that searches report
            self.note_failure(_sentence(error))
            with self._lock:
                self._warm = None
        else:
            with self._lock:
                self._is_warm = True

    def _embed(self, query: str) -> Vector:
        try:
            text = _within(query, self.provider.limits.input_bytes)
            vector: Vector = check_and_round(self.provider.embed_query(text), expected=1, dimensions=None)[0]
        except Permanent:
            # This query's fault, not the provider's: the next one is asked as usual.
            raise
        except Exception as error:
            self.note_failure(_sentence(error))
            raise
        else:
            with self._lock:
                self._failure = None
                self._cache[query] = vector
                while len(self._cache) > self._capacity:
                    self._cache.popitem(last=False)
            return vector
        finally:
            with self._lock:
                self._running.pop(query, None)


class PendingVector:
    """A query vector that is there, on its way, or unavailable."""

    __slots__ = ("_future", "_owner", "_value")

    def __init__(self, value: Vector | Unavailable | None, future: Future[Vector] | None, owner: QueryVectors) -> None:
        self._value = value
        self._future = future
        self._owner = owner

    def wait(self, timeout_seconds: float) -> Vector | Unavailable:
        """The vector, or why there is none after so many seconds."""
        if self._future is None:
            return self._value if self._value is not None else Unavailable("nothing was asked")
        try:
            return self._future.result(max(0.0, timeout_seconds))
        except FutureTimeout:
            reason = f"the embedding provider {self._owner.provider.name!r} did not answer in time"
            self._owner.note_failure(reason)
            return Unavailable(reason)
        except Exception as error:  # noqa: BLE001 - recorded by `note_failure` where it was raised
            return Unavailable(_sentence(error))


def _within(text: str, limit_bytes: int) -> str:
    """The start of a query that a provider takes."""
    if len(text) * 4 <= limit_bytes:
        return text
    return text.encode("utf-8", "replace")[:limit_bytes].decode("utf-8", "ignore")


def _sentence(error: Exception) -> str:
    text = str(error).strip()
    if isinstance(error, RecalldError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
