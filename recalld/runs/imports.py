"""Export of an agent's memory from any store to a SQLite file, and its import into an index of any store.

Files are the truth: a note that is not in the workspace counts as deleted, and would leave the index at the next
comparison. So an import takes only the documents that the index will keep. Documents that the index has stay,
and those that another process writes meanwhile. An import may be repeated. Vectors of documents that it leaves out go
into the embedding cache: these documents cost nothing when they come.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from memory.chunking.chunker import Chunk, text_hash
from memory.documents.agent_files import AgentFiles
from memory.documents.comparison import forgets
from memory.embedding.cache import EmbeddingCache
from memory.embedding.selection import NO_VECTORS, facts_in
from memory.index.file_generations import FileGenerations
from memory.index.fingerprint import Fingerprint, embedding_of
from memory.index.generation_writer import GenerationWriter, IndexOwner
from memory.index.generations import Generations
from memory.redaction import redactor_for
from memory.store.dead_letters import FORGOTTEN
from memory.store.errors import OtherFormat, StoreCorrupt, StoreFull
from memory.store.options import StoreOptions
from memory.store.reader import IndexedFile, StoreReader, VectorState
from memory.store.sqlite.reader import SqliteReader
from memory.store.sqlite.writer import SqliteStore, copy_whole, create_generation
from memory.store.writer import DocumentWrite, Refusal, Store, Unread, VectorOutcome, WriteOutcome
from schemas.agents import Scope
from schemas.documents import DocumentKey
from schemas.errors import UserError
from schemas.settings import AgentSettings, Settings

#: Documents that are copied at a time.
DOCUMENTS_A_WRITE = 50


def export_file(settings: Settings, agent_id: str, file: Path) -> None:
    """Write an agent's memory, as of one moment, to a file that only its user can read, whole or not at all."""
    generations = Generations.of(settings, agent_id)
    if (name := generations.current()) is None:
        raise UserError(f"agent {agent_id} has no index yet; `recalld index` makes one, or the workers of its fleet")
    if isinstance(generations, FileGenerations):
        return copy_whole(generations.folder / name, file, is_alone=True)
    if (reader := generations.open_named(name)) is None:
        raise UserError(f"the index of agent {agent_id} was replaced meanwhile; export it again")
    try:
        with TemporaryDirectory(prefix=".recalld-export-", dir=file.parent) as folder, reader.snapshot():
            draft, options = Path(folder, "memory.sqlite"), StoreOptions.of(settings.store)
            facts = (reader.meta(fact) for fact in ("fingerprint", "identity", "takeover"))
            fingerprint, identity, takeover = facts
            create_generation(
                draft, options, fingerprint=fingerprint or "", description=identity or "", takeover=takeover
            )
            with closing(SqliteStore(draft, options)) as target:
                _copy(reader, target, reader.files(), lambda _: str)
            copy_whole(draft, file, is_alone=True)
    except (StoreFull, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no space left"
        raise UserError(f"{file} cannot be written ({reason}); free space, or correct its folder") from error


def import_file(
    file: Path, settings: Settings, agent: AgentSettings, expected: Fingerprint
) -> tuple[int, list[DocumentKey]]:
    """Import an exported file (`import_documents`). Raise UserError if it is damaged, or not of `expected` identity."""
    try:
        with (
            closing(SqliteReader(file, StoreOptions())) as source,
            closing(IndexOwner.of(settings)) as owner,
            closing(GenerationWriter.at(settings, agent.id, owner=owner)) as generations,
        ):
            _examine(source, expected.description, file=file, agent=agent.id)
            target = generations.open_writer(expected)[0]
            imported, left_out = import_documents(source, target, agent, AgentFiles.of(settings, agent))
            _keep_vectors(source, left_out, settings, agent, embedding_of(expected.description))
            return imported, left_out
    except OtherFormat:
        raise UserError(
            f"{file} has a format that this version of recalld does not read; upgrade recalld, or export it again"
        ) from None
    except StoreCorrupt as error:
        if error.generation != file.name:
            raise  # the agent's index
        raise UserError(f"{file} is damaged, or is no export of recalld ({error}); export it again") from None


def _examine(source: StoreReader, expected: str, *, file: Path, agent: str) -> None:
    if flaws := source.check():
        raise StoreCorrupt(flaws[0], generation=file.name)
    theirs, ours = _settings_in(source.meta("identity") or "{}"), _settings_in(expected)
    if theirs != ours:
        in_file, in_agent = (
            ", ".join(f"{name} = {json.dumps(facts[name])}" for name in facts if facts[name] != counterpart.get(name))
            for facts, counterpart in ((theirs, ours), (ours, theirs))
        )
        raise UserError(
            f"{file} was made with {in_file}, and agent {agent} has {in_agent or 'none of these'}; give the agent "
            "the settings of the file, or export it from a memory with the agent's"
        )


def _settings_in(description: str) -> dict[str, Any]:
    """Return the settings and versions that an identity stands for."""
    facts: dict[str, Any] = json.loads(description)
    lists = {"chunking": ("", ".tokens", ".overlap"), "redaction": ("", ".memory", ".sessions", ".patterns")}
    for name, ends in lists.items():
        facts |= zip((name + end for end in ends), facts.get(name, ()), strict=False)
    return (facts_in(str(facts.pop("embedding", ""))) or {"provider": NO_VECTORS}) | facts


def import_documents(
    source: StoreReader, target: Store, agent: AgentSettings, files: AgentFiles
) -> tuple[int, list[DocumentKey]]:
    """Write the documents that the index lacks and will keep, with their vectors; return their number and the rest."""
    left_out: list[DocumentKey] = []
    documents: list[IndexedFile] = []
    on_disk = files.scan(imported=True).documents
    for file in source.files():
        key, present = file.key, target.file(file.key)
        if key not in on_disk and forgets(files, key, target):
            left_out.append(key)
        elif present is None or present.stat == FORGOTTEN:
            documents.append(file)
    # They change no text that recalld has exported.
    return _copy(source, target, documents, cache(lambda name: redactor_for(agent, name))), left_out


def _keep_vectors(
    source: StoreReader, keys: Iterable[DocumentKey], settings: Settings, agent: AgentSettings, identity: str
) -> None:
    if (vectors_of_texts := EmbeddingCache.of(settings, Scope.of(agent.id).tenant)) is not None:
        with closing(vectors_of_texts):
            for key in keys:
                hashes = {chunk.id: chunk.text_hash for chunk in source.chunks_of(key)}
                vectors = source.vectors_of([*hashes])
                vectors_of_texts.put_many(identity, {hashes[number]: vector for number, vector in vectors.items()})


def _copy(
    source: StoreReader,
    target: Store,
    documents: Iterable[IndexedFile],
    redactor: Callable[[str], Callable[[str], str]],
) -> int:
    """Copy documents with vectors and sentences to another store; return the number of those written.

    `redactor` returns the redactor of a source of documents.
    """

    def first_chunk(file: IndexedFile) -> tuple[int, DocumentKey]:
        return min((chunk.id for chunk in source.chunks_of(file.key)), default=0), file.key

    copied = 0
    # In the order of chunks, which decides between equal scores.
    files = sorted(documents, key=first_chunk)
    for first in range(0, len(files), DOCUMENTS_A_WRITE):
        together = files[first : first + DOCUMENTS_A_WRITE]
        writes = [_copied(source, target, file, redactor(file.key.source)) for file in together]
        copied += target.write(writes).count(WriteOutcome.COMMITTED)
    if source.sentence_counts()[0]:
        for sentences in source.all_sentences():
            target.add_sentences(sentences)
    return copied


def _copied(source: StoreReader, target: Store, file: IndexedFile, redact: Callable[[str], str]) -> DocumentWrite:
    """Return the change that replaces a document of the target by that of the source."""
    key, expected = file.key, target.revision(file.key)
    chunks = {chunk.id: chunk for chunk in source.chunks_of(key) if chunk.ordinal >= 0}
    times, vectors = source.times_of([*chunks]), source.vectors_of([*chunks])
    added: list[Chunk] = []
    outcomes: dict[str, VectorOutcome] = {}
    for chunk_id, row in sorted(source.chunk_rows([*chunks]).items()):
        chunk, text = chunks[chunk_id], redact(row.text)
        added.append(Chunk(row.ordinal, row.start_line, row.end_line, text, text_hash(text), times.get(chunk_id)))
        if chunk_id in vectors:
            outcomes[chunk.text_hash] = vectors[chunk_id]
        elif chunk.vector_state is VectorState.HELD and isinstance(target, SqliteStore):  # a fleet holds nothing
            outcomes[chunk.text_hash] = VectorState.HELD
        elif chunk.refusal is not None:
            is_unread = chunk.vector_state is VectorState.UNREAD
            outcomes[chunk.text_hash] = Unread(chunk.refusal) if is_unread else Refusal(chunk.refusal)
    removed, position = tuple(chunk.id for chunk in target.chunks_of(key)), source.transcript(key)
    write = DocumentWrite(key, expected, file.stat, file.content_hash, tuple(added), outcomes, removed=removed)
    return replace(write, notes=file.notes, position=position)
