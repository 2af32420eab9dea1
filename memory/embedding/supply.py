"""Supply of an indexer's vectors: the cache, then the provider through the shared batcher."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from memory.embedding.batcher import EmbeddingBatcher
from memory.embedding.cache import EmbeddingCache
from memory.embedding.coordination import Coordinate, alone
from memory.embedding.providers.provider import EmbeddingProvider
from memory.embedding.selection import NO_VECTORS, facts_in
from memory.embedding.sender import PATIENCE_SECONDS
from memory.store.reader import Vector


class EmbeddingSupply:
    """The vectors of one provider identity, for all indexers of a process. Without a provider there is no `batcher`.

    `identity` is that of the index where the process lacks the provider, and `error` is the reason for the lack.
    `coordinate` returns the coordination with other processes. `sent` returns those of an identity's texts that open
    batch jobs hold.
    """

    def __init__(
        self,
        provider: EmbeddingProvider | None,
        cache: EmbeddingCache | None,
        *,
        identity: str = NO_VECTORS,
        error: str | None = None,
        coordinate: Coordinate = alone,
        sent: Callable[[str, Sequence[str]], set[str]] = lambda _identity, _hashes: set(),
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self.provider = provider
        self.error = error
        self.cache = cache
        self._sent = sent
        #: Identity of the vectors that the index has.
        self.identity = provider.identity if provider else identity
        #: True if the model computes on this machine, in competition with everything else.
        self.slow = provider is not None and provider.limits.chunks_per_second < 500
        self.coordination = coordinate(provider) if provider else None
        self.batcher = (
            EmbeddingBatcher(provider, cache, coordination=self.coordination, patience_seconds=patience_seconds)
            if provider
            else None
        )

    @property
    def name(self) -> str:
        """Return the provider's name, or that of the index where the process lacks it; "none" for keywords only."""
        return self.provider.name if self.provider else str(facts_in(self.identity).get("provider", "none"))

    def lookup(self, hashes: Sequence[str]) -> dict[str, Vector]:
        """Return vectors that were paid for already."""
        if not hashes or self.cache is None or self.batcher is None:
            return {}
        return self.cache.get_many(self.identity, hashes)

    def in_batch_jobs(self, hashes: Sequence[str]) -> set[str]:
        """Return texts that an open batch job holds: they are paid for, and their vectors come with the job."""
        return self._sent(self.identity, hashes) if hashes else set()

    def close(self, *, timeout_seconds: float = 10.0) -> None:
        """Let requests in flight reach the cache within some seconds, then let go; the rest is abandoned."""
        if self.batcher:
            self.batcher.close(timeout_seconds=timeout_seconds)
        if self.provider:
            self.provider.close()
