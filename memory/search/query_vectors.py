"""Vectors of queries: cached, within the deadline, and without waiting twice for a provider that does not answer.

A query passes the same rate limiter as every request to its provider's account, and does not queue behind batches.
Work runs on a few threads of each provider, so that a slow one does not delay the others.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import suppress
from dataclasses import dataclass

import structlog

from memory.chunking.chunker import estimate_tokens
from memory.embedding.coordination import Coordination, Item, Meter, alone
from memory.embedding.providers.provider import EmbeddingProvider, Embeddings
from memory.embedding.rate_limit import Urgency
from memory.embedding.vectors import check_and_round
from memory.store.reader import Vector
from schemas.errors import Permanent, RecalldError, Terminal, Throttled, Transient

_log = structlog.get_logger(__name__)

#: Query vectors kept in memory, per provider: 2,048 of 512 dimensions are 4 MB.
CACHED_QUERIES = 2048

#: Queries that one provider embeds at a time.
PROVIDER_THREADS = 4

#: Seconds of back-off of a provider that failed, unless its rate limiter knows better: after the first failure, and
#: after many in a row; doubled in between.
FIRST_FAILURE_MEMORY_SECONDS = 1.0
FAILURE_MEMORY_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Unavailable:
    """Reason why there is no vector for a query, in words."""

    reason: str


@dataclass(slots=True)
class _Running:
    """Embedding of a query, wanted by a search until a time on the vectors' clock."""

    future: Future[Vector]
    until: float


