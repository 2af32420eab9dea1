"""Read access to one SQLite generation. It never writes and never waits for a writer."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import apsw

from memory.chunking.segmenting import match_terms
from memory.store.errors import VectorSearchUnavailable
from memory.store.options import StoreOptions
from memory.store.reader import (
    MOST_WITH_SENTENCES,
    ChunkFilter,
    ChunkRow,
    Flaw,
    Hit,
    SentenceSigns,
    TermCounts,
    Vector,
)
from memory.store.row_reader import RowReader
from memory.store.rows import chunk_row, stored_signs
from memory.store.sqlite import keywords, vectors
from memory.store.sqlite.check import findings
from memory.store.sqlite.connection import ReadConnections
from memory.store.sqlite.keywords import TermFrequencies
from memory.store.sqlite.rows import (
    USERS_WORDS_DUE,
    as_json,
    fetch,
    has_sentences,
    meta_value,
    run,
)
from memory.store.sqlite.vectors import ResidentVectors, VectorShelf
from memory.store.sqlite_file import bytes_of
from schemas.status import IndexCounts

# One chunk of each text; any of several will do.
SELECT_READY_BY_HASH = """
SELECT min(id), text_hash FROM chunks
WHERE text_hash IN (SELECT value FROM json_each(?)) AND vector_state = 'ready'
GROUP BY text_hash
"""


class SqliteReader(RowReader):
    """Read access to one file, also in a folder that this user cannot write.

    With a `shelf`, the vectors of a frequently searched index are held in memory. `any_format` is for taking over the
    contents of an index of another format.

    Raises:
        StoreUnreadable: the file cannot be opened.
        OtherFormat: the file has another format.
        StoreCorrupt: the file is damaged, or is no index.
    """

    def __init__(
        self, path: Path, options: StoreOptions, *, shelf: VectorShelf | None = None, any_format: bool = False
    ) -> None:
        self._path = path
        self._options = options
        self._readers = ReadConnections(path, options, any_format=any_format)
        self._cached_dimensions: int | None = None
        self._resident = ResidentVectors(shelf) if shelf is not None else None
        self._frequencies = TermFrequencies()

    @property
    def name(self) -> str:
        return self._path.name

    @property
    def vector_reason(self) -> str | None:
        return None if self._options.vector_enabled else "vectors are switched off (store.vector.enabled)"

    @property
    def text_reason(self) -> str | None:
        return self._readers.text_reason

    def meta(self, name: str) -> str | None:
        with self._readers.borrow() as connection:
            return meta_value(connection, name)

    def vectors_by_hash(self, text_hashes: Sequence[str]) -> dict[str, Vector]:
        with self._readers.borrow() as connection:
            dimensions = self._dimensions(connection)
            if dimensions is None:
                return {}
            rows = fetch(connection, SELECT_READY_BY_HASH, (as_json(text_hashes),))
            hashes = {int(row[0]): str(row[1]) for row in rows}
            vectors_by_id = vectors.vectors_of(connection, list(hashes), dimensions)
        return {hashes[chunk_id]: vector for chunk_id, vector in vectors_by_id.items()}

    def vectors_of(self, ids: Sequence[int]) -> dict[int, Vector]:
        with self._readers.borrow() as connection:
            dimensions = self._dimensions(connection)
            return vectors.vectors_of(connection, ids, dimensions) if dimensions is not None else {}

    def times_of(self, ids: Sequence[int]) -> dict[int, float]:
        return dict(self._fetch("times", ids=ids))

    def chunk_rows(self, ids: Sequence[int]) -> dict[int, ChunkRow]:
        return {row[0]: chunk_row(row) for row in self._fetch("chunk_rows", ids=ids)}

    def unread_among(self, ids: Sequence[int]) -> set[int]:
        return {row[0] for row in self._fetch("unread", ids=ids)}

    def search_vectors(self, vector: Vector, k: int, within: ChunkFilter | None = None) -> list[Hit]:
        with self._readers.borrow() as connection:
            if self._searchable_dimensions(connection, vector) is None or k < 1:
                return []
            return vectors.nearest(connection, vector, k, within, self._resident)

    def vector_scores(self, vector: Vector, ids: Sequence[int]) -> dict[int, float]:
        with self._readers.borrow() as connection:
            dimensions = self._searchable_dimensions(connection, vector)
            if dimensions is None or not ids:
                return {}
            vectors_by_id = vectors.vectors_of(connection, ids, dimensions)
        return {chunk_id: float(chunk_vector @ vector) for chunk_id, chunk_vector in vectors_by_id.items()}

    def search_text(self, query: str, k: int, within: ChunkFilter | None = None) -> list[Hit]:
        terms = tuple(match_terms(query).values())
        if not terms or k < 1:
            return []
        with self._readers.borrow() as connection:
            return keywords.best_texts(connection, terms, k, self._frequencies, within)

    def text_scores(self, query: str, ids: Sequence[int]) -> dict[int, float]:
        terms = tuple(match_terms(query).values())
        if not terms or not ids:
            return {}
        with self._readers.borrow() as connection:
            return keywords.scores(connection, terms, ids, "chunks_fts")

    def user_scores(self, query: str, ids: Sequence[int]) -> dict[int, float]:
        terms = tuple(match_terms(query).values())
        with self._readers.borrow() as connection:
            is_whole = has_sentences(connection) and meta_value(connection, USERS_WORDS_DUE) is None
            return keywords.scores(connection, terms, ids, "chunks_said") if terms and ids and is_whole else {}

    def sentence_signs(self, ids: Sequence[int]) -> dict[int, SentenceSigns]:
        with self._readers.borrow() as connection:
            rows = run(connection, "sentences", ids=ids) if has_sentences(connection) else []
        return {chunk_id: stored_signs(users, signs) for chunk_id, users, signs in rows}

    def lacks_users_words(self) -> bool:
        with self._readers.borrow() as connection:
            return not has_sentences(connection) or meta_value(connection, USERS_WORDS_DUE) is not None

    def sentence_counts(self) -> tuple[int, int]:
        with self._readers.borrow() as connection:
            is_whole = has_sentences(connection)
        return super().sentence_counts() if is_whole else (0, min(self.counts().vectors_ready, MOST_WITH_SENTENCES))

    def term_counts(self, query: str) -> TermCounts:
        terms = match_terms(query)
        with self._readers.borrow() as connection:
            chunk_counts = self._frequencies.of(connection, list(terms.values()))
            return TermCounts(self._frequencies.chunks(connection), dict(zip(terms, chunk_counts, strict=True)))

    def counts(self) -> IndexCounts:
        [(files, chunks, pending, refused, unread, held_count, last, ever, erased, since)] = self._fetch("counts")
        return IndexCounts(
            files=files,
            chunks=chunks,
            vectors_ready=chunks - pending - refused - held_count - unread,
            vectors_pending=pending,
            vectors_refused=refused,
            vectors_held=held_count,
            last_commit_at=None if last is None else float(last),
            disk_bytes=sum(bytes_of(self._path.with_name(self._path.name + end)) for end in ("", "-wal", "-shm")),
            deleted_on_disk=ever - chunks - int(erased or 0) if since is not None else 0,
            deleted_since=None if since is None else float(since),
        )

    def check(self) -> list[Flaw]:
        with self._readers.borrow() as connection:
            return findings(connection)

    def snapshot(self) -> AbstractContextManager[object]:
        return nullcontext()

    def close(self) -> None:
        self._readers.close()
        if self._resident is not None:
            self._resident.close()

    def held_hashes(self, limit: int | None = None, *, after: int = 0) -> dict[int, str]:
        return dict(self._fetch("held", after=after, limit=-1 if limit is None else limit))

    def _fetch(self, statement: str, **bindings: object) -> list[tuple[Any, ...]]:
        with self._readers.borrow() as connection:
            return run(connection, statement, **bindings)

    def _dimensions(self, connection: apsw.Connection) -> int | None:
        """Return the width of the vectors, None while the index has never held one."""
        if self._cached_dimensions is None:
            value = meta_value(connection, "dimensions")
            self._cached_dimensions = None if value is None else int(value)
        return self._cached_dimensions

    def _searchable_dimensions(self, connection: apsw.Connection, vector: Vector) -> int | None:
        dimensions = self._dimensions(connection)
        if dimensions is None:
            return None
        if self.vector_reason is not None:
            raise VectorSearchUnavailable(f"the index holds vectors, but {self.vector_reason}")
        if vector.shape != (dimensions,):
            raise VectorSearchUnavailable(
                f"the index holds vectors of {dimensions} dimensions and the query's has {vector.size}; "
                "`recalld rebuild` makes them one"
            )
        return dimensions
