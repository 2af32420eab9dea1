"""Resources that the managers of a process share: threads, caches, and one provider for all agents that chose it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from memory.embedding.coordination import Coordinate, alone
from memory.embedding.providers.provider import EmbeddingProvider
from memory.embedding.selection import ProviderChoice
from memory.index.provider import provider_for_queries, provider_of
from memory.index.readers import OpenIndexes
from memory.search.answers import AnswerCache
from memory.search.query_vectors import QueryVectors
from memory.store.reader import StoreReader
from memory.store.sqlite.vectors import VectorShelf
from schemas.conditions import Condition, ConditionCode
from schemas.settings import AgentSettings, Settings

#: Searches that read a store at a time. A thread that hangs in a read keeps its place until the read is over.
READING_THREADS = 8

#: Calls at a time that mask secrets, look at files, or ask the broker and the producers.
ASKING_THREADS = 64


@dataclass(frozen=True, slots=True)
class QueryEmbedder:
    """Embedding of an agent's queries; `vectors` is None with keywords only.

    `choice` embeds queries: it made the index that answers. `documents` is the choice for documents, which is another
    one while a new index is made.
    """

    choice: ProviderChoice
    documents: ProviderChoice
    vectors: QueryVectors | None

    @property
    def lack(self) -> Condition | None:
        """Return the reason for keywords only; None with a provider, or if the settings ask for keywords only."""
        choice = self.choice
        if choice.provider is not None or choice.requested == "none":
            return None
        return Condition(ConditionCode.KEYWORDS_ONLY, params={"reason": choice.explanation})


class SearchResources:
    """Threads and providers of one process. Close it after the managers that use it.

    `coordinate` returns the coordination of queries with other users of a provider.
    """

    def __init__(self, settings: Settings, *, coordinate: Coordinate = alone, model_wait_seconds: float = 0.0) -> None:
        self._settings = settings
        self._coordinate = coordinate
        self._model_wait_seconds = model_wait_seconds
        self._lock = threading.Lock()
        self._vectors: dict[tuple[str, str], QueryVectors] = {}
        #: Vectors of agents with many searches.
        self.shelf = VectorShelf()
        #: Open indexes.
        self.open_indexes: OpenIndexes[StoreReader | None] = OpenIndexes()
        #: Answers to earlier searches.
        self.answers = AnswerCache()
        # Threads start on demand: most services never have more than a few.
        self.reading = ThreadPoolExecutor(READING_THREADS, thread_name_prefix="search-read")
        self.asking = ThreadPoolExecutor(ASKING_THREADS, thread_name_prefix="search-ask")

    def embedder(self, agent: AgentSettings) -> QueryEmbedder:
        """Return the embedder that an agent uses now. It loads and connects on first use."""
        choice, documents = provider_for_queries(self._settings, agent), provider_of(self._settings, agent)
        if choice.provider is None:
            return QueryEmbedder(choice, documents, None)
        return QueryEmbedder(choice, documents, self.vectors_of(choice.provider))

    def vectors_of(self, provider: EmbeddingProvider) -> QueryVectors:
        """Return the vectors of queries by a provider, the same ones for all agents that use it."""
        # Two API keys may give the same vectors, but not the same limits and bills.
        key = (provider.identity, provider.account)
        with self._lock:
            vectors = self._vectors.get(key)
            if vectors is None:
                vectors = self._vectors[key] = QueryVectors(
                    provider, coordination=self._coordinate(provider), model_wait_seconds=self._model_wait_seconds
                )
        return vectors

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
        for vectors in chosen:
            vectors.close()
        self.reading.shutdown(cancel_futures=True)
        self.asking.shutdown(cancel_futures=True)
