"""Read access to one SQLite generation. It never writes and never waits for a writer."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import apsw

from memory.chunking.segmenting import match_terms
from memory.store.errors import VectorSearchUnavailable
from memory.store.options import StoreOptions
from memory.store.reader import (
    MOST_BEGUN,
    MOST_NAMED,
    ChunkFilter,
    ChunkRow,
    Flaw,
    Hit,
    IndexedFile,
    SentenceSigns,
    StoredChunk,
    StoreReader,
    TermCounts,
    TranscriptPosition,
    Vector,
)
from memory.store.rows import (
    CHANGED_AT,
    DEAD_LETTER_COLUMNS,
    FILE_COLUMNS,
    STORED_CHUNK_COLUMNS,
    chunk_row,
    dead_letter,
    in_order,
    indexed_file,
    name_of,
    stored_signs,
)
from memory.store.sqlite import keywords, vectors
from memory.store.sqlite.check import findings
from memory.store.sqlite.connection import ReadConnections
from memory.store.sqlite.keywords import TermFrequencies
from memory.store.sqlite.rows import (
    SELECT_FILE_ID,
    USERS_WORDS_DUE,
    as_json,
    current_revision,
    fetch,
    fetch_one,
    has_sentences,
    meta_value,
    position_of,
    refused_of,
)
from memory.store.sqlite.schema import FILE_NAME
from memory.store.sqlite.vectors import ResidentVectors, VectorShelf
from memory.store.sqlite_file import bytes_of
from schemas.documents import SESSIONS_SOURCE, DocumentKey
from schemas.status import DeadLetter, IndexCounts

SELECT_FILE = f"SELECT {FILE_COLUMNS} FROM files WHERE source = ? AND path = ?"  # noqa: S608 - a constant
SELECT_FILES = f"SELECT id, {FILE_COLUMNS} FROM files WHERE id > ? ORDER BY id LIMIT ?"  # noqa: S608 - a constant

#: Documents in one page.
_FILES_PAGE = 2_000

# By the index on (file_id, ordinal): no chunk is read.
SELECT_CHUNKS_BY_PATH = """
SELECT f.path, (SELECT count(*) FROM chunks AS c WHERE c.file_id = f.id) FROM files AS f WHERE f.source = ?
"""

# Two ranges of `chunks_by_file`: a slice of a transcript looks only at the chunks that it concerns.
SELECT_CHUNKS_OF = f"""
SELECT {STORED_CHUNK_COLUMNS} FROM chunks
WHERE file_id = (SELECT id FROM files WHERE source = ?1 AND path = ?2) AND ordinal >= ?3
UNION ALL SELECT {STORED_CHUNK_COLUMNS} FROM chunks
WHERE file_id = (SELECT id FROM files WHERE source = ?1 AND path = ?2) AND ordinal < 0
"""  # noqa: S608 - a constant

# Two ranges of the index on names: this name, and this name with a full stop.
_IN_FOLDER = "substr('/' || lower(rtrim(path, replace(path, '/', ''))), -length(?1)) = lower(?1)"
SELECT_NAMED = f"""
SELECT * FROM (
    SELECT source, path FROM files WHERE {FILE_NAME} = lower(?2) AND {_IN_FOLDER} ORDER BY id DESC LIMIT {MOST_NAMED}
) UNION ALL SELECT * FROM (
    SELECT source, path FROM files WHERE {FILE_NAME} > lower(?2) || '.' AND {FILE_NAME} < lower(?2) || '/'
    AND {_IN_FOLDER} ORDER BY id DESC LIMIT {MOST_NAMED}
)
"""  # noqa: S608 - constants

SELECT_BEGUN_BY = """
SELECT f.source, f.path
FROM chunks AS c INDEXED BY chunks_by_hash JOIN files AS f ON f.id = c.file_id
WHERE c.text_hash = ? AND c.ordinal = 0 AND f.source = ?
ORDER BY c.id LIMIT ?
"""

SELECT_TIMES = """
SELECT id, said_at FROM chunks WHERE said_at IS NOT NULL AND id IN (SELECT value FROM json_each(?))
"""

SELECT_CHUNK_ROWS = """
SELECT c.id, f.source, f.path, c.ordinal, c.start_line, c.end_line, c.text
FROM chunks AS c JOIN files AS f ON f.id = c.file_id
WHERE c.id IN (SELECT value FROM json_each(?))
"""

SELECT_TEXTS_HOLDING = """
SELECT f.source, f.path, f.inode, c.text FROM json_each(?1) AS wanted
CROSS JOIN files AS f ON f.source = wanted.value ->> 0 AND f.path = wanted.value ->> 1
LEFT JOIN chunks AS c ON c.file_id = f.id
    AND EXISTS (SELECT 1 FROM json_each(?2) AS words WHERE instr(c.text, words.value))
