"""What the managers of a process share: threads, and one provider for all agents that chose the same."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from memory.embedding.coordination import Coordinate, alone
from memory.embedding.selection import ProviderChoice
from memory.search.query_vectors import QueryVectors
from memory.store.vector_shelf import VectorShelf
from memory.taking_over import provider_of
from schemas.settings import AgentSettings, Settings

#: Searches that look into a store at a time.
STORE_THREADS = 8

#: Queries that are embedded at a time.
EMBEDDING_THREADS = 4


@dataclass(frozen=True, slots=True)
class Embedder:
    """What was chosen for an agent, and how its queries are embedded; `vectors` is None when only keywords are."""

    choice: ProviderChoice
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
        #: Vectors of hot agents.
        self.shelf = VectorShelf()
        self._embedding = ThreadPoolExecutor(EMBEDDING_THREADS, thread_name_prefix="embed-query")
        self.store_threads = ThreadPoolExecutor(STORE_THREADS, thread_name_prefix="search")
        # Of their own: a search that waits for its keyword side must not keep that side from a thread.
        self.keyword_threads = ThreadPoolExecutor(STORE_THREADS, thread_name_prefix="keywords")

    def embedder(self, agent: AgentSettings) -> Embedder:
        """The provider that an agent uses now. Loads nothing and connects to nothing yet."""
        choice = provider_of(self._settings, agent)
        if choice.provider is None:
            return Embedder(choice, None)
        # Two keys may mean the same vectors, but not the same limits and bills.
        key = (choice.provider.identity, choice.provider.account)
        with self._lock:
            vectors = self._vectors.get(key)
            if vectors is None:
                vectors = self._vectors[key] = QueryVectors(
                    choice.provider,
                    self._embedding,
                    coordination=self._coordinate(choice.provider),
                    model_wait_seconds=self._model_wait_seconds,
                )
        return Embedder(choice, vectors)

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
        for vectors in chosen:
            vectors.close()
        self._embedding.shutdown(wait=True, cancel_futures=True)
        self.store_threads.shutdown(wait=True, cancel_futures=True)
        self.keyword_threads.shutdown(wait=True, cancel_futures=True)
