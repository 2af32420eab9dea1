"""Promises of the store in PostgreSQL besides those of every store."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import psycopg
import pytest

from memory.store.document_transaction import MOST_ADDED, MOST_CHANGED
from memory.store.errors import StoreAway, StoreBusy, Superseded
from memory.store.options import StoreOptions
from memory.store.postgres.connection import Database
from memory.store.postgres.rows import STATEMENTS, run
from memory.store.postgres.search import SELECT_CANDIDATES
from memory.store.postgres.writer import PostgresStore, WriteTransaction, create_generation
from memory.store.reader import SentenceSigns
from memory.store.row_reader import names_of
from memory.store.writer import DocumentDelete, Store, Unread, WriteOutcome
from schemas.agents import Scope
from schemas.documents import FileStat
from tests.postgres_server import Urls
from tests.postgres_store import postgres_store
from tests.storing import TALK, chunk, document, key, piece, position, text_hash, vector

NOTE, OTHER = key("memory/a.md"), key("memory/b.md")
COMMITTED = WriteOutcome.COMMITTED


@pytest.fixture
def postgres(fleet_database: Database) -> PostgresStore:
    """An empty generation."""
    return postgres_store(fleet_database)


@pytest.fixture
def superuser(shared_urls: Urls) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """A connection that no policy holds back."""
    with psycopg.connect(shared_urls.superuser, autocommit=True) as connection:
        yield connection


def _before_chunks(_: WriteTransaction) -> None: ...


def _before_count(transaction: WriteTransaction) -> None:
    transaction.flush()


def _before_commit(transaction: WriteTransaction) -> None:
    transaction.finish()


@pytest.mark.parametrize("reach", [_before_chunks, _before_count, _before_commit])
def test_a_connection_that_is_cut_in_mid_write_leaves_nothing_behind(
    postgres: PostgresStore,
    superuser: psycopg.Connection[tuple[object, ...]],
    reach: Callable[[WriteTransaction], None],
) -> None:
    postgres.write([document(NOTE, "the old text", vectors=[vector(1)])])
    token, old = postgres.change_token(), postgres.chunks_of(NOTE)
    changes = [
        document(OTHER, "the new text", revision=postgres.revision(OTHER), vectors=[vector(2)]),
        DocumentDelete(NOTE, postgres.revision(NOTE)),
    ]

    def cut() -> None:
        with postgres.transaction() as transaction:
            assert transaction.apply_all(changes) == [COMMITTED] * 2
            reach(transaction)
            superuser.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                "WHERE datname = current_database() AND state = 'idle in transaction'"
            )

    with pytest.raises(StoreAway):
        cut()
    assert (postgres.chunks_of(NOTE), postgres.chunks_of(OTHER)) == (old, [])
    assert (postgres.change_token(), postgres.check()) == (token, [])

    assert postgres.write(changes) == [COMMITTED] * 2
    assert {file.key for file in postgres.files()} == {OTHER}
    assert postgres.check() == []


def test_a_replaced_generation_takes_no_more_changes(
    postgres: PostgresStore, superuser: psycopg.Connection[tuple[object, ...]]
) -> None:
    postgres.write([document(NOTE, "one")])
    superuser.execute("UPDATE recalld.generations SET state = 'old' WHERE generation = %s", [postgres.name])
    with pytest.raises(Superseded):
        postgres.write([document(OTHER, "two")])
    assert len(postgres.chunks_of(NOTE)) == 1, "it answers until it is swept"
    superuser.execute("DELETE FROM recalld.generations WHERE generation = %s", [postgres.name])
    with pytest.raises(Superseded):
        postgres.set_meta({"a": "b"})
    assert postgres.meta("a") is None


def test_an_agents_first_generation_answers_and_the_next_ones_wait(
    fleet_database: Database, superuser: psycopg.Connection[tuple[object, ...]]
) -> None:
    scope = Scope("acme", "anna")
    names = [create_generation(fleet_database, scope, fingerprint=f"f{n}", description="{}") for n in range(3)]
    rows = superuser.execute("SELECT generation, state FROM recalld.generations WHERE agent = 'anna'").fetchall()
    assert dict(rows) == dict(zip(names, ["current", "old", "next"], strict=True))


def test_a_commit_waits_for_another_one_and_not_for_ever(fleet_database: Database) -> None:
    postgres = postgres_store(fleet_database, StoreOptions(busy_timeout_seconds=0.05))
    with postgres.transaction(), pytest.raises(StoreBusy):
        postgres.write([document(NOTE, "one")])
    assert postgres.write([document(NOTE, "one")]) == [COMMITTED]


def test_commits_of_several_threads_are_serial(postgres: PostgresStore) -> None:
    def write(name: str) -> None:
        for number in range(8):
            postgres.write([document(key(f"memory/{name}{number}.md"), "one", "two")])

    with ThreadPoolExecutor() as pool:
        assert list(pool.map(write, "abc")) == [None] * 3
    assert (postgres.counts().files, postgres.counts().chunks, postgres.meta("transactions")) == (24, 48, "24")
    assert len({file.revision for file in postgres.files()}) == 24


def test_a_large_document_takes_several_transactions(postgres: PostgresStore) -> None:
    texts = [f"part {number}" for number in range(MOST_CHANGED + 1)]
    assert postgres.write([document(NOTE, *texts)]) == [COMMITTED]
    assert postgres.meta("transactions") == str(-(-len(texts) // MOST_ADDED))
    assert [one.ordinal for one in postgres.chunks_of(NOTE)] == list(range(len(texts)))
    assert postgres.write([DocumentDelete(NOTE, postgres.revision(NOTE))]) == [COMMITTED]
    assert (postgres.counts().chunks, postgres.file(NOTE), postgres.check()) == (0, None, [])


def test_nul_becomes_a_replacement_character(postgres: PostgresStore) -> None:
    added = (chunk("a\0b"), chunk("\\u0000 is no NUL", 1, refused="no\0"))
    postgres.write([piece(*added, continues=None, to=position(1))])
    postgres.add_dead_letter(NOTE, reason="bad \0", error_class="X")
    postgres.set_meta({"a": "b\0"})
    texts = [row.text for row in postgres.chunk_rows([one.id for one in postgres.chunks_of(TALK)]).values()]
    assert texts == ["a\ufffdb", "\\u0000 is no NUL"]
    assert {letter.reason for letter in postgres.dead_letters()} == {"bad \ufffd", "line 2: no\ufffd"}
    assert postgres.meta("a") == "b\ufffd"


@pytest.mark.parametrize(
    ("damage", "flaw"),
    [
        ("DELETE FROM recalld.files WHERE generation = %s", "1 chunks without a file"),
        ("UPDATE recalld.chunks SET ordinal = -1 WHERE generation = %s", "1 stale chunks of documents that are no"),
        ("UPDATE recalld.chunks SET embedding = '[1,2,3]' WHERE generation = %s", "1 chunks whose vector and state"),
        ("UPDATE recalld.chunks SET words = '  ' WHERE generation = %s", "1 chunks without their words"),
    ],
)
def test_a_check_names_each_kind_of_damage(
    postgres: PostgresStore, superuser: psycopg.Connection[tuple[object, ...]], damage: str, flaw: str
) -> None:
    postgres.write([document(NOTE, "gateway", vectors=[vector(1)])])
    assert postgres.check() == []
    superuser.execute(damage.encode(), [postgres.name])
    [found] = postgres.check()
    assert found.startswith(flaw)
    assert found.rows == 1


@pytest.mark.parametrize(
    ("name", "bindings"),
    [
        ("file", {"source": "memory", "path": "memory/a.md"}),
        ("files_named", {"keys": names_of([NOTE, OTHER])}),
        ("named", {"folder": "/", "name": "a.md"}),
        ("chunks_of", {"source": "memory", "path": "memory/a.md", "first": 0}),
        ("begun_by", {"hash": "x", "source": "sessions"}),
        ("candidates", {"ids": [1, 2], "vector": None, "texts": True}),
        ("texts_holding", {"keys": names_of([NOTE]), "words": ["x"]}),
    ],
)
def test_a_lookup_reads_an_index_under_row_security(
    postgres: PostgresStore, fleet_database: Database, name: str, bindings: dict[str, object]
) -> None:
    scope = {"tenant": "acme", "agent": "anna", "generation": postgres.name}
    with fleet_database.transaction("acme") as connection:
        connection.execute("SET LOCAL enable_seqscan = off")
        statement = (STATEMENTS | {"candidates": SELECT_CANDIDATES})[name]
        plan = str(run(connection, f"EXPLAIN {statement}", scope | bindings))
    assert "Index Scan" in plan
    assert "Seq Scan" not in plan


#: Thousands of documents of one.
COPIES = """
INSERT INTO recalld.files
    (tenant, agent, generation, id, source, path, size, mtime_ns, inode, content_hash, revision, indexed_at, notes)