"""

_BEGINNING = "(SELECT substr(text, 1, 4000) FROM chunks WHERE file_id = files.id AND ordinal = 0)"
SELECT_BEGINNINGS = f"""
SELECT {FILE_COLUMNS}, {_BEGINNING} FROM files
WHERE (source, path) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?))
"""  # noqa: S608 - constants

SELECT_CHANGES = f"""
SELECT source, path, {CHANGED_AT} AS changed
FROM files
WHERE (?1 IS NULL OR source = ?1) AND (?2 = '' OR (path >= ?2 AND substr(path, 1, length(?2)) = ?2))
  AND changed >= ?3 AND changed < ?4
ORDER BY changed DESC, path LIMIT ?5
"""  # noqa: S608 - a constant

SELECT_PENDING_HASHES = "SELECT id, text_hash FROM chunks WHERE vector_state = 'pending' ORDER BY id LIMIT ?"

SELECT_SENTENCES = """
SELECT c.id, s.users, s.signs FROM chunks AS c JOIN sentences AS s ON s.text_hash = c.text_hash
WHERE c.id IN (SELECT value FROM json_each(?)) AND length(s.users)
"""

#: Newest chunks of an index that get sentences.
MOST_WITH_SENTENCES = 20_000
_LACKS_SENTENCES = f"""
id > ifnull((SELECT id FROM chunks ORDER BY id DESC LIMIT 1 OFFSET {MOST_WITH_SENTENCES}), 0)
AND vector_state = 'ready' AND text_hash NOT IN (SELECT text_hash FROM sentences)
"""  # noqa: S608 - a constant
SELECT_LACKING = f"SELECT id, text_hash FROM chunks WHERE {_LACKS_SENTENCES} ORDER BY id DESC LIMIT ?"  # noqa: S608
COUNT_LACKING = f"SELECT count(*) FROM chunks WHERE {_LACKS_SENTENCES}"  # noqa: S608
SELECT_SENTENCES_AFTER = "SELECT rowid, text_hash, users, signs FROM sentences WHERE rowid > ? ORDER BY rowid LIMIT 500"

# One chunk of each text; any of several will do.
SELECT_READY_BY_HASH = """
SELECT min(id), text_hash FROM chunks
WHERE text_hash IN (SELECT value FROM json_each(?)) AND vector_state = 'ready'
GROUP BY text_hash
"""

SELECT_DEAD_LETTERS = f"""
SELECT {DEAD_LETTER_COLUMNS}
FROM dead_letters WHERE last_at > 0 ORDER BY last_at DESC, source, path
"""  # noqa: S608 - a constant

# The reader subtracts to get the ready ones: counting them would read every row.
SELECT_COUNTS = """
SELECT
    (SELECT count(*) FROM files),
    (SELECT count(*) FROM chunks),
    (SELECT count(*) FROM chunks WHERE vector_state = 'pending'),
    (SELECT count(*) FROM chunks WHERE vector_state = 'refused'),
    (SELECT count(*) FROM chunks WHERE vector_state = 'unread'),
    (SELECT value FROM meta WHERE name = 'last_commit_at'),
    (SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'chunks'),
    (SELECT value FROM meta WHERE name = 'erased'),
    (SELECT value FROM meta WHERE name = 'unerased_since')
