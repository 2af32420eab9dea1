"""One workspace with its indexes, for tests of what comes into them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from memory.documents.agent_files import AgentFiles
from memory.embedding.coordination import Coordinate, alone
from memory.embedding.providers.provider import ProviderLimits
from memory.embedding.providers.stub import StubProvider
from memory.embedding.supply import EmbeddingSupply
from memory.http.whole_files import write_whole
from memory.index.file_generation_writer import FileGenerationWriter
from memory.index.generation_writer import IndexOwner
from memory.index.indexer import Indexer
from memory.store.options import StoreOptions
from schemas.documents import DocumentKey
from schemas.settings import AgentSettings
from tests.storing import cache_at

FAST = ProviderLimits(inputs=64, tokens=100_000, input_bytes=8191, concurrency=2, chunks_per_second=5_000.0)
SLOW = ProviderLimits(inputs=64, tokens=100_000, input_bytes=8191, concurrency=1, chunks_per_second=0.01)


class World:
    """Indexers of one workspace with one cache, which are closed with it."""

    #: Settings of the agent, and whether there is a cache.
    settings: Mapping[str, Any] = {"chunking": {"tokens": 400, "overlap": 0}}
    cached = True

    def __init__(self, folder: Path) -> None:
        self.folder, self.workspace, self.sessions = folder, folder / "workspace", folder / "sessions"
        (self.workspace / "memory").mkdir(parents=True)
        self.sessions.mkdir()
        self.cache = cache_at(folder / "embeddings.sqlite") if self.cached else None
        self._open: list[Indexer] = []

    def agent(self, **settings: Any) -> AgentSettings:
        own = {"id": "main", "workspace": self.workspace, "sessions": [str(self.sessions)], "provider": "stub"}
        return AgentSettings.model_validate({**own, **self.settings, **settings})

    def indexer(
        self,
        provider: StubProvider | None = None,
        *,
        limits: ProviderLimits = FAST,
        name: str = "main",
        lacking: str | None = None,
        owner: IndexOwner | None = None,
        holds: bool = False,
        coordinate: Coordinate = alone,
        **settings: Any,
    ) -> Indexer:
        """Return an indexer with this provider, or one with these limits; none while a key is `lacking`."""
        agent = self.agent(**settings)
        indexes = self.folder / "indexes" / name
        provider = provider or StubProvider(limits=limits)
        made = Indexer(
            agent,
            files=AgentFiles(agent),
            generations=FileGenerationWriter(indexes, StoreOptions(), owner=owner),
            supply=EmbeddingSupply(
                provider if lacking is None else None,
                self.cache,
                identity=provider.identity,
                error=lacking,
                coordinate=coordinate,
            ),
            holds=holds,
        )
        self._open.append(made)
        return made

    def write(self, path: str, text: str) -> DocumentKey:
        """Put a file in place of what was there."""
        file = self.workspace / path
        write_whole(file, text.encode(), synced=False)
        return DocumentKey("memory", path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for indexer in self._open:
            indexer.supply.close()
            indexer.generations.close()
        if self.cache is not None:
            self.cache.close()
