"""What the managers of a process share: threads, and one provider for all agents that chose the same."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from memory.embedding.selection import ProviderChoice, choose_provider
from memory.search.query_vectors import QueryVectors
from schemas.settings import MemorySettings, Settings

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
    """Threads and providers of one process. Close it after the managers that use it."""

    def __init__(self, settings: Settings, *, model_wait_seconds: float = 0.0) -> None:
        self._credentials = settings.credentials
        self._vectors_enabled = settings.store.vector.enabled
        self._model_wait_seconds = model_wait_seconds
        self._lock = threading.Lock()
        self._vectors: dict[str, QueryVectors] = {}
        self._embedding = ThreadPoolExecutor(EMBEDDING_THREADS, thread_name_prefix="embed-query")
        self.store_threads = ThreadPoolExecutor(STORE_THREADS, thread_name_prefix="search")
        # Of their own: a search that waits for its keyword side must not keep that side from a thread.
        self.keyword_threads = ThreadPoolExecutor(STORE_THREADS, thread_name_prefix="keywords")

    def embedder(self, memory: MemorySettings) -> Embedder:
        """The provider that these settings choose. Loads nothing and connects to nothing yet."""
        choice = choose_provider(memory, self._credentials, vectors_enabled=self._vectors_enabled)
        if choice.provider is None:
            return Embedder(choice, None)
        with self._lock:
            vectors = self._vectors.get(choice.provider.identity)
            if vectors is None:
                vectors = QueryVectors(choice.provider, self._embedding, model_wait_seconds=self._model_wait_seconds)
                self._vectors[choice.provider.identity] = vectors
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