SELECT tenant, agent, generation, n, source, n, size, mtime_ns, inode, content_hash, revision, indexed_at, notes
FROM recalld.files, generate_series(1000, 3000) AS n WHERE generation = :generation
"""


@pytest.mark.parametrize(
    ("name", "index", "bindings"),
    [
        ("file", "source_path", {"source": "memory", "path": "memory/a.md"}),
        ("files_named", "source_path", {"keys": names_of([NOTE, OTHER])}),
        ("named", "name", {"folder": "/", "name": "a.md"}),
    ],
)
def test_a_lookup_does_not_read_a_large_agent_whole_before_there_are_statistics(
    postgres: PostgresStore, fleet_database: Database, name: str, index: str, bindings: dict[str, object]
) -> None:
    postgres.write([document(NOTE, "the okapi")])
    scope = {"generation": postgres.name}
    with fleet_database.transaction("acme") as connection:
        run(connection, COPIES, scope)
        [(agent,)] = run(connection, "SELECT agent FROM recalld.generations WHERE generation = :generation", scope)
    scope |= {"tenant": "acme", "agent": agent}
    with fleet_database.transaction("acme") as connection:
        plan = str(run(connection, f"EXPLAIN {STATEMENTS[name]}", scope | bindings))
    assert re.search(rf"Index Scan using \w*{index}\w* on", plan), plan


def test_what_is_read_is_the_same_as_of_sqlite(postgres: PostgresStore, sqlite_store: Store) -> None:
    dated = replace(document(OTHER, "two", "one"), stat=FileStat(1, 1_700_000_000_123_456_789, 7))
    foreign = replace(document(TALK, "ру́сский"), vectors={text_hash("ру́сский"): Unread("Cyrillic")})
    signs = SentenceSigns(np.ones((1, 2), dtype=np.uint8), np.ones(1, dtype=np.bool_))
    answers = []
    for store in (postgres, sqlite_store):
        store.write([document(NOTE, "one", "two", "three", vectors=[vector(1), vector(2)]), dated, foreign])
        store.add_sentences({text_hash("one"): signs})
        changes = [store.changes(under="memory/b"), store.changes(since=1e9, until=1.8e9), store.changes(limit=1)]
        counts = store.counts()
        answers.append(
            (
                [[name for name, _ in change] for change in changes],
                changes[0],
                sorted((file.key.path, text) for file, text in store.beginnings([OTHER, NOTE, key("memory/c.md")])),
                [sorted(sentences) for sentences in store.all_sentences()],
                (store.lacking_sentences(9), store.lacking_sentences(0), store.sentence_counts()),
                (store.unread_scripts(), store.unread_among([1, 6]), store.vectors_pending()),
                (counts.files, counts.chunks, counts.vectors_ready, counts.vectors_pending),
                (store.meta("transactions"), store.meta("dimensions"), store.lacks_users_words()),
                [file.key for file in store.files()],
            )
        )
    assert answers[0] == answers[1]
    assert answers[0][1] == [(OTHER, pytest.approx(1_700_000_000.123457))]


def test_a_snapshot_reads_one_state_while_others_commit(postgres: PostgresStore) -> None:
    postgres.write([document(NOTE, "the okapi")])
    with ThreadPoolExecutor(1) as other, postgres.snapshot():
        assert len(postgres.search_text("okapi", 5)) == 1
        other.submit(postgres.write, [document(OTHER, "another okapi")]).result()
        assert (len(postgres.search_text("okapi", 5)), postgres.counts().files) == (1, 1)
        assert other.submit(postgres.counts).result().files == 2
    assert (len(postgres.search_text("okapi", 5)), postgres.counts().files) == (2, 2)
