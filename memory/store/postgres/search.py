"""Searches of one generation in PostgreSQL that rank as SQLite's do: exact cosine in SQL, BM25 in memory."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import date
from typing import Any, ClassVar, NamedTuple

import numpy as np

from memory.chunking.dates import note_date
from memory.store.errors import VectorSearchUnavailable
from memory.store.postgres.connection import Connection, Database
from memory.store.postgres.keywords import AgentWords, ResidentWords
from memory.store.postgres.rows import binary_vector
from memory.store.postgres.words import patterns_of
from memory.store.reader import ChunkFilter, ChunkRow, Hit, SentenceSigns, StoreReader, TermCounts, Vector
from memory.store.rows import CHANGED_AT, chunk_row, stored_signs
from schemas.agents import Scope
from schemas.documents import SESSIONS_SOURCE

_OF = "WHERE tenant = %(tenant)s AND agent = %(agent)s AND generation = %(generation)s"
_CHUNKS, _FILES = f"FROM recalld.chunks {_OF}", f"FROM recalld.files {_OF}"
_READY, _THESE = "AND vector_state = 'ready'", "AND id = ANY (%(ids)s::bigint[])"

SELECT_FILE_TIMES = f"SELECT id, path, ({CHANGED_AT})::float8 {_FILES}"

# With the bindings of `_filter`. An archive counts where its session does.
_OF_SOURCES = f"""
(%(sources)s::text[] IS NULL OR source = ANY (%(sources)s::text[]) OR source = '{SESSIONS_SOURCE}'
AND substr(path, 1, strpos(path, '.jsonl') + 5) = ANY (%(sources)s::text[]))
"""
_OF_SPAN = """
CASE WHEN %(files)s::bigint[] IS NULL THEN true
WHEN said_at IS NOT NULL THEN said_at >= %(start)s AND said_at < %(end)s
ELSE file_id = ANY (%(files)s::bigint[]) END
"""

# Not the inner product: float16 changes lengths, and with them scores in the fifth digit.
_COSINE = "1 - (embedding::vector <=> %(vector)s::vector)"
# The planner expects one document of an agent, and would begin with it: MATERIALIZED makes it begin with the chunks,
# IS TRUE keeps it from reading them document by document.
_WITH_CHUNKS = f"WITH c AS MATERIALIZED (SELECT * {_CHUNKS} AND id = ANY"
# The columns of `Candidate`.
_CANDIDATES = f"""
SELECT c.id, source, path, ordinal, start_line, end_line, CASE WHEN %(texts)s::bool THEN text END, said_at,
    vector_state = 'unread', sentence_users, sentence_signs, CASE WHEN vector_state = 'ready' THEN {_COSINE} END
