"""Import of an agent's memory from an exported generation, a SQLite file, into an index of any store.

Files are the truth: a note that is not in the workspace counts as deleted, and would leave the index at the next
comparison. So an import takes only the documents that the index will keep. Documents that the index has stay,
and those that another process writes meanwhile. An import may be repeated.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from memory.chunking.chunker import Chunk, text_hash
from memory.documents.agent_files import AgentFiles
from memory.documents.comparison import forgets
from memory.embedding.selection import NO_VECTORS, facts_in
from memory.index.fingerprint import Fingerprint
from memory.index.generation_writer import GenerationWriter, IndexOwner
from memory.redaction import redactor_for
from memory.store.dead_letters import FORGOTTEN
from memory.store.errors import OtherFormat, StoreCorrupt
from memory.store.options import StoreOptions
from memory.store.reader import IndexedFile, StoreReader, VectorState
from memory.store.sqlite.reader import SqliteReader
from memory.store.writer import DocumentWrite, Refusal, Store, Unread, VectorOutcome, WriteOutcome
from schemas.documents import DocumentKey
from schemas.errors import UserError
from schemas.settings import AgentSettings, Settings


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
            return import_documents(source, target, agent, AgentFiles.of(settings, agent))
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
    documents: list[tuple[int, DocumentKey, IndexedFile]] = []
    on_disk = files.scan(imported=True).documents
    for file in source.files():
        key, present = file.key, target.file(file.key)
        if key not in on_disk and forgets(files, key, target):
            left_out.append(key)
        elif present is None or present.stat == FORGOTTEN:
            documents.append((min((chunk.id for chunk in source.chunks_of(key)), default=0), key, file))
    redactor = cache(lambda name: redactor_for(agent, name))
    imported = 0
    # In the order of chunks, which decides between equal scores.
    for _, key, file in sorted(documents):
        write = _copied(source, target, file, redactor(key.source))
        imported += target.write([write]) == [WriteOutcome.COMMITTED]
    if source.sentence_counts()[0]:
        for sentences in source.all_sentences():
            target.add_sentences(sentences)
    return imported, left_out


def _copied(source: StoreReader, target: Store, file: IndexedFile, redact: Callable[[str], str]) -> DocumentWrite:
    """Return the change that replaces a document of the target by that of the source."""
    key, expected = file.key, target.revision(file.key)
    chunks = {chunk.id: chunk for chunk in source.chunks_of(key) if chunk.ordinal >= 0}
    times, vectors = source.times_of([*chunks]), source.vectors_of([*chunks])
    added: list[Chunk] = []
    outcomes: dict[str, VectorOutcome] = {}
    for chunk_id, row in sorted(source.chunk_rows([*chunks]).items()):
        chunk, text = chunks[chunk_id], redact(row.text)  # which changes no text that recalld has exported
        added.append(Chunk(row.ordinal, row.start_line, row.end_line, text, text_hash(text), times.get(chunk_id)))
        if chunk_id in vectors:
            outcomes[chunk.text_hash] = vectors[chunk_id]
        elif chunk.refusal is not None:
            is_unread = chunk.vector_state is VectorState.UNREAD
            outcomes[chunk.text_hash] = Unread(chunk.refusal) if is_unread else Refusal(chunk.refusal)
    removed, position = tuple(chunk.id for chunk in target.chunks_of(key)), source.transcript(key)
    write = DocumentWrite(key, expected, file.stat, file.content_hash, tuple(added), outcomes, removed=removed)
    return replace(write, notes=file.notes, position=position)
