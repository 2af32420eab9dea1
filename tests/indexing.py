"""One workspace with its index, for tests of what comes into it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from memory.documents.agent_files import AgentFiles
from memory.embedding.cache import EmbeddingCache
from memory.embedding.providers.provider import EmbeddingProvider, ProviderLimits
from memory.embedding.providers.stub import StubProvider
from memory.embedding.selection import ProviderChoice
from memory.embedding.supply import EmbeddingSupply
from memory.index.generation_writer import GenerationWriter
from memory.index.indexer import Indexer
from memory.store.options import StoreOptions
from schemas.documents import DocumentKey
from schemas.settings import AgentSettings

FAST = ProviderLimits(inputs=64, tokens=100_000, input_bytes=8191, concurrency=2, chunks_per_second=5_000.0)
SLOW = ProviderLimits(inputs=64, tokens=100_000, input_bytes=8191, concurrency=1, chunks_per_second=0.01)


class World:
    """Agents with one workspace and one cache, each with an index of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.workspace = folder / "workspace"
        (self.workspace / "memory").mkdir(parents=True)
        self.cache = EmbeddingCache(folder / "embeddings.sqlite")
        self._open: list[Indexer] = []

    def agent(self, name: str = "main", *, tokens: int = 400, **settings: Any) -> AgentSettings:
        own = {"id": name, "workspace": self.workspace, "chunking": {"tokens": tokens, "overlap": 0}}
        return AgentSettings.model_validate({**own, **settings})

    def choice(self, provider: EmbeddingProvider | None, error: str | None = None) -> ProviderChoice:
        return ProviderChoice(provider, "openai", "openai" if provider else "none", None, error)

    def indexer(
        self,
        limits: ProviderLimits = FAST,
        *,
        provider: StubProvider | None = None,
        agent: str = "main",
        error: str | None = None,
        tokens: int = 400,
    ) -> Indexer:
        """Return an indexer with this provider, or one with these limits; with an `error`, none is available."""
        settings = self.agent(agent, tokens=tokens)
        choice = self.choice(None if error else provider or StubProvider(limits=limits), error)
        made = Indexer(
            settings,
            files=AgentFiles(settings),
            generations=GenerationWriter(self.folder / "indexes" / agent, StoreOptions()),
            supply=EmbeddingSupply(choice, self.cache),
        )
        self._open.append(made)
        return made

    def write(self, path: str, text: str) -> DocumentKey:
        (self.workspace / path).write_text(text, encoding="utf-8")
        return DocumentKey("memory", path)

    def close(self) -> None:
        for indexer in self._open:
            indexer.supply.close()
            indexer.generations.close()
        self.cache.close()
