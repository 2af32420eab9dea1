"""What the managers of a process share: threads, and one provider for all agents that chose the same."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from memory.embedding.coordination import Coordinate, alone
from memory.embedding.selection import ProviderChoice
from memory.index.provider_fallback import provider_for_queries, provider_of
from memory.index.readers import OpenReaders
from memory.search.answer_cache import AnswerCache
from memory.search.query_vectors import QueryVectors
from memory.store.sqlite.vector_cache import VectorShelf
from schemas.settings import AgentSettings, Settings


class Lane(Executor):
    """One party's way to shared threads. At most `width` of its calls run at a time, the rest waits here.

    A waiting call holds no thread. The threads are closed by whoever made them.
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
            RuntimeError: the lane or the threads are closed.
        """
        call = _Call(fn, args, kwargs)
        with self._lock:
            if self._closed:
                raise RuntimeError("this lane is closed")
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
        """Take no more calls. Those that run are waited for by the threads' owner, not here, whatever `wait` says."""
        with self._lock:
            self._closed = True
            dropped = list(self._waiting) if cancel_futures else []
            if cancel_futures:
                self._waiting.clear()
        for call in dropped:
            call.future.cancel()

    def _work(self) -> None:
        """Run what waits until nothing does; on one of the shared threads."""
        while True:
            with self._lock:
                if not self._waiting:
                    self._running -= 1
                    return
                call = self._waiting.popleft()
            call.run()


class _Call:
    __slots__ = ("_args", "_fn", "_kwargs", "future")

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.future: Future[Any] = Future()
        self._fn = fn
        self._args = args
        self._kwargs = kwargs

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self._fn(*self._args, **self._kwargs)
        except BaseException as error:  # noqa: BLE001 - whoever waits for the call gets it
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


#: Searches that are worked on at a time; those that wait for a provider are not counted, those that wait for pending
#: documents are.
SEARCH_THREADS = 64

#: Searches that look into a store at a time, and keyword sides of theirs that are looked up beside the vector side.
STORE_SLOTS = 8

#: Queries that one provider embeds at a time, and all providers together.
PROVIDER_WIDTH = 4
EMBEDDING_THREADS = 128


@dataclass(frozen=True, slots=True)
class Embedder:
    """What was chosen for an agent, and how its queries are embedded; `vectors` is None when only keywords are.

    `choice` embeds queries: it made the index that answers. `chosen` is what the settings ask for, and what a new
    index is being made with.
    """

    choice: ProviderChoice
    chosen: ProviderChoice
    vectors: QueryVectors | None


class SearchResources:
    """Threads and providers of one process. Close it after the managers that use it.

    `coordinate` says what queries share with others who use their provider.
    """

    def __init__(self, settings: Settings, *, coordinate: Coordinate = alone, model_wait_seconds: float = 0.0) -> None:
        self._settings = settings
        self._coordinate = coordinate
        self._model_wait_seconds = model_wait_seconds
        self._lock = threading.Lock()
        self._vectors: dict[tuple[str, str], QueryVectors] = {}
        self._lanes: list[Lane] = []
        #: Vectors of hot agents.
        self.shelf = VectorShelf()
        #: Indexes that are open.
        self.open_readers = OpenReaders()
        #: What was found for questions that may be asked again.
        self.answers = AnswerCache()
        # Threads are made when they are needed: most services never have more than a few.
        self._embedding = ThreadPoolExecutor(EMBEDDING_THREADS, thread_name_prefix="embed-query")
        self.search_threads = ThreadPoolExecutor(SEARCH_THREADS, thread_name_prefix="search")
        self.store_slots = threading.BoundedSemaphore(STORE_SLOTS)
        # Of their own: a search that waits for its keyword side must not keep that side from a thread.
        self.keyword_threads = ThreadPoolExecutor(STORE_SLOTS, thread_name_prefix="keywords")

    def embedder(self, agent: AgentSettings) -> Embedder:
        """The provider that an agent uses now. Loads nothing and connects to nothing yet."""
        chosen = provider_of(self._settings, agent, for_queries=True)
        choice = provider_for_queries(self._settings, agent, chosen)
        if choice.provider is None:
            return Embedder(choice, chosen, None)
        # Two keys may mean the same vectors, but not the same limits and bills.
        key = (choice.provider.identity, choice.provider.account)
        with self._lock:
            vectors = self._vectors.get(key)
            if vectors is None:
                # A lane of its own: nobody waits for somebody else's provider.
                self._lanes.append(Lane(self._embedding, PROVIDER_WIDTH))
                vectors = self._vectors[key] = QueryVectors(
                    choice.provider,
                    self._lanes[-1],
                    coordination=self._coordinate(choice.provider),
                    model_wait_seconds=self._model_wait_seconds,
                )
        return Embedder(choice, chosen, vectors)

    def warm_up(self) -> None:
        """Start loading every chosen model, in the background."""
        with self._lock:
            chosen = list(self._vectors.values())
        for vectors in chosen:
            vectors.warm_up()

    def close(self) -> None:
        """Let go of providers and end the threads."""
        with self._lock:
            chosen = list(self._vectors.values())
            self._vectors.clear()
        for lane in self._lanes:
            lane.shutdown(cancel_futures=True)
        for vectors in chosen:
            vectors.close()
        self._embedding.shutdown(wait=True, cancel_futures=True)
        self.search_threads.shutdown(wait=True, cancel_futures=True)
        self.keyword_threads.shutdown(wait=True, cancel_futures=True)