class QueryVectors:
    """Vectors of queries by one provider. Thread-safe.

    `coordination` holds the rate limiter that queries pass and their meter; by default this process is alone. A local
    model is loaded in the background (`warm_up`); until then there is no vector and the answer says so.
    `model_wait_seconds` makes a query wait that long for the model: for a process that searches once and ends.
    """

    def __init__(
        self,
        provider: EmbeddingProvider,
        *,
        coordination: Coordination | None = None,
        capacity: int = CACHED_QUERIES,
        model_wait_seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.provider = provider
        coordination = coordination or alone(provider)
        self._limiter = coordination.limiter
        self._asking = coordination.asking
        self._meter = Meter(provider, coordination.usage, queries=True)
        self._capacity = capacity
        self._model_wait_seconds = model_wait_seconds
        self._clock = clock
        self._threads = ThreadPoolExecutor(PROVIDER_THREADS, thread_name_prefix="embed-query")
        self._lock = threading.Lock()
        self._cache: OrderedDict[str, Vector] = OrderedDict()
        self._running: dict[str, _Running] = {}
        self._warm: Future[None] | None = None
        self._failure: tuple[float, str] | None = None
        self._failures = 0

    def warm_up(self) -> None:
        """Start loading the model unless that is done or under way. Return at once."""
        with self._lock:
            if self._warm is None and self._failed_lately() is None:
                self._warm = self._threads.submit(self._load)

    def is_warm(self, timeout_seconds: float = 0.0) -> bool:
        """Return True if the model is ready, perhaps after waiting for it."""
        warm = self._warm
        if warm is None:
            return False
        wait_for((warm,), timeout_seconds)
        return warm.done() and self._warm is warm

    def begin(self, query: str, *, seconds: float, agent: str = "") -> Future[Vector] | Unavailable:
        """Start embedding a query for a search that waits at most `seconds`. Wait for a loading model only.

        Equal queries share one request, which counts as usage of the first `agent`. A request that no search waits for
        any more is not sent. Nothing is sent while the provider asks to wait, or refuses for good.
        """
        done: Future[Vector] = Future()
        with self._lock:
            known = self._cache.get(query)
            if known is not None:
                self._cache.move_to_end(query)
                done.set_result(known)
                return done
        reason = self.failure()
        if reason is not None:
            return Unavailable(reason)
        self.warm_up()
        if not self.is_warm(self._model_wait_seconds):
            # A provider with an account has no model here, only a client.
            what = "client" if self.provider.account else "embedding model"
            with self._lock:
                failed = self._failed_lately()
            return Unavailable(failed or f"the {what} of {self.provider.name!r} is still loading")
        until = self._clock() + seconds
        with self._lock:
            running = self._running.get(query)
            if running is None:
                running = _Running(self._threads.submit(self._embed, query, agent), until)
                self._running[query] = running
            running.until = max(running.until, until)
            return running.future

    async def result(self, begun: Future[Vector] | Unavailable, seconds: float) -> Vector | Unavailable:
        """Return a query's vector, or the reason why there is none after `seconds`."""
        if isinstance(begun, Future) and not begun.done():
            await asyncio.wait((asyncio.wrap_future(begun),), timeout=seconds)
        return self.outcome(begun)

    def outcome(self, begun: Future[Vector] | Unavailable) -> Vector | Unavailable:
        """Return a query's vector, or the reason why there is none by now."""
        if isinstance(begun, Unavailable):
            return begun
        if not begun.done():
            reason = f"the embedding provider {self.provider.name!r} did not answer in time"
            self.note_failure(reason)
            return Unavailable(reason)
        try:
            return begun.result()
        except Exception as error:  # noqa: BLE001 - recorded by `note_failure` where it was raised
            return Unavailable(_sentence(error))

    def failure(self) -> str | None:
        """Return the reason why the provider gets no request at the moment; None if it does."""
        with self._lock:
            failed = self._failed_lately()
        return failed or self._held_back()

    def probe(self, timeout_seconds: float, *, agent: str = "") -> Unavailable | None:
        """Embed a word in spite of a back-off, but not past the rate limiter; return None if that works."""
        with self._lock:
            self._failure = None
            self._cache.pop("probe", None)
        self.warm_up()
        deadline = self._clock() + timeout_seconds
        self.is_warm(timeout_seconds)
        begun = self.begin("probe", seconds=timeout_seconds, agent=agent)
        if isinstance(begun, Future):
            wait_for((begun,), max(0.0, deadline - self._clock()))
        outcome = self.outcome(begun)
        return outcome if isinstance(outcome, Unavailable) else None

    def note_failure(self, reason: str) -> None:
        """Begin or extend the back-off of the provider. Searches that fail together count as one failure."""
        with self._lock:
            if self._failed_lately() is not None:
                return
            seconds = min(FAILURE_MEMORY_SECONDS, FIRST_FAILURE_MEMORY_SECONDS * 2.0 ** min(self._failures, 10))
            self._failures += 1
            self._failure = (self._clock() + seconds, reason)
        _log.warning("query_embedding_failed", provider=self.provider.name, reason=reason)

    def close(self) -> None:
        """Close the provider, and end its threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.provider.close()
        self._threads.shutdown()

    def _held_back(self) -> str | None:
        """Return the reason of the account's cool-down; None without one."""
        hold = self._limiter.hold()
        if hold is None or hold.refusal is not None:
            return hold.refusal if hold is not None else None
        seconds = math.ceil(hold.seconds)
        if hold.failing:
            return f"requests to {self.provider.name} fail, and it is tried again in {seconds} s"
        return f"{self.provider.name} asked to wait {seconds} s"

    def _failed_lately(self) -> str | None:
        if self._failure is not None and self._clock() < self._failure[0]:
            return self._failure[1]
        self._failure = None
        return None

    def _load(self) -> None:
        try:
            self.provider.warm_up()
        except Exception as error:  # noqa: BLE001 - any error of a model's library is the reason that searches report
            self.note_failure(_sentence(error))
            with self._lock:
                self._warm = None

    def _embed(self, query: str, agent: str) -> Vector:
        with self._lock:
            if self._clock() >= self._running[query].until:
                del self._running[query]
                raise _HeldBack("no search waits for this query any more")
        try:
            text = _within(query, self.provider.limits.input_bytes)
            vector = self._ask_twice(Item(text, estimate_tokens(text), agent))
        except Permanent:
            # The query caused this error, not the provider: there is no back-off.
            raise
        except Exception as error:
            if not _known_to_the_limiter(error):
                self.note_failure(_sentence(error))
            raise
        else:
            with self._lock:
                self._failure = None
                self._failures = 0
                self._cache[query] = vector
                while len(self._cache) > self._capacity:
                    self._cache.popitem(last=False)
            return vector
        finally:
            with self._lock:
                self._running.pop(query, None)

    def _ask_twice(self, item: Item) -> Vector:
        """Embed with one more try after a transient failure: most of them are over at once."""
        try:
            return self._ask(item)
        except Transient as error:
            if not self.provider.account or isinstance(error, Throttled) or error.retry_after is not None:
                raise
            return self._ask(item)

    def _ask(self, item: Item) -> Vector:
        with self._lock:
            failed = self._failed_lately()
        if failed is not None:
            # The back-off began while this query waited for a thread.
            raise _HeldBack(failed)
        try:
            self._limiter.acquire(tokens=item.tokens, urgency=Urgency.QUERY)
        except (Transient, Terminal) as error:
            raise _HeldBack(self._held_back() or str(error)) from error
        answer: Embeddings | None = None
        ended: RecalldError | None = None
        try:
            with self._asking.request(self.provider):
                answer = self.provider.embed_query(item.text)
            vector: Vector = check_and_round(answer.vectors, expected=1, dimensions=None)[0]
        except Exception as error:
            ended = error if isinstance(error, RecalldError) else RecalldError(_sentence(error))
            raise
        finally:
            self._limiter.report(ended)
            billed = answer.tokens if answer is not None else None
            # Not on this query's time. At the end of the process the executor refuses it.
            with suppress(RuntimeError):
                self._threads.submit(self._meter.count, [item], failed=ended is not None, billed=billed)
        return vector


class _HeldBack(RecalldError):
    """Refusal of a query by its rate limiter or by a back-off, or because no search waits for it."""


def _known_to_the_limiter(error: Exception) -> bool:
    """Return True if the rate limiter knows when the provider takes requests again."""
    told = isinstance(error, Transient) and error.retry_after is not None
    return told or isinstance(error, Throttled | Terminal | _HeldBack)


def _within(text: str, limit_bytes: int) -> str:
    """Return the longest start of a query that a provider takes."""
    if len(text) * 4 <= limit_bytes:
        return text
    return text.encode("utf-8", "replace")[:limit_bytes].decode("utf-8", "ignore")


def _sentence(error: Exception) -> str:
    text = str(error).strip()
    if isinstance(error, RecalldError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