FROM c JOIN recalld.files AS f USING (tenant, agent, generation) {_OF} AND f.id = file_id
"""  # noqa: S608 - constants
SELECT_CANDIDATES = f"{_WITH_CHUNKS} (%(ids)s::bigint[])) {_CANDIDATES}"
SELECT_WITHIN = f"{SELECT_CANDIDATES} AND {_OF_SOURCES} AND {_OF_SPAN}"
SELECT_NEAREST = f"""
{_WITH_CHUNKS} (ARRAY(
    SELECT id {_CHUNKS} {_READY} AND (file_id IN (SELECT id {_FILES} AND {_OF_SOURCES})) IS TRUE AND {_OF_SPAN}
    ORDER BY {_COSINE} DESC, id LIMIT %(k)s
))) {_CANDIDATES}
"""
SELECT_VECTORS = f"SELECT id, embedding {_CHUNKS} {_READY} {_THESE}"
# One chunk of each text; any of several will do.
SELECT_VECTORS_BY_HASH = f"""
SELECT DISTINCT ON (text_hash) text_hash, embedding {_CHUNKS} {_READY} AND text_hash = ANY (%(hashes)s)
"""


class Candidate(NamedTuple):
    """Chunk with all that a search asks of it: `row`, with its text if asked for, and a score if it has a vector."""

    row: ChunkRow
    said_at: float | None
    is_unread: bool
    signs: tuple[bytes | None, bytes | None]
    score: float | None


class PostgresSearch(StoreReader):
    """Searching half of the reader of a generation.

    `_read` lends the connection of this thread's read-only transaction in the agent's scope, or begins one.
    """

    _words: ClassVar[ResidentWords] = ResidentWords()
    _database: Database
    _scope: Scope
    _generation: str
    _dimensions: int = 0
    #: Of this thread's reading: `candidates` have scores by `vector`, that of the last search.
    _snapshots: threading.local

    @abstractmethod
    def _read(self) -> AbstractContextManager[Connection]: ...

    def search_vectors(self, vector: Vector, k: int, within: ChunkFilter | None = None) -> list[Hit]:
        if not self._is_searchable(vector):
            return []
        with self._read() as connection:
            bindings = self._filter(connection, within) | {"k": max(k, 0)}
            nearest = self._select(connection, SELECT_NEAREST, bindings, vector=binary_vector(vector))
        hits = [Hit(id_, candidate.score) for id_, candidate in nearest.items() if candidate.score is not None]
        return sorted(hits, key=lambda hit: (-hit.score, hit.id))

    def vector_scores(self, vector: Vector, ids: Sequence[int]) -> dict[int, float]:
        if not self._is_searchable(vector):
            return {}
        candidates = self._candidates(ids, vector=binary_vector(vector))
        return {id_: candidate.score for id_, candidate in candidates.items() if candidate.score is not None}

    def chunk_rows(self, ids: Sequence[int]) -> dict[int, ChunkRow]:
        return {id_: candidate.row for id_, candidate in self._candidates(ids, texts=True).items()}

    def times_of(self, ids: Sequence[int]) -> dict[int, float]:
        candidates = self._candidates(ids).items()
        return {id_: candidate.said_at for id_, candidate in candidates if candidate.said_at is not None}

    def unread_among(self, ids: Sequence[int]) -> set[int]:
        return {id_ for id_, candidate in self._candidates(ids).items() if candidate.is_unread}

    def vectors_of(self, ids: Sequence[int]) -> dict[int, Vector]:
        return self._vectors(SELECT_VECTORS, ids=list(ids))

    def vectors_by_hash(self, text_hashes: Sequence[str]) -> dict[str, Vector]:
        return self._vectors(SELECT_VECTORS_BY_HASH, hashes=list(text_hashes))

    def search_text(self, query: str, k: int, within: ChunkFilter | None = None) -> list[Hit]:
        with self._read() as connection:
            bindings = self._filter(connection, within)

            def passing(ids: list[int]) -> set[int]:
                return {*self._select(connection, SELECT_WITHIN, bindings | {"ids": ids})}

            return self._words_at(connection).all.best(patterns_of(query).values(), k, passing)

    def text_scores(self, query: str, ids: Sequence[int]) -> dict[int, float]:
        with self._read() as connection:
            return self._words_at(connection).all.scores(patterns_of(query).values(), ids)

    def user_scores(self, query: str, ids: Sequence[int]) -> dict[int, float]:
        if not ids:
            return {}
        with self._read() as connection:
            return self._words_at(connection).users.scores(patterns_of(query).values(), ids)

    def term_counts(self, query: str) -> TermCounts:
        with self._read() as connection:
            index, patterns = self._words_at(connection).all, patterns_of(query)
        return TermCounts(index.chunks, dict(zip(patterns, index.counts(patterns.values()), strict=True)))

    def sentence_signs(self, ids: Sequence[int]) -> dict[int, SentenceSigns]:
        signs = {id_: candidate.signs for id_, candidate in self._candidates(ids).items()}
        return {id_: stored_signs(users, packed) for id_, (users, packed) in signs.items() if users and packed}

    def _candidates(
        self, ids: Sequence[int], *, vector: bytes | None = None, texts: bool = False
    ) -> dict[int, Candidate]:
        """Return these chunks. One statement reads those that the snapshot has not read with vector and texts."""
        if not ids:
            return {}
        with self._read() as connection:
            cached = self._snapshots.candidates if vector in (None, self._snapshots.vector) else {}
            candidates = {id_: cached[id_] for id_ in ids if id_ in cached}
            if texts:
                candidates = {id_: each for id_, each in candidates.items() if each.row.text is not None}
            if missing := [id_ for id_ in ids if id_ not in candidates]:
                bindings = self._bindings(ids=missing)
                candidates |= self._select(connection, SELECT_CANDIDATES, bindings, vector=vector, texts=texts)
        return candidates

    def _select(
        self,
        connection: Connection,
        statement: str,
        bindings: dict[str, Any],
        *,
        vector: bytes | None = None,
        texts: bool = True,
    ) -> dict[int, Candidate]:
        """Return candidates, which the snapshot keeps, with scores by this vector or the last one."""
        snapshot = self._snapshots
        if vector not in (None, snapshot.vector):
            snapshot.vector, snapshot.candidates = vector, {}
        bindings |= {"vector": snapshot.vector, "texts": texts}
        rows = connection.execute(statement, bindings, binary=True)
        selected = {row[0]: Candidate(chunk_row(row[:7]), row[7], row[8], row[9:11], row[11]) for row in rows}
        snapshot.candidates |= selected
        return selected

    def _bindings(self, **bound: object) -> dict[str, Any]:
        return {"tenant": self._scope.tenant, "agent": self._scope.agent, "generation": self._generation} | bound

    def _words_at(self, connection: Connection) -> AgentWords:
        commit = int(self.meta("transactions") or 0)
        return self._words.of(connection, self._database, self._scope, self._generation, commit)

    def _filter(self, connection: Connection, within: ChunkFilter | None) -> dict[str, Any]:
        """Return the bindings of `_WITHIN`: sources, ids of the files of the span, its start and end, None without."""
        if within is None or (span := within.span) is None:
            sources = list(within.sources) if within is not None else None
            return self._bindings(sources=sources, files=None, start=0.0, end=0.0)
        # The day in its name, or that of the last change.
        rows = connection.execute(SELECT_FILE_TIMES, self._bindings())
        days = {id_: str(note_date(path) or date.fromtimestamp(changed)) for id_, path, changed in rows}
        files = [id_ for id_, day in days.items() if span.first_day <= day <= span.last_day]
        return self._bindings(sources=list(within.sources), files=files, start=span.start, end=span.end)

    def _is_searchable(self, vector: Vector) -> bool:
        """Return False if the generation has never had a vector."""
        if not self._dimensions:
            self._dimensions = int(self.meta("dimensions") or 0)
        if self._dimensions and self.vector_reason is not None:
            raise VectorSearchUnavailable(f"the index holds vectors, but {self.vector_reason}")
        if self._dimensions and vector.size != self._dimensions:
            raise VectorSearchUnavailable(
                f"the index holds vectors of {self._dimensions} dimensions and the query's has {vector.size}; "
                "`recalld rebuild` makes them one"
            )
        return self._dimensions > 0

    def _vectors(self, statement: str, **bound: object) -> dict[Any, Vector]:
        """Return vectors of unit length by the first column, as `memory.embedding.vectors` makes them of float16."""
        with self._read() as connection:
            rows = connection.execute(statement, self._bindings(**bound), binary=True).fetchall()
        # A `halfvec` has four bytes before its big-endian numbers.
        matrix = np.array([np.frombuffer(raw, dtype=">f2", offset=4) for _, raw in rows], dtype=np.float32)
        if rows:
            lengths = np.sqrt(np.einsum("ij,ij->i", matrix, matrix).astype(np.float64))
            matrix *= (1.0 / lengths).astype(np.float32)[:, None]
        return {key: matrix[number] for number, (key, _) in enumerate(rows)}
