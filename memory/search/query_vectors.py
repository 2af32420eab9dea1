"""Vectors of queries: cached, within the deadline, and without waiting for a provider that is late already.

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
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass

import structlog

from memory.embedding.coordination import Coordination, Item, alone
from memory.embedding.providers.provider import EmbeddingProvider
from memory.embedding.rate_limit import REFUSED_SECONDS, is_asked
from memory.store.reader import Vector
from schemas.errors import RecalldError, Transient, Unusable, Waiting

_log = structlog.get_logger(__name__)

#: Query vectors kept in memory, per provider: 2,048 of 512 dimensions are 4 MB.
CACHED_QUERIES = 2048

#: Queries that one provider embeds at a time.
PROVIDER_THREADS = 4


class Unavailable(RecalldError):
    """Reason why there is no vector for a query: nothing was sent, or it is late."""


@dataclass(slots=True)
class _Running:
    """Embedding of a query, wanted by a search until a time on the vectors' clock.

    It waits for the model until `model_until`.
    """

    future: Future[Vector]
    until: float
    model_until: float


class QueryVectors:
    """Vectors of queries by one provider. Thread-safe.

    `coordination` holds the rate limiter that queries pass, and counts them; by default this process is alone. A local
    model is loaded in the background (`warm_up`). A query waits for it, `model_wait_seconds` at most; after that
    there is no vector and the answer says so.
    """

    def __init__(
        self,
        provider: EmbeddingProvider,
        *,
        coordination: Coordination | None = None,
        model_wait_seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.provider = provider
        #: Width of the vectors of the index, once a search has read it.
        self.dimensions: int | None = None
        self._coordination = coordination or alone(provider)
        self._limiter = self._coordination.limiter
        self._model_wait_seconds = model_wait_seconds
        self._clock = clock
        self._threads = ThreadPoolExecutor(PROVIDER_THREADS, thread_name_prefix="embed-query")
        self._lock = threading.Lock()
        self._cache: OrderedDict[str, Vector] = OrderedDict()
        self._running: dict[str, _Running] = {}
        self._model: Future[None] | None = None
        self._load_again_at = 0.0
        #: Done from the beginning of `close` on.
        self._closing: Future[None] = Future()

    def warm_up(self) -> None:
        """Start loading the model unless that is done, under way, or failed in the last minute. Return at once."""
        with self._lock:
            loaded = self._model is not None and not (self._model.done() and self._model.exception())
            if not loaded and self._clock() >= self._load_again_at:
                self._load_again_at = self._clock() + REFUSED_SECONDS
                model: Future[None] = Future()
                self._model = model
                # A daemon: the end of a process waits for no model. `recalld.__main__` knows its name.
                threading.Thread(target=self._load, args=(model,), name="load-model", daemon=True).start()

    def _load(self, model: Future[None]) -> None:
        try:
            self.provider.warm_up()
        except Exception as error:  # noqa: BLE001 - the reason why there are no vectors
            model.set_exception(error)
        else:
            model.set_result(None)

    def begin(self, query: str, *, seconds: float, agent: str = "", waits_for_model: bool = True) -> Future[Vector]:
        """Start embedding a query for a search that waits at most `seconds`. Return at once.

        Equal queries share one request, which counts as usage of the first `agent`. A request that no search waits for
        any more is not sent. The future fails with `Unavailable` while the provider is late, asks to wait, or refuses
        for good.
        """
        until = self._clock() + seconds
        with self._lock:
            if (cached_vector := self._usable(query)) is not None:
                return _done_future(cached_vector)
        self.warm_up()
        reason = self.failure()
        if self._is_loading and not (waits_for_model and self._model_wait_seconds):
            reason = self._late_reason
        if reason is not None:
            return _done_future(Unavailable(reason))
        with self._lock:
            running = self._running.get(query)
            if running is None and (cached_vector := self._usable(query)) is not None:
                return _done_future(cached_vector)  # the request of another search has just been answered
            if running is None:
                model_until = self._clock() + self._model_wait_seconds
                future = self._threads.submit(self._embed, query, agent)
                running = self._running[query] = _Running(future, until, model_until)
            running.until = max(running.until, until)
            return running.future

    def _usable(self, query: str) -> Vector | None:
        """Return a query's cached vector, None if there is none of the index's width."""
        cached_vector = self._cache.get(query)
        if cached_vector is None or self.dimensions not in {None, cached_vector.shape[0]}:
            return None
        self._cache.move_to_end(query)
        return cached_vector

    async def result(self, future: Future[Vector], seconds: float) -> Vector:
        """Return a query's vector within `seconds`.

        Raises:
            Unavailable: there is none by then; the message is the reason.
        """
        if not future.done():
            waiter = asyncio.wrap_future(future)
            # The loop logs an error that is never retrieved, however late it comes.
            waiter.add_done_callback(lambda done: done.cancelled() or done.exception())
            await asyncio.wait((waiter,), timeout=seconds)
        if not future.done():
            raise Unavailable(self._late_reason)
        try:
            return future.result()
        except Exception as error:
            raise Unavailable(_sentence(error)) from error

    def failure(self) -> str | None:
        """Return the reason why the provider gets no request at the moment; None if it does.

        It is late while a request is unanswered for which a search waited in vain.
        """
        model = self._model
        if model is not None and model.done() and (error := model.exception()) is not None:
            return _sentence(error)
        with self._lock:
            if any(running.until <= self._clock() for running in self._running.values()):
                return self._late_reason
        return self._cool_down_reason()

    def close(self) -> None:
        """Close the provider, which ends its requests, and end its threads."""
        if not self._closing.done():
            self._closing.set_result(None)
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.provider.close()
        self._threads.shutdown()

    @property
    def is_loaded(self) -> bool:
        """True if the first query waits for no model: it is loaded, or cannot be."""
        return self._model is not None and self._model.done()

    @property
    def _is_loading(self) -> bool:
        return self._model is not None and not self._model.done()

    @property
    def _late_reason(self) -> str:
        if self._is_loading:
            # A provider with an account has no model here, only a client.
            component = "client" if self.provider.account else "embedding model"
            return f"the {component} of {self.provider.name!r} is still loading"
        return f"the embedding provider {self.provider.name!r} did not answer in time"

    def _wait_for_model(self, running: _Running) -> None:
        """Wait until the model is loaded. Raise Unavailable if it is late, or cannot be loaded."""
        model = self._model
        if model is None:
            return
        seconds = max(0.0, min(running.model_until, running.until) - self._clock())
        if model not in wait_for((model, self._closing), seconds, return_when=FIRST_COMPLETED).done:
            raise Unavailable(self._late_reason)
        if (error := model.exception()) is not None:
            raise Unavailable(_sentence(error))

    def _cool_down_reason(self) -> str | None:
        """Return the reason of the account's cool-down; None without one."""
        hold = self._limiter.hold()
        if hold is None or hold.refusal is not None:
            return hold.refusal if hold is not None else None
        seconds = math.ceil(hold.seconds)
        if hold.useless is not None:
            return f"{self.provider.name} is stopped, because {hold.useless}"
        if hold.failing:
            return f"requests to {self.provider.name} fail, and it is tried again in {seconds} s"
        return f"{self.provider.name} asked to wait {seconds} s"

    def _embed(self, query: str, agent: str) -> Vector:
        with self._lock:
            running = self._running[query]
        try:
            self._wait_for_model(running)
            vector = self._embed_with_retry(running, Item(query, agent))
        except Exception as error:
            if not isinstance(error, Unavailable):
                _log.warning("query_embedding_failed", provider=self.provider.name, reason=_sentence(error))
            raise
        else:
            with self._lock:
                self._cache[query] = vector
                while len(self._cache) > CACHED_QUERIES:
                    self._cache.popitem(last=False)
            return vector
        finally:
            with self._lock:
                del self._running[query]

    def _embed_with_retry(self, running: _Running, query: Item) -> Vector:
        """Embed with one more try after a transient failure: most of them are over at once."""
        if self._clock() >= running.until:
            raise Unavailable(self._late_reason)
        try:
            return self._request_vector(query)
        except Transient as error:
            if not self.provider.account or is_asked(error) or isinstance(error, Unusable) or self._closing.done():
                raise
            return self._request_vector(query)

    def _request_vector(self, query: Item) -> Vector:
        waste = self._limiter.breaker.waste()
        dimensions = self.dimensions or (waste.expected if waste is not None else 0) or None
        try:
            matrix, _ = self._coordination.send(self.provider, [query], lane=None, dimensions=dimensions)
        except Waiting as error:
            raise Unavailable(self._cool_down_reason() or str(error)) from error
        vector: Vector = matrix[0]
        return vector


def _done_future(outcome: Vector | Unavailable) -> Future[Vector]:
    future: Future[Vector] = Future()
    if isinstance(outcome, Unavailable):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
    return future


def _sentence(error: BaseException) -> str:
    text = str(error).strip()
    if isinstance(error, RecalldError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
