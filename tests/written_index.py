"""Index that is written directly through the store, for tests of readers, and helpers that read it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from memory.chunking.chunker import Chunk, chunk_text, text_hash
from memory.documents.agent_files import AgentFiles
from memory.embedding.selection import NO_VECTORS, choose_provider
from memory.embedding.vectors import round_rows
from memory.index.file_generation_writer import FileGenerationWriter
from memory.index.file_generations import FileGenerations
from memory.index.fingerprint import fingerprint
from memory.index.generation_writer import GenerationWriter
from memory.search.manager import SearchManager
from memory.search.resources import SearchResources
from memory.store.options import StoreOptions
from memory.store.reader import StoreReader
from memory.store.writer import DocumentWrite, Store
from schemas.documents import DocumentKey
from schemas.settings import AgentSettings, Settings


def writer_of(settings: Settings, agent_id: str = "main") -> GenerationWriter:
    """The agent's generations, for writing."""
    return FileGenerationWriter(settings.indexes_path / agent_id, StoreOptions.of(settings.store))


def with_agent(settings: Settings, **changes: object) -> Settings:
    """Return these settings with other ones of the first and only agent."""
    agent = AgentSettings.model_validate(settings.agents[0].model_dump() | changes)
    return settings.model_copy(update={"agents": (agent,)})


def with_agents(settings: Settings, *names: str, note: str = "note") -> Settings:
    """Return settings of these agents, each with a workspace beside the first one's, and one note (`note` is its name).

    `{name}` in it is the agent's.
    """
    agents = []
    for name in names:
        folder = settings.agents[0].workspace.parent / name
        (folder / "memory").mkdir(parents=True)
        text = f"The password of {name} is on the blue card.\n"
        (folder / "memory" / f"{note.format(name=name)}.md").write_text(text, "utf-8")
        agents.append(settings.agents[0].model_copy(update={"id": name, "workspace": folder}))
    return settings.model_copy(update={"agents": tuple(agents)})


@contextmanager
def reading(home: Path, agent: str = "main") -> Iterator[StoreReader | None]:
    """Yield a reader of the generation that answers, None when there is none."""
    reader = FileGenerations(home / "indexes" / agent, StoreOptions()).open_reader()
    try:
        yield reader
    finally:
        if reader is not None:
            reader.close()


@contextmanager
def searching(settings: Settings) -> Iterator[SearchManager]:
    """Yield the memory of the first agent; a search waits for the vector of its query."""
    resources = SearchResources(settings, model_wait_seconds=5)
    manager = SearchManager(settings, settings.agents[0], resources=resources)
    try:
        yield manager
    finally:
        manager.close()
        resources.close()


def write_index(settings: Settings, agent_id: str = "main", *, vectors: bool = True) -> Store:
    """Index all of an agent's documents that the index does not know yet; `vectors=False` leaves them pending."""
    agent = settings.agent(agent_id)
    provider = choose_provider(agent, settings.credentials).provider
    wanted = fingerprint(agent, provider.identity if provider is not None else NO_VECTORS)
    store = writer_of(settings, agent_id).open_writer(wanted)[0]
    files = AgentFiles(agent)
    for key in files.scan().documents:
        if store.file(key) is None:
            write_document(store, files, key, provider if vectors else None)
    if provider is not None:
        provider.close()
    return store


def write_document(store: Store, files: AgentFiles, key: DocumentKey, provider) -> None:
    """Write one document whose chunks are all new."""
    revision = store.revision(key)
    source = files.read(key)
    chunks = [chunk for chunk in chunk_text(source.text) if chunk.text.strip()]
    texts = [chunk.text for chunk in chunks]
    matrix = None
    if provider is not None and texts:
        matrix = round_rows(provider.embed_documents(texts).vectors, expected=len(texts), dimensions=None)[0]
    added = tuple(
        Chunk(
            ordinal=ordinal,
            start_line=chunk.start_line,
            end_line=chunk.end_line,
            text=chunk.text,
            text_hash=text_hash(chunk.text),
        )
        for ordinal, chunk in enumerate(chunks)
    )
    old = tuple(chunk.id for chunk in store.chunks_of(key))
    store.write(
        [
            DocumentWrite(
                key=key,
                expected=revision,
                stat=source.stat,
                content_hash=source.content_hash,
                added=added,
                vectors={} if matrix is None else dict(zip(map(text_hash, texts), matrix, strict=True)),
                removed=old,
                notes=source.notes,
            )
        ]
    )
