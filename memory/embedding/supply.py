"""Supply of an indexer's vectors: the cache, then the provider through the shared batcher."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from memory.embedding.batch_jobs.batch_ledger import sent_in_jobs
from memory.embedding.batcher import EmbeddingBatcher, Ticket
from memory.embedding.cache import EmbeddingCache
from memory.embedding.coordination import Coordinate, alone
from memory.embedding.selection import NO_VECTORS, ProviderChoice
from memory.store.reader import Vector
from schemas.documents import Lane


@dataclass(frozen=True, slots=True)
class CacheLooks:
    """Counts of texts whose vectors were in the cache, and of texts that had to be embedded.

    A text is counted when it comes into the index, not when it is looked up again because its vector waits.
    """

    hits: int = 0
    misses: int = 0


class EmbeddingSupply:
    """The vectors of one provider identity, for all indexers of a process.

    `coordinate` says what this process shares with others that use the provider. `home` holds the ledger of batch jobs.
    """

    def __init__(
        self,
        choice: ProviderChoice,
        cache: EmbeddingCache | None,
        *,
        coordinate: Coordinate = alone,
        home: Path | None = None,
    ) -> None:
        self.choice = choice
        self.cache = cache
        self._home = home
        self._counting = threading.Lock()
        self._looks = CacheLooks()
        self.coordination = coordinate(choice.provider) if choice.provider else None
        self._batcher = (
            EmbeddingBatcher(choice.provider, cache, coordination=self.coordination) if choice.provider else None
        )

    @property
    def available(self) -> bool:
        """True if there is a provider to ask."""
        return self._batcher is not None

    @property
    def identity(self) -> str:
        """Return the provider's identity, `NO_VECTORS` without one."""
        return self.choice.provider.identity if self.choice.provider else NO_VECTORS

    @property
    def slow(self) -> bool:
        """True if the model computes on this machine, in competition with everything else."""
        return self.choice.provider is not None and self.choice.provider.limits.chunks_per_second < 500

    def lookup(self, hashes: Sequence[str]) -> dict[str, Vector]:
        """Return vectors that were paid for already."""
        if not hashes or self.cache is None or self.choice.provider is None:
            return {}
        return self.cache.get_many(self.identity, hashes)

    def in_batch_jobs(self, hashes: Sequence[str]) -> set[str]:
        """Return texts that an open batch job holds: they are paid for, and their vectors come with the job."""
        return sent_in_jobs(self._home, self.identity, hashes) if hashes and self._home is not None else set()

    def count_looks(self, *, hits: int, misses: int) -> None:
        """Count new texts that the cache had, and new texts that have to be embedded."""
        if self.cache is not None:
            with self._counting:
                self._looks = CacheLooks(self._looks.hits + hits, self._looks.misses + misses)

    def take_cache_looks(self) -> CacheLooks:
        """Return the counts of cache looks since the last call."""
        with self._counting:
            looks, self._looks = self._looks, CacheLooks()
        return looks

    @property
    def chunks_per_second(self) -> float:
        """Return the measured or expected rate of the provider; 0 without a provider."""
        return self._batcher.chunks_per_second if self._batcher else 0.0

    def estimate_seconds(self, count: int, *, lane: Lane) -> float:
        """Return the seconds for `count` more chunks behind the waiting ones; infinite without a provider."""
        return self._batcher.estimate_seconds(count, lane=lane) if self._batcher else math.inf

    def request(self, texts: Mapping[str, str], *, lane: Lane, agent: str, dimensions: int | None = None) -> Ticket:
        """Ask the provider for vectors; text hash -> text.

        `agent` pays for them; `dimensions` is how wide those are that its index holds already, None when it holds none.
        """
        if self._batcher is None:
            raise RuntimeError("there is no provider to ask; see `available`")
        return self._batcher.submit(texts, lane=lane, agent=agent, dimensions=dimensions)

    def stop(self) -> None:
        """Send nothing more; what is queued gets a passing failure."""
        if self._batcher:
            self._batcher.stop()

    def close(self, *, timeout_seconds: float = 10.0) -> None:
        """Let requests in flight reach the cache within some seconds, then let go; the rest is abandoned."""
        if self._batcher:
            self._batcher.close(timeout_seconds=timeout_seconds)
        if self.choice.provider:
            self.choice.provider.close()
