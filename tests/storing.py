"""Making documents and vectors for tests of stores."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import apsw
import numpy as np

from memory.chunking.chunker import Chunk
from memory.embedding import cache
from memory.embedding.batch_jobs import batch_ledger
from memory.embedding.batch_jobs.batch_ledger import BatchLedger
from memory.embedding.cache import EmbeddingCache
from memory.embedding.cache_reader import VERSION, EmbeddingCacheReader
from memory.embedding.table_reader import file_reader
from memory.embedding.vectors import round_rows
from memory.store.dead_letters import FORGOTTEN
from memory.store.durable_sqlite import DurableSqlite
from memory.store.options import StoreOptions
from memory.store.reader import Hit, TranscriptPosition, Vector
from memory.store.sqlite.connection import load_sqlite_vec
from memory.store.sqlite.writer import SqliteStore, create_generation
from memory.store.writer import DocumentTouch, DocumentWrite, MovedChunk, Refusal, VectorOutcome
from schemas.documents import DocumentKey, FileStat

DIMENSIONS = 16

STAT = FileStat(size=10, mtime_ns=1_700_000_000_000_000_000, inode=7)

TALK = DocumentKey("sessions", "sessions/a.jsonl")


class TemporaryStore(SqliteStore):
    """An empty index whose file lasts as long as this object."""

    def __init__(self, options: StoreOptions | None = None) -> None:
        folder = Path(tempfile.mkdtemp())
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        create_generation(folder / "index.sqlite", StoreOptions(), fingerprint="f", description="")
        super().__init__(folder / "index.sqlite", options or StoreOptions())

    def reopen(self) -> None:
        """Close it and open it again."""
        self.close()
        super().__init__(self._path, self._options)


def cache_file(path: Path) -> DurableSqlite:
    """The tables of an embedding cache in a file."""
    return DurableSqlite(path, cache.KIND)


def cache_at(path: Path, *, max_entries: int | None = None) -> EmbeddingCache:
    """The embedding cache in a file."""
    return EmbeddingCache(cache_file(path), max_entries=max_entries)


def cache_reader_at(path: Path) -> EmbeddingCacheReader:
    """The same for reading."""
    return EmbeddingCacheReader(file_reader(path, VERSION))


def ledger_at(path: Path, *, clock: Callable[[], float] = time.time) -> BatchLedger:
    """The ledger of batch jobs in a file."""
    return BatchLedger(DurableSqlite(path, batch_ledger.KIND), clock=clock)


def key(path: str, source: str = "memory") -> DocumentKey:
    """A document's key."""
    return DocumentKey(source, path)


def text_hash(text: str) -> str:
    """An identity for a text; which one does not matter to a store."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def vector(seed: int, dimensions: int = DIMENSIONS) -> Vector:
    """A unit vector, rounded as on arrival, that is always the same for a seed."""
    raw = np.random.default_rng(seed).standard_normal((1, dimensions)).astype(np.float32)
    return np.asarray(round_rows(raw, expected=1, dimensions=dimensions)[0][0])


@dataclass(frozen=True, slots=True)
class VectorChunk(Chunk):
    """A chunk together with its vector, refusal or hold, which `vectors_of` hands to a write."""

    vector: VectorOutcome | None = None


def vectors_of(chunks: Iterable[VectorChunk]) -> dict[str, VectorOutcome]:
    """Vectors, refusals and holds of new chunks by text hash."""
    return {chunk.text_hash: chunk.vector for chunk in chunks if chunk.vector is not None}


def chunk(
    text: str, ordinal: int = 0, *, vector: VectorOutcome | None = None, refused: str | None = None
) -> VectorChunk:
    """A chunk on a line of its own."""
    return VectorChunk(
        ordinal=ordinal,
        start_line=ordinal + 1,
        end_line=ordinal + 1,
        text=text,
        text_hash=text_hash(text),
        vector=Refusal(refused) if refused is not None else vector,
    )


def document(
    document_key: DocumentKey, *texts: str, revision: int = 0, vectors: Sequence[VectorOutcome | None] = ()
) -> DocumentWrite:
    """A document that is new to the index, one chunk a text."""
    given = [*vectors, *[None] * (len(texts) - len(vectors))]
    added = tuple(chunk(text, ordinal, vector=given[ordinal]) for ordinal, text in enumerate(texts))
    return DocumentWrite(
        key=document_key,
        expected=revision,
        stat=STAT,
        content_hash=text_hash("".join(texts)),
        added=added,
        vectors=vectors_of(added),
    )


def position(lines: int, version: str = "") -> TranscriptPosition:
    """A position after so many lines; versions differ in what the lines say."""
    return TranscriptPosition(
        offset=lines * 10, lines=lines, digest=f"{version}{lines:032x}", state=f'{{"at": {lines}}}'
    )


def piece(
    *added: VectorChunk,
    continues: TranscriptPosition | None,
    to: TranscriptPosition,
    stale_from: int | None = None,
    moved: tuple[MovedChunk, ...] = (),
    removed: tuple[int, ...] = (),
    final: bool = True,
    of: DocumentKey = TALK,
) -> DocumentWrite:
    """One part of a transcript. Only the last part has the file's stat."""
    return DocumentWrite(
        key=of,
        expected=continues or 0,
        stat=STAT if final else FORGOTTEN,
        content_hash=to.digest,
        added=added,
        vectors=vectors_of(added),
        moved=moved,
        removed=removed,
        position=to,
        stale_from=stale_from,
        complete=final,
    )


def said(*texts: str, first: int = 0, vectors: bool = True) -> list[VectorChunk]:
    """Chunks one after the other; a vector is always the same for a text."""
    return [
        chunk(text, first + place, vector=vector(len(text)) if vectors else None) for place, text in enumerate(texts)
    ]


def filled(store: SqliteStore, documents: int = 30, chunks: int = 20) -> None:
    """Write documents "memory/<number>.md" with so many chunks each, all with vectors."""
    store.write(
        [
            document(
                key(f"memory/{number}.md"),
                *[f"note {number} part {part} about 网关" for part in range(chunks)],
                vectors=[vector(number * chunks + part) for part in range(chunks)],
            )
            for number in range(documents)
        ]
    )


def touch(store: SqliteStore, document_key: DocumentKey, stat: FileStat) -> None:
    """Give a document with the content that it has another stat."""
    known = store.file(document_key)
    assert known is not None
    store.write([DocumentTouch(document_key, stat, known.content_hash)])


def with_sqlite_vec(path: Path) -> apsw.Connection:
    """Another program's connection, which has sqlite-vec."""
    connection = apsw.Connection(str(path))
    assert load_sqlite_vec(connection, None) is None
    return connection


def by_sqlite_vec(path: Path, query: Vector, k: int) -> list[Hit]:
    """Return the answer of sqlite-vec itself."""
    connection = with_sqlite_vec(path)
    rows = connection.execute(
        "SELECT rowid, distance FROM chunks_vec WHERE embedding MATCH ? AND k = ? ORDER BY distance",
        (query.tobytes(), k),
    ).fetchall()
    connection.close()
    return [Hit(int(rowid), 1 - distance**2 / 2) for rowid, distance in rows]
