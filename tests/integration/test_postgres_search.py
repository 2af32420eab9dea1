"""The fleet's store finds what SQLite finds, in the same order, as of the commit that a search sees."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memory.store.errors import VectorSearchUnavailable
from memory.store.postgres.connection import Database
from memory.store.postgres.keywords import ResidentWords
from memory.store.postgres.writer import PostgresStore, create_generation
from memory.store.reader import ChunkFilter, SentenceSigns, Span
from memory.store.writer import DocumentDelete, DocumentWrite, Store
from schemas.agents import Scope
from schemas.documents import DocumentKey
from tests.examples import examples
from tests.storing import TemporaryStore, chunk, document, key, vector

ANNA = Scope("acme", "anna")
ARCHIVE = "sessions/b.jsonl.reset.2026-03-01T00-00-00"


def new_store(database: Database, scope: Scope) -> PostgresStore:
    return PostgresStore(database, scope, create_generation(database, scope, fingerprint="f", description="{}"))


def talk(path: str, *texts: str, at: float) -> DocumentWrite:
    """A transcript, whose texts are equally old."""
    write = document(DocumentKey("sessions", path), *texts, vectors=[vector(len(text)) for text in texts])
    return replace(write, added=tuple(replace(piece, said_at=at) for piece in write.added))


def signs() -> SentenceSigns:
    return SentenceSigns(np.ones((1, 2), np.uint8), np.ones(1, np.bool_))


def memory() -> list[DocumentWrite]:
    """Notes and transcripts, among them copies, notes named for a day, and a chunk without a vector."""
    copies = ["the gateway listens on port 18789", "数据库迁移 of the gateway", "gateways"]
    return [
        document(key("memory/2026-03-01.md"), *copies, vectors=[vector(1), vector(2), vector(1)]),
        document(key("memory/projects/gateway-plan.md"), *copies, "no vector", vectors=[vector(1), vector(3)]),
        document(key("extra/notes.md", "imports"), "gateway of the imports", vectors=[vector(4)]),
        talk("sessions/a.jsonl", "User: where is the gateway?\nAssistant: on port 18789", at=1e9),
        talk(ARCHIVE, "User: the port, please\nAssistant: the gateway's port is 18789", "User: thanks", at=2e9),
    ]


FILTERS = st.sampled_from(
    [
        None,
        *map(ChunkFilter, [(), ("memory",), ("sessions",), ("memory", "sessions/b.jsonl"), ("sessions/a.jsonl",)]),
        ChunkFilter(("memory", "sessions"), Span(0.0, 1.5e9, "2026-02-01", "2026-03-31")),
        ChunkFilter(span=Span(1.5e9, first_day="2027")),
    ]
)
QUERIES = st.sampled_from(
    ["gateway", "where is the port", "数据库", "gateway plan", "thanks port", "?", "18789 gateways database", "portals"]
)


@pytest.fixture
def stores(database: Database) -> Iterator[tuple[Store, Store]]:
    """The same memory in both stores."""
    stores = (TemporaryStore(), new_store(database, ANNA))
    for store in stores:
        for write in memory():
            store.write([write])
    yield stores
    stores[0].close()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(60), deadline=None)
@given(QUERIES, st.integers(0, 5), st.integers(0, 12), FILTERS)
def test_both_stores_give_the_same_hits(
    stores: tuple[Store, Store], query: str, seed: int, k: int, within: ChunkFilter | None
) -> None:
    sqlite, postgres = stores
    near, postgres_near = (store.search_vectors(vector(seed), k, within) for store in stores)
    assert postgres.search_text(query, k, within) == sqlite.search_text(query, k, within)
    assert [hit.id for hit in postgres_near] == [hit.id for hit in near]
    assert [hit.score for hit in postgres_near] == pytest.approx([hit.score for hit in near], abs=1e-6)


@pytest.mark.parametrize("query", ["gateway", "the port thanks", "", "数据库迁移 plan"])
def test_both_stores_give_the_same_scores(stores: tuple[Store, Store], query: str) -> None:
    sqlite, postgres = stores
    ids = list(range(1, 15))
    assert postgres.text_scores(query, ids) == sqlite.text_scores(query, ids)
    assert postgres.user_scores(query, ids) == sqlite.user_scores(query, ids)
    assert postgres.term_counts(query) == sqlite.term_counts(query)
    assert postgres.vector_scores(vector(1), ids) == pytest.approx(sqlite.vector_scores(vector(1), ids), abs=1e-6)
    vectors, postgres_vectors = sqlite.vectors_of(ids), postgres.vectors_of(ids)
    assert {id_: of.tobytes() for id_, of in postgres_vectors.items()} == {i: of.tobytes() for i, of in vectors.items()}
    hashes = [piece.text_hash for piece in memory()[0].added]
    assert postgres.vectors_by_hash(hashes).keys() == sqlite.vectors_by_hash(hashes).keys() == set(hashes)


@pytest.mark.parametrize("before", [None, 0, 3], ids=["nothing read", "near another vector", "near this one"])
def test_in_a_snapshot_all_calls_give_the_same_answers(stores: tuple[Store, Store], before: int | None) -> None:
    sqlite, postgres = stores
    for store in stores:
        store.add_sentences({piece.text_hash: signs() for piece in memory()[0].added})
    ids = [9, 2, 3, 4, 5, 8, 99]
    with postgres.snapshot():
        if before is not None:
            assert postgres.search_vectors(vector(before), 4)
            assert postgres.search_text("gateway port", 3, ChunkFilter(("memory",)))
        assert postgres.vector_scores(vector(3), ids) == pytest.approx(sqlite.vector_scores(vector(3), ids), abs=1e-6)
        assert postgres.chunk_rows(ids) == sqlite.chunk_rows(ids)
        assert postgres.times_of(ids) == sqlite.times_of(ids) != {}
        assert postgres.sentence_signs(ids).keys() == sqlite.sentence_signs(ids).keys() == {2, 3, 4, 5}
        assert postgres.unread_among(ids) == sqlite.unread_among(ids)
        assert postgres.chunk_rows([]) == {}


def test_a_search_sees_each_commit(database: Database) -> None:
    store = new_store(database, ANNA)
    assert store.search_text("gateway", 5) == []
    store.write([document(key("a.md"), "the gateway", "the port")])
    assert [hit.id for hit in store.search_text("gateway", 5)] == [1]
    store.write([document(key("b.md"), "a second gateway")])
    assert {hit.id for hit in store.search_text("gateway", 5)} == {1, 3}
    change = replace(document(key("a.md"), revision=store.revision(key("a.md"))), removed=(1,))
    added = (chunk("the port of the gateway", 0),)
    store.write([replace(change, added=added)])
    assert {hit.id for hit in store.search_text("gateway", 5)} == {3, 4}
    assert store.term_counts("gateway").holding == {"gateway": 2, "gatew*": 2}
    for path in ("a.md", "b.md"):
        store.write([DocumentDelete(key(path), store.revision(key(path)))])
    assert store.search_text("gateway", 5) == []
    assert store.term_counts("gateway").chunks == 0


def test_a_generation_whose_rows_are_gone_is_searched_no_longer(database: Database) -> None:
    store = new_store(database, ANNA)
    store.write([document(key("a.md"), "the gateway")])
    assert store.search_text("gateway", 5)
    with database.transaction(ANNA) as connection:
        for table in (b"chunks", b"files", b"generations"):
            connection.execute(b"DELETE FROM recalld." + table)
    assert store.search_text("gateway", 5) == []
    assert store.text_scores("gateway", [1]) == {}


def test_agents_of_one_name_and_neighbours_do_not_find_each_other(database: Database) -> None:
    scopes = [ANNA, Scope("acme", "bert"), Scope("other", "anna")]
    stores = [new_store(database, scope) for scope in scopes]
    for number, store in enumerate(stores):
        store.write([document(key("a.md"), "the gateway", f"only{number}", vectors=[vector(number), vector(9)])])
    for number, store in enumerate(stores):
        assert [hit.id for hit in store.search_text("only0 only1 only2", 5)] == [2]
        assert store.term_counts("gateway").chunks == 2
        assert store.search_vectors(vector(number), 5)[0].score == pytest.approx(1)


def test_words_beyond_the_bound_are_evicted_and_read_again(database: Database) -> None:
    stores = {scope: new_store(database, scope) for scope in (ANNA, Scope("acme", "bert"))}
    for store in stores.values():
        store.write([document(key("a.md"), "the gateway")])
    for max_bytes, is_kept in ((1, False), (1 << 20, True)):
        words = ResidentWords(max_bytes=max_bytes)
        seen = []
        for scope in (*stores, *stores):
            with database.transaction(scope, read_only=True) as connection:
                seen.append(words.of(connection, database, scope, stores[scope].name, 1))
        assert (seen[0] is seen[2]) == is_kept
        assert seen[2].all.counts([b"gatewai "]) == [1]


def test_calls_of_one_snapshot_read_the_generations_row_once(
    stores: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    statements: list[str] = []
    execute = psycopg.Cursor.execute

    def recording(cursor: Any, query: Any, *bindings: Any, **options: Any) -> Any:
        statements.append(query.decode() if isinstance(query, bytes) else str(query))
        return execute(cursor, query, *bindings, **options)

    store = stores[1]
    store.search_text("gateway", 5)  # reads the words
    monkeypatch.setattr(psycopg.Cursor, "execute", recording)
    with store.snapshot():
        assert store.change_token() == store.change_token()
        assert store.search_vectors(vector(1), 5)
        assert store.text_scores("gateway", [1])
        assert store.term_counts("gateway").chunks == 11
        assert store.chunk_rows([]) == {}
    # The transaction's beginning, the row, the vectors; the pool's look at a connection is an empty statement.
    statements = [text for text in statements if text]
    assert [sum(name in text for text in statements) for name in ("BEGIN", "generations", "embedding")] == [1, 1, 1]
    assert len(statements) == 3


def test_a_query_of_another_width_is_refused_with_the_remedy(database: Database) -> None:
    store = new_store(database, ANNA)
    assert store.search_vectors(vector(1), 5) == []
    store.write([document(key("a.md"), "the gateway", vectors=[vector(1)])])
    with pytest.raises(VectorSearchUnavailable, match="recalld rebuild"):
        store.search_vectors(vector(1, 24), 5)
    with pytest.raises(VectorSearchUnavailable):
        store.vector_scores(vector(1, 24), [1])
