"""Read access to one generation in PostgreSQL."""

from __future__ import annotations

import threading
from collections.abc import Collection, Hashable, Iterator
from contextlib import contextmanager
from typing import Self

from memory.chunking.segmenting import index_text
from memory.store.options import StoreOptions
from memory.store.postgres.connection import Connection, Database, Rows
from memory.store.postgres.rows import OF, STATEMENTS, run
from memory.store.postgres.search import PostgresSearch
from memory.store.postgres.words import tokens_of
from memory.store.reader import Flaw
from memory.store.row_reader import RowReader, names_of
from memory.store.rows import flaws_of, name_of
from schemas.agents import Scope
from schemas.documents import DocumentKey
from schemas.status import IndexCounts

#: Bytes of a chunk of 200 words on the server's disk, without its vector and with its share of the indexes: measured.
BYTES_A_CHUNK = 2_200

_OF = f"FROM recalld.chunks WHERE {OF} AND"

#: Faults that a check looks for, and their statements.
FLAWS = {
    "chunks without a file": f"SELECT id {_OF} file_id NOT IN (SELECT id FROM recalld.files WHERE {OF})",
    "stale chunks of documents that are no transcripts": f"""
        SELECT id {_OF} ordinal < 0
        AND file_id IN (SELECT id FROM recalld.files WHERE {OF} AND position_offset IS NULL)""",
    "chunks whose vector and state do not agree": f"""
        SELECT id {_OF} ((vector_state = 'ready') <> (embedding IS NOT NULL) OR vector_dims(embedding)
        <> coalesce((SELECT dimensions FROM recalld.generations WHERE {OF}), 0))""",
}
SELECT_WORDLESS = f"SELECT id, text {_OF} words !~ '[^ ]'"


class PostgresReader(PostgresSearch, RowReader):
    """Read access to one generation, for several threads."""

    def __init__(
        self,
        database: Database,
        scope: Scope,
        generation: str,
        *,
        options: StoreOptions | None = None,
    ) -> None:
        self._database = database
        self._scope = scope
        self._generation = generation
        self._options = options or StoreOptions()
        #: The connection of this thread's snapshot, and what `_candidates` keeps.
        self._snapshots = threading.local()
        self._identity: str | None = None  # never changes

    @property
    def name(self) -> str:
        return self._generation

    @property
    def vector_reason(self) -> str | None:
        return None if self._options.vector_enabled else "vectors are switched off (store.vector.enabled)"

    @property
    def text_reason(self) -> str | None:
        return None

    def meta(self, name: str) -> str | None:
        if name == "identity" and self._identity is not None:
            return self._identity
        facts: dict[str, str] = dict(self._once("meta"))
        text = facts.get(name)
        self._identity = text if name == "identity" else self._identity
        return text

    def lacks_users_words(self) -> bool:
        return False

    def counts(self) -> IndexCounts:
        """Return row counts, and an estimate of the bytes on the server's disk: their sum would read every row."""
        [(files, chunks, pending, refused, unread, last_commit_at, dimensions)] = self._fetch("counts")
        ready = chunks - pending - refused - unread
        return IndexCounts(
            files=files,
            chunks=chunks,
            vectors_ready=ready,
            vectors_pending=pending,
            vectors_refused=refused,
            last_commit_at=last_commit_at,
            disk_bytes=chunks * BYTES_A_CHUNK + ready * 2 * (dimensions or 0),
        )

    def check(self) -> list[Flaw]:
        with self._read() as connection:
            ids = {kind: {row[0] for row in run(connection, FLAWS[kind], self._bindings())} for kind in FLAWS}
            wordless = run(connection, SELECT_WORDLESS, self._bindings())
        ids["chunks without their words"] = {id_ for id_, text in wordless if tokens_of(index_text(text))}
        return [flaw for kind in ids for flaw in flaws_of(kind, ids[kind])]

    def close(self) -> None:
        """Do nothing: the process's connections are shared by its indexes."""

    @contextmanager
    def snapshot(self) -> Iterator[Self]:
        with self._database.snapshot(self._scope), self._read():
            yield self

    @contextmanager
    def _read(self) -> Iterator[Connection]:
        connection: Connection | None = getattr(self._snapshots, "connection", None)
        if connection is not None:
            yield connection
            return
        with self._database.reading(self._scope) as connection:
            self._snapshots.connection = connection
            self._snapshots.vector, self._snapshots.candidates = None, {}
            try:
                yield connection
            finally:
                # Hundreds of readers stay open, each with its values of each thread.
                self._snapshots.__dict__.clear()

    def _fetch(self, statement: str, **bindings: object) -> Rows:
        with self._read() as connection:
            return run(connection, STATEMENTS[statement], self._bindings(**bindings))

    def look_up(self, keys: Collection[DocumentKey]) -> None:
        with self._read() as connection:
            rows = {(row[5], row[6]): row for row in self._fetch("files_named", keys=names_of(keys))}
            for name in map(name_of, keys):
                self._database.keep(connection, self._query("file", *name), [rows[name]] if name in rows else [])

    def _once(self, statement: str, **names: str) -> Rows:
        with self._read() as connection:
            query = self._query(statement, *names.values())
            return self._database.once(connection, query, lambda: self._fetch(statement, **names))

    def _query(self, *of: str) -> Hashable:
        return self._scope, self._generation, *of
