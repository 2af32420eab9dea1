"""Resources that the managers of a process share: threads, caches, and one provider for all agents that chose it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from memory.embedding.coordination import Coordinate, alone
from memory.embedding.selection import ProviderChoice
from memory.index.provider_fallback import provider_for_queries, provider_of
from memory.index.readers import OpenReaders
from memory.search.answer_cache import AnswerCache
from memory.search.query_vectors import QueryVectors
from memory.store.sqlite.vectors import VectorShelf
from schemas.settings import AgentSettings, Settings


class BoundedExecutor(Executor):
    """Executor on shared threads that runs at most `width` calls at a time.

    A waiting call holds no thread. The owner of the threads closes them.
    """

    def __init__(self, threads: Executor, width: int) -> None:
        self._threads = threads
        self._width = width
        self._lock = threading.Lock()
        self._waiting: deque[_Call] = deque()
        self._running = 0
        self._closed = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """See `Executor.submit`.

        Raises:
            RuntimeError: this executor or its threads are closed.
        """
        call = _Call(partial(fn, *args, **kwargs))
        with self._lock:
            if self._closed:
                raise RuntimeError("this executor is closed")
            self._waiting.append(call)
            if self._running == self._width:
                return call.future
            self._running += 1
        try:
            self._threads.submit(self._work)
        except RuntimeError:
            with self._lock:
                self._running -= 1
                self._waiting.remove(call)
            raise
        return call.future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002 - Executor's
        """Take no more calls. The owner of the threads waits for running ones, whatever `wait` says."""
        with self._lock:
            self._closed = True
            dropped = list(self._waiting) if cancel_futures else []
            if cancel_futures:
                self._waiting.clear()
        for call in dropped:
            call.future.cancel()

    def _work(self) -> None:
        """Run calls on one of the shared threads until none waits."""
        while True:
            with self._lock:
                if not self._waiting:
                    self._running -= 1
                    return
                call = self._waiting.popleft()
            call.run()


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    work: Callable[[], Any]
    future: Future[Any] = field(default_factory=Future)

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self.work()
        except BaseException as error:  # noqa: BLE001 - the caller gets it from the future
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


#: Searches that run at a time. A search that waits for a provider does not count, a search that waits for pending
#: documents does.
SEARCH_THREADS = 64

#: Searches that read a store at a time, and keyword sides that run beside their vector side.
STORE_SLOTS = 8

#: Queries that one provider embeds at a time, and all providers together.
PROVIDER_WIDTH = 4
EMBEDDING_THREADS = 128


@dataclass(frozen=True, slots=True)
class QueryEmbedder:
    """Embedding of an agent's queries; `vectors` is None with keywords only.

    `choice` embeds queries: it made the index that answers. `chosen` is the choice of the settings, with which a new
    index is being made.
    """

    choice: ProviderChoice
    chosen: ProviderChoice
    vectors: QueryVectors | None


class SearchResources:
    """Threads and providers of one process. Close it after the managers that use it.

    `coordinate` returns what queries share with other users of a provider.
    """

    def __init__(self, settings: Settings, *, coordinate: Coordinate = alone, model_wait_seconds: float = 0.0) -> None:
        self._settings = settings
        self._coordinate = coordinate
        self._model_wait_seconds = model_wait_seconds
        self._lock = threading.Lock()
        self._vectors: dict[tuple[str, str], QueryVectors] = {}
        self._executors: list[BoundedExecutor] = []
        #: Vectors of agents with many searches.
        self.shelf = VectorShelf()
        #: Open indexes.
        self.open_readers = OpenReaders()
        #: Answers to earlier searches.
        self.answers = AnswerCache()
        # Threads start on demand: most services never have more than a few.
        self._embedding = ThreadPoolExecutor(EMBEDDING_THREADS, thread_name_prefix="embed-query")
        self.search_threads = ThreadPoolExecutor(SEARCH_THREADS, thread_name_prefix="search")
        self.store_slots = threading.BoundedSemaphore(STORE_SLOTS)
        # A separate pool: a search that waits for its keyword side must not take the thread from that side.
        self.keyword_threads = ThreadPoolExecutor(STORE_SLOTS, thread_name_prefix="keywords")

    def embedder(self, agent: AgentSettings) -> QueryEmbedder:
        """Return the embedder that an agent uses now. It loads and connects on first use."""
        chosen = provider_of(self._settings, agent, for_queries=True)
        choice = provider_for_queries(self._settings, agent, chosen)
        if choice.provider is None:
            return QueryEmbedder(choice, chosen, None)
        # Two API keys may give the same vectors, but not the same limits and bills.
        key = (choice.provider.identity, choice.provider.account)
        with self._lock:
            vectors = self._vectors.get(key)
            if vectors is None:
                # One executor each, so that a slow provider does not delay the others.
                self._executors.append(BoundedExecutor(self._embedding, PROVIDER_WIDTH))
                vectors = self._vectors[key] = QueryVectors(
                    choice.provider,
                    self._executors[-1],
                    coordination=self._coordinate(choice.provider),
                    model_wait_seconds=self._model_wait_seconds,
                )
        return QueryEmbedder(choice, chosen, vectors)

    def warm_up(self) -> None:
        """Start loading every chosen model, in the background."""
        with self._lock:
            chosen = list(self._vectors.values())
        for vectors in chosen:
            vectors.warm_up()

    def close(self) -> None:
        """Close the providers and end the threads."""
        with self._lock:
            chosen = list(self._vectors.values())
            self._vectors.clear()
        for executor in self._executors:
            executor.shutdown(cancel_futures=True)
        for vectors in chosen:
            vectors.close()
        self._embedding.shutdown(wait=True, cancel_futures=True)
        self.search_threads.shutdown(wait=True, cancel_futures=True)
        self.keyword_threads.shutdown(wait=True, cancel_futures=True)
