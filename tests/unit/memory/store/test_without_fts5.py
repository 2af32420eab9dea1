"""An index in the hands of an SQLite without FTS5: vectors answer, and nothing is written that has no keywords."""

from __future__ import annotations

from pathlib import Path

import pytest

from memory.store.errors import KeywordsUnavailable
from memory.store.options import StoreOptions
from memory.store.sqlite.reader import SqliteReader
from memory.store.sqlite.writer import SqliteStore, create_generation
from memory.store.writer import DocumentDelete
from tests.storing import document, key, vector
from tests.without_fts5 import without_fts5

NOTE = key("memory/note.md")
TEXT = "the gateway is called Basalt"


@pytest.fixture
def written(index_path: Path) -> Path:
    """An index of one note with two chunks; the second one waits for its vector."""
    store = SqliteStore(index_path, StoreOptions())
    store.write([document(NOTE, TEXT, "tomatoes", vectors=[vector(1)])])
    store.close()
    return index_path


def test_vectors_are_searched_and_keywords_say_why_not(written: Path) -> None:
    with without_fts5():
        reader = SqliteReader(written, StoreOptions())
        assert "no FTS5" in (reader.text_reason or "")
        [hit] = reader.search_vectors(vector(1), 5)
        assert reader.chunk_rows([hit.id])[hit.id].text == TEXT
        assert reader.term_counts("").chunks == 2
        for ask in (lambda: reader.search_text("basalt", 5), lambda: reader.text_scores("basalt", [hit.id])):
            with pytest.raises(KeywordsUnavailable, match="no FTS5; install"):
                ask()
        reader.close()
    reader = SqliteReader(written, StoreOptions())
    assert reader.text_reason is None
    assert [found.id for found in reader.search_text("basalt", 5)] == [hit.id]
    reader.close()


def test_nothing_is_written_without_its_keywords_and_vectors_join_all_the_same(written: Path) -> None:
    with without_fts5():
        store = SqliteStore(written, StoreOptions())
        before = store.change_token()
        other = document(key("memory/other.md"), "rhubarb")
        for change in (other, DocumentDelete(NOTE, store.revision(NOTE))):
            with pytest.raises(KeywordsUnavailable, match="nothing is indexed by this process"):
                store.write([change])
        assert store.change_token() == before
        [(waiting, digest)] = store.pending_hashes(5).items()
        assert store.write_vectors({waiting: (digest, vector(2))}) == 1
        store.close()
        with pytest.raises(KeywordsUnavailable, match="no index can be made"):
            create_generation(written.with_name("new.sqlite"), StoreOptions(), fingerprint="f", description="{}")
    store = SqliteStore(written, StoreOptions())
    assert store.check() == []
    assert store.counts().vectors_ready == 2
    store.write([document(key("memory/other.md"), "rhubarb")])
    assert len(store.search_text("rhubarb", 5)) == 1
    store.close()
