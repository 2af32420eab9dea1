"""Equality of the two stores: every question of some sets, asked of SQLite and of a copy in PostgreSQL.

    python -m tests.benchmarks.bench_stores SET... [--set LINE]... [--home DIR]

SET, `--set` and `--home` are those of `bench_questions`. Printed for each set: chunks, questions, and the number of
answers that differ, by words, by vectors, and of the scores that the ranking asks for. Two answers are equal if they
have the same chunks in the same order with scores within 1e-5. "order of ties": the two stores add up in another order,
so that cosines which differ in the eighth digit only may change places. stderr has the questions.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psycopg

from memory.chunking.segmenting import index_text, index_title
from memory.search.retrieval import MIN_CANDIDATES
from memory.store.postgres.connection import Connection, Database
from memory.store.postgres.search import PostgresSearch
from memory.store.postgres.words import stream_of
from memory.store.reader import ChunkFilter, Hit, Span, StoreReader, Vector
from memory.store.rows import users_words
from schemas.agents import Scope
from schemas.documents import MEMORY_SOURCE, SESSIONS_SOURCE
from tests.benchmarks.bench_questions import QuestionSet
from tests.benchmarks.frame import options
from tests.postgres_server import PostgresServer

#: Largest difference of equal scores, and of scores that float32 cannot tell apart for sure.
TOLERANCE, ROUNDING = 1e-5, 2e-7

FILTERS = (
    None,
    ChunkFilter(),
    ChunkFilter((MEMORY_SOURCE,)),
    ChunkFilter((SESSIONS_SOURCE,), Span(0.0, 1.686e9, "2000-01-01", "2023-06-06")),
)

GENERATION = "copied"

FILE_COLUMNS = "id, source, path, size, mtime_ns, inode, content_hash, revision, indexed_at, notes"
CHUNK_COLUMNS = (
    "id, file_id, ordinal, start_line, end_line, vector_state, said_at, text_hash, refusal, embedding, text, words, "
    "users_words, sentence_users, sentence_signs"
)


class CopiedIndex(PostgresSearch):
    """Searches of a copy."""

    def __init__(self, database: Database, scope: Scope, dimensions: str | None) -> None:
        self._database, self._scope, self._generation, self._width = database, scope, GENERATION, dimensions

    def meta(self, name: str) -> str | None:
        return self._width if name == "dimensions" else None

    def _read(self) -> AbstractContextManager[Connection]:
        return self._database.transaction(self._scope, read_only=True)


def copy_index(reader: StoreReader, url: str, scope: Scope) -> int:
    """Copy documents and chunks under their ids; return the number of chunks. Row security does not bind the user."""
    prefix = (scope.tenant, scope.agent, GENERATION)
    signs = {text_hash: sentences for page in reader.all_sentences() for text_hash, sentences in page.items()}
    last = 0
    with psycopg.connect(url) as connection, connection.cursor() as cursor:
        chunks = []
        with cursor.copy(f"COPY recalld.files (tenant, agent, generation, {FILE_COLUMNS}) FROM STDIN") as rows:
            for number, file in enumerate(reader.files(), start=1):
                stat, key = file.stat, file.key
                facts = (stat.size, stat.mtime_ns, stat.inode, file.content_hash, file.revision, file.indexed_at)
                rows.write_row((*prefix, number, key.source, key.path, *facts, "[]"))
                chunks += [(number, key, chunk) for chunk in reader.chunks_of(key)]
        ids = [chunk.id for _, _, chunk in chunks]
        texts, times, vectors = reader.chunk_rows(ids), reader.times_of(ids), reader.vectors_of(ids)
        with cursor.copy(f"COPY recalld.chunks (tenant, agent, generation, {CHUNK_COLUMNS}) FROM STDIN") as rows:
            for file_number, key, chunk in chunks:
                text, title = texts[chunk.id].text, index_title(key.source, key.path)
                talk = users_words(text) if key.is_transcript else ""
                sentences, vector = signs.get(chunk.text_hash), vectors.get(chunk.id)
                words = stream_of(index_text(f"{title}\n{text}" if title else text))
                bits = (
                    (sentences.is_users.tobytes(), sentences.signs.tobytes()) if sentences is not None else (None,) * 2
                )
                embedding = str(vector.tolist()) if vector is not None else None
                place = (chunk.id, file_number, chunk.ordinal, chunk.start_line, chunk.end_line)
                facts = (str(chunk.vector_state), times.get(chunk.id), chunk.text_hash, chunk.refusal, embedding)
                talk_words = stream_of(index_text(talk)) if talk else None
                rows.write_row((*prefix, *place, *facts, text.replace("\0", "\ufffd"), words, talk_words, *bits))
                last = max(last, chunk.id)
        dimensions = reader.meta("dimensions")
        cursor.execute(
            "INSERT INTO recalld.generations (tenant, agent, generation, state, fingerprint, identity, dimensions, "
            "transactions, last_chunk_id) VALUES (%s, %s, %s, 'current', '', '', %s, 1, %s)",
            (*prefix, dimensions, last),
        )
    return len(chunks)


def difference(hits: list[Hit], copied_hits: list[Hit]) -> str:
    """Return "" for the same chunks with the same scores in the same order, else the kind of the difference."""
    if len(hits) != len(copied_hits) or any(
        abs(hit.score - copied.score) > TOLERANCE for hit, copied in zip(hits, copied_hits, strict=True)
    ):
        return "scores"
    swapped = [pair for pair in zip(hits, copied_hits, strict=True) if pair[0].id != pair[1].id]
    if any(abs(hit.score - copied.score) > ROUNDING for hit, copied in swapped):
        return "order"
    return "order of ties" if swapped else ""


def differences(reader: StoreReader, copied: StoreReader, query: str, vector: Vector | None) -> Iterator[str]:
    """Yield the name of each call whose answers differ, and the kind of the difference."""
    ids: set[int] = set()
    for within in FILTERS:
        hits = reader.search_text(query, MIN_CANDIDATES, within)
        if kind := difference(hits, copied.search_text(query, MIN_CANDIDATES, within)):
            yield f"words: {kind}"
        ids |= {hit.id for hit in hits}
        if vector is not None:
            hits = reader.search_vectors(vector, MIN_CANDIDATES, within)
            if kind := difference(hits, copied.search_vectors(vector, MIN_CANDIDATES, within)):
                yield f"vectors: {kind}"
            ids |= {hit.id for hit in hits}
    candidates = sorted(ids)
    scores = {
        "text_scores": lambda store: store.text_scores(query, candidates),
        "user_scores": lambda store: store.user_scores(query, candidates),
        "vector_scores": lambda store: {} if vector is None else store.vector_scores(vector, candidates),
        "vectors_of": lambda store: store.vectors_of(candidates),
        "sentences": lambda store: {id_: of.signs for id_, of in store.sentence_signs(candidates).items()},
        "voices": lambda store: {id_: of.is_users for id_, of in store.sentence_signs(candidates).items()},
    }
    for call, read in scores.items():
        if not _is_close(read(reader), read(copied)):
            yield call
    if reader.term_counts(query) != copied.term_counts(query):
        yield "term_counts"


def _is_close(arrays: Mapping[int, Any], copied: Mapping[int, Any]) -> bool:
    """Return True for scores that are close, and for arrays of the same numbers."""
    return arrays.keys() == copied.keys() and all(
        np.shape(copied[id_]) == np.shape(array)
        and np.allclose(copied[id_], array, rtol=0, atol=0 if np.shape(array) else TOLERANCE)
        for id_, array in arrays.items()
    )


@contextmanager
def server(folder: Path) -> Iterator[PostgresServer]:
    """Run a PostgreSQL."""
    postgres = PostgresServer(folder / "postgres")
    postgres.start()
    try:
        yield postgres
    finally:
        postgres.kill()


def main() -> None:
    """Compare every set."""
    parser = options(__doc__)
    parser.add_argument("sets", type=Path, nargs="+", metavar="SET")
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="LINE")
    parser.add_argument("--home", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="recalld-bench-") as name, server(Path(name)) as postgres:
        for folder in arguments.sets:
            urls = postgres.database()
            database = Database(urls.reader)
            questions = QuestionSet(folder, home=arguments.home or Path(name), settings=arguments.settings)
            differing: Counter[str] = Counter()
            chunks = 0
            with questions.memories() as memories:
                for scope, memory in memories.items():
                    agent = Scope("bench", memory.manager.agent.id)
                    with memory.manager.reader.lease() as reader:
                        assert reader is not None
                        chunks += copy_index(reader, urls.superuser, agent)
                        copied = CopiedIndex(database, agent, reader.meta("dimensions"))
                        for question in questions.questions:
                            if question.scope == scope:
                                for call in differences(reader, copied, question.text, memory.vector(question.text)):
                                    differing[call] += 1
                                    print(f"{folder.name}: {call}: {question.text}", file=sys.stderr)
            database.close()
            found = ", ".join(f"{call} {count}" for call, count in differing.items()) or "no difference"
            print(f"| {questions.name} | {chunks} | {len(questions.questions)} | {found} |", flush=True)


if __name__ == "__main__":
    main()
