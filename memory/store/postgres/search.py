"""Searches of one generation in PostgreSQL: exact cosine in SQL, BM25 in this process's memory.

They rank like those of SQLite: the same words, the same filters, equal scores by id.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import date
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from memory.chunking.dates import note_date
from memory.store.errors import VectorSearchUnavailable
from memory.store.postgres.connection import Connection, Database
from memory.store.postgres.keywords import AgentWords, ResidentWords
from memory.store.postgres.words import patterns_of
from memory.store.reader import ChunkFilter, Hit, SentenceSigns, StoreReader, TermCounts, Vector
from memory.store.rows import CHANGED_AT, stored_signs
from schemas.agents import Scope
from schemas.documents import SESSIONS_SOURCE
from schemas.lazy_module import LazyModule

if TYPE_CHECKING:
    import numpy as np
else:
    np = LazyModule("numpy")

K = TypeVar("K")

_CHUNKS = """
FROM recalld.chunks AS c WHERE c.tenant = %(tenant)s AND c.agent = %(agent)s AND c.generation = %(generation)s
"""
_FILES = """
FROM recalld.files AS f WHERE f.tenant = %(tenant)s AND f.agent = %(agent)s AND f.generation = %(generation)s
"""
_THESE = "AND c.id = ANY (%(ids)s::bigint[])"

SELECT_FILE_TIMES = f"SELECT f.id, f.path, ({CHANGED_AT})::float8 {_FILES}"

# With the bindings of `_filter`. An archive counts where its session does.
_WITHIN = f"""
AND EXISTS (
    SELECT {_FILES} AND f.id = c.file_id AND (
        f.source = ANY (%(sources)s) OR f.source = '{SESSIONS_SOURCE}'
        AND substr(f.path, 1, strpos(f.path, '.jsonl') + 5) = ANY (%(sources)s)
    )
)
AND CASE WHEN %(files)s::bigint[] IS NULL THEN true
WHEN c.said_at IS NOT NULL THEN c.said_at >= %(start)s AND c.said_at < %(end)s
ELSE c.file_id = ANY (%(files)s::bigint[]) END
"""
SELECT_IDS_WITHIN = f"SELECT c.id {_CHUNKS} {_THESE} {_WITHIN}"

# Not the inner product: float16 changes lengths, and with them scores in the fifth digit.
_COSINE = "1 - (c.embedding::vector <=> %(vector)s::vector)"
_BEST = "ORDER BY score DESC, c.id LIMIT %(k)s"
SELECT_NEAREST = f"SELECT c.id, {_COSINE} AS score {_CHUNKS} AND c.vector_state = 'ready' {_BEST}"
SELECT_NEAREST_WITHIN = f"SELECT c.id, {_COSINE} AS score {_CHUNKS} AND c.vector_state = 'ready' {_WITHIN} {_BEST}"
SELECT_COSINES = f"SELECT c.id, {_COSINE} {_CHUNKS} {_THESE} AND c.vector_state = 'ready'"
SELECT_VECTORS = f"SELECT c.id, c.embedding {_CHUNKS} {_THESE} AND c.vector_state = 'ready'"

# One chunk of each text; any of several will do.
SELECT_VECTORS_BY_HASH = f"""
SELECT DISTINCT ON (c.text_hash) c.text_hash, c.embedding {_CHUNKS}
AND c.text_hash = ANY (%(hashes)s) AND c.vector_state = 'ready'
"""
SELECT_SENTENCES = (
    f"SELECT c.id, c.sentence_users, c.sentence_signs {_CHUNKS} {_THESE} AND length(c.sentence_users) > 0"
)


class PostgresSearch(StoreReader):
    """Searching half of the reader of a generation. `_read` begins a read-only transaction in the agent's scope."""

    _words: ClassVar[ResidentWords] = ResidentWords()
    _database: Database
    _scope: Scope
    _generation: str
    _dimensions: int = 0

    @abstractmethod
    def _read(self) -> AbstractContextManager[Connection]: ...

    def search_vectors(self, vector: Vector, k: int, within: ChunkFilter | None = None) -> list[Hit]:
        if not self._is_searchable(vector):
            return []
        with self._read() as connection:
            bindings = self._bindings(vector=str(vector.tolist()), k=max(k, 0))
            if within is None:
                return [Hit(*row) for row in connection.execute(SELECT_NEAREST, bindings)]
            bindings |= self._filter(connection, within)
            return [Hit(*row) for row in connection.execute(SELECT_NEAREST_WITHIN, bindings)]

    def vector_scores(self, vector: Vector, ids: Sequence[int]) -> dict[int, float]:
        if not self._is_searchable(vector):
            return {}
        with self._read() as connection:
            bindings = self._bindings(vector=str(vector.tolist()), ids=list(ids))
            return dict(connection.execute(SELECT_COSINES, bindings).fetchall())

    def vectors_of(self, ids: Sequence[int]) -> dict[int, Vector]:
        with self._read() as connection:
            rows = connection.execute(SELECT_VECTORS, self._bindings(ids=list(ids)), binary=True).fetchall()
        return _vectors(rows)

    def vectors_by_hash(self, text_hashes: Sequence[str]) -> dict[str, Vector]:
        with self._read() as connection:
            bindings = self._bindings(hashes=list(text_hashes))
            return _vectors(connection.execute(SELECT_VECTORS_BY_HASH, bindings, binary=True).fetchall())

    def search_text(self, query: str, k: int, within: ChunkFilter | None = None) -> list[Hit]:
        with self._read() as connection:
            index = self._words_at(connection).all
            if within is None:
                return index.best(patterns_of(query).values(), k)
            bindings = self._bindings() | self._filter(connection, within)

            def passing(ids: list[int]) -> set[int]:
                return {row[0] for row in connection.execute(SELECT_IDS_WITHIN, bindings | {"ids": ids})}

            return index.best(patterns_of(query).values(), k, passing)

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
        with self._read() as connection:
            rows = connection.execute(SELECT_SENTENCES, self._bindings(ids=list(ids)), binary=True)
            return {chunk_id: stored_signs(users, signs) for chunk_id, users, signs in rows}

    def _bindings(self, **bound: object) -> dict[str, Any]:
        return {"tenant": self._scope.tenant, "agent": self._scope.agent, "generation": self._generation} | bound

    def _words_at(self, connection: Connection) -> AgentWords:
        return self._words.of(connection, self._database, self._scope, self._generation)

    def _filter(self, connection: Connection, within: ChunkFilter) -> dict[str, Any]:
        """Return the bindings of `_WITHIN`: sources, ids of the files of the span, None without one, start and end."""
        if (span := within.span) is None:
            return {"sources": list(within.sources), "files": None, "start": 0.0, "end": 0.0}
        # The day in its name, or that of the last change.
        rows = connection.execute(SELECT_FILE_TIMES, self._bindings())
        days = {id_: str(note_date(path) or date.fromtimestamp(changed)) for id_, path, changed in rows}
        files = [id_ for id_, day in days.items() if span.first_day <= day <= span.last_day]
        return {"sources": list(within.sources), "files": files, "start": span.start, "end": span.end}

    def _is_searchable(self, vector: Vector) -> bool:
        """Return False if the generation has never had a vector."""
        if not self._dimensions:
            self._dimensions = int(self.meta("dimensions") or 0)
        if self._dimensions and vector.size != self._dimensions:
            raise VectorSearchUnavailable(
                f"the index holds vectors of {self._dimensions} dimensions and the query's has {vector.size}; "
                "`recalld rebuild` makes them one"
            )
        return self._dimensions > 0


def _vectors(rows: Sequence[tuple[K, bytes]]) -> dict[K, Vector]:
    """Return vectors of unit length by the first column, as `memory.embedding.vectors` makes them of float16.

    A `halfvec` has four bytes before its big-endian numbers.
    """
    if not rows:
        return {}
    matrix = np.array([np.frombuffer(raw, dtype=">f2", offset=4) for _, raw in rows], dtype=np.float32)
    lengths = np.sqrt(np.einsum("ij,ij->i", matrix, matrix).astype(np.float64))
    matrix *= (1.0 / lengths).astype(np.float32)[:, None]
    return {key: matrix[number] for number, (key, _) in enumerate(rows)}
