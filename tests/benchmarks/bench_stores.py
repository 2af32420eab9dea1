"""Equality of the two stores: every question of some sets, asked of SQLite and of a copy in PostgreSQL.

    python -m tests.benchmarks.bench_stores SET... [--set LINE]... [--home DIR]

SET, `--set` and `--home` are those of `bench_questions`. Printed for each set: chunks, questions, and the number of
answers that differ: by words, by vectors, of a whole hybrid search, and of the scores that the ranking asks for. Two
answers are equal if they have the same chunks in the same order with scores within 1e-5. "order of ties": the two
stores add up in another order, so that cosines which differ in the eighth digit only may change places. stderr has the
questions.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from memory.chunking.chunker import Chunk
from memory.redaction import ASKING, redactor_for
from memory.search.ranking.query import searched_query
from memory.search.ranking.ranker import SearchParameters
from memory.search.retrieval import MIN_CANDIDATES, QuerySide, retrieve
from memory.store.postgres.connection import Database
from memory.store.postgres.writer import PostgresStore, create_generation
from memory.store.reader import ChunkFilter, Hit, Span, StoreReader, Vector
from memory.store.writer import DocumentWrite
from schemas.agents import Scope
from schemas.documents import MEMORY_SOURCE, SESSIONS_SOURCE
from tests.benchmarks.bench_questions import Memory, Question, QuestionSet
from tests.benchmarks.frame import options
from tests.postgres_server import PostgresServer

#: Largest difference of equal scores, and of scores that float32 cannot tell apart for sure.
TOLERANCE, ROUNDING = 1e-5, 2e-7

#: Time of all searches: age counts.
NOW = time.time()

FILTERS = (ChunkFilter(), ChunkFilter((MEMORY_SOURCE, SESSIONS_SOURCE), Span(0.0, 1.686e9, "2000-01-01", "2023-06-06")))


def copy_index(reader: StoreReader, database: Database, scope: Scope) -> PostgresStore:
    """Write the documents of a new index into PostgreSQL, where their chunks get the same ids."""
    facts = {"fingerprint": reader.meta("fingerprint") or "", "description": reader.meta("identity") or "{}"}
    copied = PostgresStore(database, scope, create_generation(database, scope, **facts))
    writes: list[tuple[list[int], DocumentWrite]] = []
    for file in reader.files():
        chunks = reader.chunks_of(file.key)
        ids = [chunk.id for chunk in chunks]
        rows, times, vectors = reader.chunk_rows(ids), reader.times_of(ids), reader.vectors_of(ids)
        added = tuple(
            Chunk(at.ordinal, at.start_line, at.end_line, rows[at.id].text, at.text_hash, times.get(at.id))
            for at in chunks
        )
        write = DocumentWrite(
            key=file.key,
            expected=0,
            stat=file.stat,
            content_hash=file.content_hash,
            added=added,
            vectors={chunk.text_hash: vectors[chunk.id] for chunk in chunks if chunk.id in vectors},
            notes=file.notes,
            position=reader.transcript(file.key),
        )
        writes.append((ids, write))
    writes = sorted((ids, write) for ids, write in writes if ids)
    copied.write([write for _, write in writes])
    for sentences in reader.all_sentences():
        copied.add_sentences(sentences)
    for ids, write in writes:
        assert [chunk.id for chunk in copied.chunks_of(write.key)] == ids, "index the set anew in another --home"
    return copied


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
        "sentence_signs": lambda store: {
            id_: np.column_stack([of.is_users, of.signs]) for id_, of in store.sentence_signs(candidates).items()
        },
    }
    for call, read in scores.items():
        if not _is_close(read(reader), read(copied)):
            yield call
    if reader.term_counts(query) != copied.term_counts(query):
        yield "term_counts"


def passages(reader: StoreReader, memory: Memory, question: Question, vector: Vector | None) -> list[Hit]:
    """Return the chunks and scores of a search as a user asks it."""
    agent, vectors = memory.manager.agent, memory.manager.embedder.vectors
    parameters = SearchParameters(
        query=searched_query(question.text, redactor_for(agent, "memory", "sessions", budget=ASKING)).text,
        max_results=agent.query.max_results,
        min_score=0.0,
        sources=agent.sources,
        hybrid=agent.query.hybrid,
        withheld=lambda _, keys: [key for key in keys if question.hides(memory.path_of(key.source, key.path))],
        now=NOW,
    )
    side = QuerySide(vectors.provider.identity, vectors.provider.model, vector) if vectors is not None else None
    return [Hit(row.id, fused.score) for fused, row in retrieve(reader, parameters, side).hits]


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
    postgres = PostgresServer.migrated(folder / "postgres")
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
            questions = QuestionSet(folder, home=arguments.home or Path(name), settings=arguments.settings)
            compare(questions, Database(postgres.database().writer))


def compare(questions: QuestionSet, database: Database) -> None:
    """Copy the memories of a set, ask all its questions, and print a row."""
    differing: Counter[str] = Counter()
    chunks = 0
    with questions.memories() as memories:
        for scope, memory in memories.items():
            with memory.manager.reader.lease() as reader:
                assert reader is not None
                copied = copy_index(reader, database, Scope("bench", memory.manager.agent.id))
                chunks += reader.counts().chunks
                for question in (question for question in questions.questions if question.scope == scope):
                    vector = memory.vector(question.text)
                    kinds = [*differences(reader, copied, question.text, vector)]
                    both = (passages(store, memory, question, vector) for store in (reader, copied))
                    if kind := difference(*both):
                        kinds.append(f"hybrid: {kind}")
                    differing.update(kinds)
                    for kind in kinds:
                        print(f"{questions.name}: {kind}: {question.text}", file=sys.stderr)
    database.close()
    kinds = ", ".join(f"{call} {count}" for call, count in differing.items()) or "no difference"
    print(f"| {questions.name} | {chunks} | {len(questions.questions)} | {kinds} |", flush=True)


if __name__ == "__main__":
    main()