"""

COUNT_PENDING = "SELECT count(*) FROM chunks WHERE vector_state = 'pending'"

COUNT_UNREAD = """
SELECT refusal, count(DISTINCT file_id) FROM chunks WHERE vector_state = 'unread' GROUP BY refusal ORDER BY 2 DESC, 1
"""
SELECT_UNREAD = "SELECT id FROM chunks WHERE vector_state = 'unread' AND id IN (SELECT value FROM json_each(?))"


class SqliteReader(StoreReader):
    """Read access to one file, also in a folder that this user cannot write.

    With a `shelf`, the vectors of a frequently
    searched index are held in memory. `any_format` is for taking over the contents of an index of another format.

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

    def revision(self, key: DocumentKey) -> int:
        with self._readers.borrow() as connection:
            return current_revision(connection, key)

    def file(self, key: DocumentKey) -> IndexedFile | None:
        with self._readers.borrow() as connection:
            row = fetch_one(connection, SELECT_FILE, name_of(key))
        return indexed_file(row) if row else None

    def changes(
        self,
        source: str | None = None,
        *,
        under: str = "",
        since: float = 0.0,
        until: float = math.inf,
        limit: int = -1,
    ) -> list[tuple[DocumentKey, float]]:
        rows = self._fetch(SELECT_CHANGES, source, under, since, min(until, 1e12), limit)
        return [(DocumentKey(*row[:2]), row[2]) for row in rows]

    def beginnings(self, keys: Collection[DocumentKey]) -> list[tuple[IndexedFile, str]]:
        rows = self._fetch(SELECT_BEGINNINGS, json.dumps([name_of(key) for key in keys]))
        return [(indexed_file(row[:-1]), row[-1] or "") for row in rows]

    def files(self) -> Iterator[IndexedFile]:
        # Each page is fetched at once: a half-read statement would hold its snapshot and the write-ahead log.
        last = 0
        while True:
            rows = self._fetch(SELECT_FILES, last, _FILES_PAGE)
            for row in rows:
                yield indexed_file(row[1:])
            if len(rows) < _FILES_PAGE:
                return
            last = rows[-1][0]

    def chunks_by_path(self, source: str) -> dict[str, int]:
        return dict(self._fetch(SELECT_CHUNKS_BY_PATH, source))

    def transcript(self, key: DocumentKey) -> TranscriptPosition | None:
        with self._readers.borrow() as connection:
            return position_of(connection, key)

    def chunks_of(self, key: DocumentKey, *, first: int = 0) -> list[StoredChunk]:
        return in_order(self._fetch(SELECT_CHUNKS_OF, *name_of(key), first))

    def named(self, folder: str, name: str) -> list[DocumentKey]:
        return [DocumentKey(*row) for row in self._fetch(SELECT_NAMED, folder, name)]

    def begun_by(self, text_hash: str) -> list[DocumentKey]:
        return [DocumentKey(*row) for row in self._fetch(SELECT_BEGUN_BY, text_hash, SESSIONS_SOURCE, MOST_BEGUN)]

    def times_of(self, ids: Sequence[int]) -> dict[int, float]:
        return dict(self._fetch(SELECT_TIMES, as_json(ids)))

    def chunk_rows(self, ids: Sequence[int]) -> dict[int, ChunkRow]:
        return {row[0]: chunk_row(row) for row in self._fetch(SELECT_CHUNK_ROWS, as_json(ids))}

    def texts_holding(
        self, words: Sequence[str], keys: Collection[DocumentKey]
    ) -> list[tuple[DocumentKey, int, str | None]]:
        rows = self._fetch(SELECT_TEXTS_HOLDING, json.dumps([name_of(key) for key in keys]), json.dumps(words))
        return [(DocumentKey(*row[:2]), row[2] % 2**64, row[3]) for row in rows]

    def pending_hashes(self, limit: int | None = None, *, among: Collection[str] | None = None) -> dict[int, str]:
        if among is None:
            return dict(self._fetch(SELECT_PENDING_HASHES, -1 if limit is None else limit))
        pending = self._fetch(SELECT_PENDING_HASHES, -1) if among else []
        return dict(islice((row for row in pending if row[1] in among), limit))

    def refused_chunks(self, key: DocumentKey) -> list[StoredChunk]:
        with self._readers.borrow() as connection:
            row = fetch_one(connection, SELECT_FILE_ID, name_of(key))
            return refused_of(connection, row[0]) if row is not None else []

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
            rows = fetch(connection, SELECT_SENTENCES, (as_json(ids),)) if has_sentences(connection) else []
        return {chunk_id: stored_signs(users, signs) for chunk_id, users, signs in rows}

    def lacking_sentences(self, limit: int) -> dict[int, str]:
        return dict(self._fetch(SELECT_LACKING, limit))

    def lacks_users_words(self) -> bool:
        with self._readers.borrow() as connection:
            return not has_sentences(connection) or meta_value(connection, USERS_WORDS_DUE) is not None

    def sentence_counts(self) -> tuple[int, int]:
        newest = min(self.counts().vectors_ready, MOST_WITH_SENTENCES)
        with self._readers.borrow() as connection:
            lacking = fetch(connection, COUNT_LACKING)[0][0] if has_sentences(connection) else newest
        return max(0, newest - lacking), newest

    def all_sentences(self) -> Iterator[dict[str, SentenceSigns]]:
        last = 0
        while rows := self._fetch(SELECT_SENTENCES_AFTER, last):
            yield {text_hash: stored_signs(users, signs) for _, text_hash, users, signs in rows}
            last = rows[-1][0]

    def term_counts(self, query: str) -> TermCounts:
        terms = match_terms(query)
        with self._readers.borrow() as connection:
            chunk_counts = self._frequencies.of(connection, list(terms.values()))
            return TermCounts(self._frequencies.chunks(connection), dict(zip(terms, chunk_counts, strict=True)))

    def dead_letters(self) -> list[DeadLetter]:
        return [dead_letter(row) for row in self._fetch(SELECT_DEAD_LETTERS)]

    def counts(self) -> IndexCounts:
        [(files, chunks, pending, refused, unread, last, ever, erased, since)] = self._fetch(SELECT_COUNTS)
        return IndexCounts(
            files=files,
            chunks=chunks,
            vectors_ready=chunks - pending - refused - unread,
            vectors_pending=pending,
            vectors_refused=refused,
            last_commit_at=None if last is None else float(last),
            disk_bytes=sum(bytes_of(self._path.with_name(self._path.name + end)) for end in ("", "-wal", "-shm")),
            deleted_on_disk=ever - chunks - int(erased or 0) if since is not None else 0,
            deleted_since=None if since is None else float(since),
        )

    def vectors_pending(self) -> int:
        return int(self._fetch(COUNT_PENDING)[0][0])

    def unread_scripts(self) -> dict[str, int]:
        return dict(self._fetch(COUNT_UNREAD))

    def unread_among(self, ids: Sequence[int]) -> set[int]:
        return {row[0] for row in self._fetch(SELECT_UNREAD, as_json(ids))}

    def change_token(self) -> object:
        return self._path.name, self.meta("transactions")

    def check(self) -> list[Flaw]:
        with self._readers.borrow() as connection:
            return findings(connection)

    def close(self) -> None:
        self._readers.close()
        if self._resident is not None:
            self._resident.close()

    def _fetch(self, statement: str, *bindings: str | float | None) -> list[tuple[Any, ...]]:
        """Return all rows of a statement."""
        with self._readers.borrow() as connection:
            return fetch(connection, statement, bindings)

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
