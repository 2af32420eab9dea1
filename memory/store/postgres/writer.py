"""Write access to one generation in PostgreSQL, in as few statements as possible: each one waits for the network.

A commit locks its generation's row first, so that commits of one generation are serial.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple
from typing import Any

from memory.store.document_transaction import DocumentTransaction, DocumentWriter
from memory.store.errors import Superseded
from memory.store.postgres.connection import BinaryArray, Connection, Database
from memory.store.postgres.reader import PostgresReader
from memory.store.postgres.rows import IS_NAMED, OF, as_json, halfvecs, run, texts
from memory.store.postgres.rows import STATEMENTS as READING
from memory.store.postgres.words import stream_of
from memory.store.reader import SentenceSigns, Vector
from memory.store.row_reader import names_of
from memory.store.rows import DEAD_LETTER_COLUMNS, FILE_VALUES, FileRow, file_values
from memory.store.writer import Maintained, MovedChunk, VectorOutcome
from schemas.agents import Scope
from schemas.documents import DocumentKey
from schemas.status import DeadLetter

_OF = f"FROM recalld.chunks WHERE {OF} AND"
_INSERT = "INSERT INTO recalld.{0} (tenant, agent, generation, {1}) SELECT :tenant, :agent, :generation, {1}"
_ROWS = "FROM json_populate_recordset(NULL::recalld.{0}, :rows)"
_FILE = f"{', '.join(FILE_VALUES)}, position_offset, position_lines, position_digest, position_state"
#: Columns of new chunks, and their types.
_CHUNK = {
    **dict.fromkeys(("id", "file_id"), "bigint"),
    **dict.fromkeys(("ordinal", "start_line", "end_line"), "integer"),
    "said_at": "float8",
    **dict.fromkeys(("vector_state", "refusal", "text_hash", "text", "words", "users_words"), "text"),
    **dict.fromkeys(("sentence_users", "sentence_signs"), "bytea"),
    "embedding": "halfvec",
}

STATEMENTS = {
    **READING,
    # A generation that was flipped away or swept meanwhile has no such row.
    "lock": f"""
        SELECT transactions, deletions, last_chunk_id, last_file_id, dimensions, 'halfvec'::regtype::oid::bigint
        FROM recalld.generations WHERE {OF} AND state <> 'old' FOR UPDATE""",
    "count": f"""
        UPDATE recalld.generations SET transactions = :number, deletions = :deletions, last_chunk_id = :chunk,
            last_file_id = :file, dimensions = :dimensions, last_commit_at = :now,
            meta = meta || jsonb_object(:names::text[], :texts::text[])
        WHERE {OF}""",
    "upsert_files": f"""
        {_INSERT.format("files", _FILE)} {_ROWS.format("files")} ON CONFLICT (generation, id)
        DO UPDATE SET ({_FILE}) = (excluded.{_FILE.replace(", ", ", excluded.")})""",
    "delete_files": f"DELETE FROM recalld.files WHERE {OF} AND id = ANY (:files::bigint[])",
    "delete_letters": f"DELETE FROM recalld.dead_letters WHERE {OF} AND {IS_NAMED}",
    "insert_letters": f"{_INSERT.format('dead_letters', DEAD_LETTER_COLUMNS)} {_ROWS.format('dead_letters')}",
    # Arrays cost the server less than JSON, and both sides less than a statement for each row. Rows are named twice:
    # before there are statistics the server may compare each row under the other conditions with each of the arrays.
    "insert_chunks": f"""
        INSERT INTO recalld.chunks (tenant, agent, generation, {", ".join(_CHUNK)})
        SELECT :tenant, :agent, :generation, *
        FROM unnest({", ".join(f":{name}::{type_name}[]" for name, type_name in _CHUNK.items())})""",
    "delete_chunks": f"""
        DELETE FROM recalld.chunks USING unnest(:ids::bigint[], :files::bigint[]) AS removed (chunk, file)
        WHERE {OF} AND id = ANY (:ids::bigint[]) AND id = removed.chunk AND file_id = removed.file""",
    "delete_chunks_of": f"DELETE {_OF} file_id = ANY (:files::bigint[])",
    "move": f"""
        UPDATE recalld.chunks
        SET ordinal = place.at, start_line = place.first, end_line = place.last, said_at = place.time
        FROM unnest(:ids::bigint[], :ordinals::integer[], :firsts::integer[], :lasts::integer[], :times::float8[])
            AS place (chunk, at, first, last, time)
        WHERE {OF} AND id = ANY (:ids::bigint[]) AND id = place.chunk AND file_id = :file""",
    "set_outcomes": f"""
        UPDATE recalld.chunks SET vector_state = outcome.state, refusal = outcome.reason, embedding = outcome.vector
        FROM unnest(:ids::bigint[], :states::text[], :reasons::text[], :vectors::halfvec[])
            AS outcome (chunk, state, reason, vector)
        WHERE {OF} AND id = ANY (:ids::bigint[]) AND id = outcome.chunk""",
    # Chunks of equal texts have equal sentences.
    "sentences": f"""
        SELECT DISTINCT ON (text_hash) text_hash, sentence_users, sentence_signs
        {_OF} text_hash = ANY (:hashes) AND sentence_users IS NOT NULL""",
    "set_sentences": f"""
        UPDATE recalld.chunks SET sentence_users = new.users, sentence_signs = new.signs
        FROM unnest(:hashes::text[], :users::bytea[], :signs::bytea[]) AS new (hash, users, signs)
        WHERE {OF} AND text_hash = ANY (:hashes::text[]) AND text_hash = new.hash AND sentence_users IS NULL""",
}

_OF_AGENT = "tenant = :tenant AND agent = :agent"
RETIRE_NEXT = f"UPDATE recalld.generations SET state = 'old' WHERE {_OF_AGENT} AND state = 'next'"
INSERT_GENERATION = f"""
INSERT INTO recalld.generations (tenant, agent, generation, fingerprint, identity, takeover, state)
SELECT :tenant, :agent, :generation, :fingerprint, :identity, :takeover, CASE WHEN EXISTS (
    SELECT FROM recalld.generations WHERE {_OF_AGENT} AND state = 'current'
) THEN 'next' ELSE 'current' END
"""


class WriteTransaction(DocumentTransaction):
    """Changes of one transaction.

    Raises:
        Superseded: the generation does not answer any more.
        StoreBusy: another commit of the generation takes too long.
    """

    def __init__(self, connection: Connection, generation: Mapping[str, object], *, keeps_vectors: bool) -> None:
        self._connection = connection
        self._generation = generation
        if not (rows := self._fetch("lock")):
            raise Superseded(f"generation {generation['generation']} was replaced; the job repeats with the new one")
        [(number, deletions, last_chunk_id, last_file_id, self._dimensions, self._halfvec)] = rows
        super().__init__(number + 1, deletions, last_chunk_id, last_file_id, keeps_vectors=keeps_vectors)
        self._removed: list[tuple[int, int]] = []  # id, file id
        self._dropped: list[int] = []  # file ids
        self._meta: dict[str, str] = {}

    def _write_files(self, rows: Sequence[FileRow]) -> None:
        places = (astuple(row.position) if row.position is not None else (None,) * 4 for row in rows)
        values = ((*file_values(row), *place) for row, place in zip(rows, places, strict=True))
        self._fetch("upsert_files", rows=as_json(_FILE, values))

    def _write_letters(self, keys: Collection[DocumentKey], letters: Sequence[DeadLetter]) -> None:
        if keys:
            self._fetch("delete_letters", keys=names_of(keys))
            rows = [tuple(dict(letter).values()) for letter in letters]
            self._fetch("insert_letters", rows=as_json(DEAD_LETTER_COLUMNS, rows))

    def _count(self) -> None:
        self._fetch(
            "count",
            number=self.number,
            deletions=self._deletions,
            now=self._now,
            dimensions=self._dimensions,
            chunk=self._last_chunk_id,
            file=self._last_file_id,
            names=list(self._meta),
            texts=list(self._meta.values()),
        )

    def _drop_file(self, file_id: int) -> None:
        self._dropped.append(file_id)

    def _move(self, file_id: int, moved: Sequence[MovedChunk]) -> None:
        ids, ordinals, firsts, lasts, times = map(list, zip(*map(astuple, moved), strict=True))
        self._fetch("move", file=file_id, ids=ids, ordinals=ordinals, firsts=firsts, lasts=lasts, times=times)

    def _remove(self, file_id: int, ids: Sequence[int]) -> None:
        self._removed += [(chunk_id, file_id) for chunk_id in ids]

    def _write_chunks(self) -> None:
        """Write the collected chunks, the new ones first: they take the sentences of removed ones with their text."""
        if self._added:
            hashes = [chunk.text_hash for _, _, chunk, _ in self._added]
            sentences = {text_hash: of for text_hash, *of in self._fetch("sentences", hashes=hashes)}
            rows = []
            for chunk_id, file_id, chunk, outcome in self._added:
                state, refusal, vector = self._state_of(outcome)
                text, spoken = self._words_of(file_id, chunk)
                row = (chunk_id, file_id, chunk.ordinal, chunk.start_line, chunk.end_line, chunk.said_at)
                words = (stream_of(text), stream_of(spoken) if spoken else None)
                signs = sentences.get(chunk.text_hash, (None, None))
                rows.append((*row, state, refusal, chunk.text_hash, chunk.text, *words, *signs, vector))
            *columns, vectors = zip(*rows, strict=True)
            arrays = {
                name: texts(column) if _CHUNK[name] == "text" else list(column)
                for name, column in zip(_CHUNK, columns, strict=False)
            }
            self._fetch("insert_chunks", **arrays, embedding=self._halfvecs(vectors))
        if self._removed:
            ids, files = map(list, zip(*self._removed, strict=True))
            self._fetch("delete_chunks", ids=ids, files=files)
        if self._dropped:
            self._fetch("delete_chunks_of", files=self._dropped)
            self._fetch("delete_files", files=self._dropped)
        self._added, self._removed, self._dropped = [], [], []

    def _halfvecs(self, vectors: Sequence[Vector | None]) -> BinaryArray:
        """Return vectors as a binding. The first one of a generation sets its dimensions.

        Raises:
            ValueError: a vector has other dimensions than the generation.
        """
        for vector in vectors:
            if vector is not None:
                self._dimensions = self._dimensions or vector.size
                if vector.shape != (self._dimensions,):
                    raise ValueError(f"a vector of shape {vector.shape} in an index of {self._dimensions} dimensions")
        return halfvecs(vectors, self._halfvec)

    def _set_outcomes(self, outcomes: Sequence[tuple[int, VectorOutcome | None]]) -> None:
        if outcomes:
            rows = [(chunk_id, *self._state_of(outcome)) for chunk_id, outcome in outcomes]
            ids, states, reasons, vectors = map(list, zip(*rows, strict=True))
            self._fetch("set_outcomes", ids=ids, states=states, reasons=reasons, vectors=self._halfvecs(vectors))

    def add_sentences(self, sentences: Mapping[str, SentenceSigns]) -> None:
        users = [of.is_users.tobytes() for of in sentences.values()]
        signs = [of.signs.tobytes() for of in sentences.values()]
        self._fetch("set_sentences", hashes=list(sentences), users=users, signs=signs)
        self.changed = self.changed or bool(sentences)

    def set_meta(self, values: Mapping[str, str]) -> None:
        self._meta |= values
        self.changed = self.changed or bool(values)

    def _fetch(self, statement: str, **bindings: object) -> list[tuple[Any, ...]]:
        return run(self._connection, STATEMENTS[statement], {**self._generation, **bindings})


class PostgresStore(PostgresReader, DocumentWriter):
    """Read and write access to one generation. Reads use their own connections."""

    @contextmanager
    def transaction(self) -> Iterator[WriteTransaction]:
        seconds = self._options.busy_timeout_seconds
        with self._database.transaction(self._scope, lock_seconds=seconds) as connection:
            transaction = WriteTransaction(connection, self._bindings(), keeps_vectors=self.vector_reason is None)
            yield transaction
            transaction.finish()

    def maintain(self, *, go_on: Callable[[], bool], now: float) -> Maintained:  # noqa: ARG002 - the contract's
        """Do nothing: PostgreSQL's autovacuum frees deleted rows by itself. They leave the disk with it."""
        return Maintained()


def create_generation(
    database: Database, scope: Scope, *, fingerprint: str, description: str, takeover: str | None = None
) -> str:
    """Make a new, empty generation with these facts, which never change; return its name.

    An agent's first generation answers at once. A later one is under construction, in place of an earlier such one.
    """
    name = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{fingerprint[:8]}-{secrets.token_hex(8)}"
    facts = {"generation": name, "fingerprint": fingerprint, "identity": description, "takeover": takeover}
    bindings = {"tenant": scope.tenant, "agent": scope.agent, **facts}
    with database.transaction(scope) as connection:
        run(connection, RETIRE_NEXT, bindings)
        run(connection, INSERT_GENERATION, bindings)
    return name
