"""Transcripts that are not on the disk any more move from the generation that answers to the one that replaces it.

Their memory outlives them (`sync.sessions.forget_deleted` aside), and nothing else holds it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from memory.chunking.chunker import text_hash
from memory.documents.session_roots import is_transcript_name
from memory.index.commit_batch import MAX_CHUNKS_PER_COMMIT
from memory.index.fingerprint import embedding_of
from memory.index.indexer import Indexer
from memory.redaction import redactor_for
from memory.store.dead_letters import FORGOTTEN
from memory.store.errors import OtherVersion
from memory.store.reader import IndexedFile, StoreReader, TranscriptMark
from memory.store.writer import NewChunk, Store, TranscriptWrite
from schemas.documents import SESSIONS_SOURCE, DocumentKey

#: Nothing of the file is known: should it come back, it is read from its start.
_NOWHERE = TranscriptMark(0, 0, "", "")


def missing_transcripts(indexer: Indexer) -> list[DocumentKey]:
    """Return the transcripts of the answering generation that the written one lacks, or holds in part only.

    Files that an older version took for transcripts by their names are none, nor is what is left out by now.
    """
    if indexer.generations.next() is None:
        return []
    reader = _answering(indexer)
    if reader is None:
        return []
    target = indexer.target()
    try:
        sessions = (file.key for file in reader.files() if file.key.is_transcript)
        transcripts = [key for key in sessions if is_transcript_name(key.path.rpartition("/")[2])]
        lacking = [key for key in transcripts if (known := target.file(key)) is None or known.stat == FORGOTTEN]
    finally:
        reader.close()
    out = indexer.files.transcripts.left_out(lacking)
    return [key for key in lacking if key not in out]


def carry_over(indexer: Indexer, keys: Sequence[DocumentKey]) -> None:
    """Copy what the answering generation holds of these transcripts; vectors come along where they may."""
    reader = _answering(indexer)
    if reader is None:
        return
    target = indexer.target()
    try:
        for key in keys:
            known = reader.file(key)
            if known is not None:
                _copy(indexer, reader, target, known)
    finally:
        reader.close()


def _answering(indexer: Indexer) -> StoreReader | None:
    """None also when only another version of recalld can read it."""
    try:
        return indexer.generations.open_reader()
    except OtherVersion:
        return None


def _copy(indexer: Indexer, reader: StoreReader, target: Store, known: IndexedFile) -> None:
    numbers = [chunk.id for chunk in reader.chunks_of(known.key)]
    starts = range(0, max(1, len(numbers)), MAX_CHUNKS_PER_COMMIT)
    # Begun anew if somebody died in the middle: what is there already is taken over by its text.
    continues = target.transcript(known.key)
    for start in starts:
        part = numbers[start : start + MAX_CHUNKS_PER_COMMIT]
        write = TranscriptWrite(
            key=known.key,
            continues=continues,
            mark=_NOWHERE,
            stat=known.stat if start == starts[-1] else FORGOTTEN,
            keep=0 if start == 0 else None,
            added=tuple(_chunks(indexer, reader, part, first=start)),
            final=start == starts[-1],
            notes=known.notes,
        )
        target.write([write])
        continues = _NOWHERE


def _chunks(indexer: Indexer, reader: StoreReader, numbers: Sequence[int], *, first: int) -> Iterator[NewChunk]:
    redact = redactor_for(indexer.agent, SESSIONS_SOURCE)
    rows, times = reader.chunk_rows(numbers), reader.times_of(numbers)
    # Rules that came after the text was indexed hold for it, too.
    texts = {number: redact(row.text) for number, row in rows.items()}
    hashes = {number: text_hash(text) for number, text in texts.items()}
    identity = embedding_of(indexer.target().meta("identity"))
    vectors = indexer.held_vectors(list(hashes.values()), identity=identity)
    for ordinal, number in enumerate((number for number in numbers if number in rows), start=first):
        row = rows[number]
        yield NewChunk(
            ordinal=ordinal,
            start_line=row.start_line,
            end_line=row.end_line,
            text=texts[number],
            text_hash=hashes[number],
            vector=vectors.get(hashes[number]),
            said_at=times.get(number),
        )
