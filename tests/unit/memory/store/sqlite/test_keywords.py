"""Leaving common words aside gives exactly what scoring everything gives."""

from __future__ import annotations

import random
from pathlib import Path

import apsw
import pytest

from memory.chunking.segmenting import FTS5_TOKENIZER
from memory.store.sqlite import keywords
from memory.store.sqlite.keywords import TermFrequencies

CHUNKS = 6_000
COMMON, RARE = ["alpha", "beta", "gamma"], ["quark", "lepton", "boson", "hadron"]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> apsw.Connection:
    connection = apsw.Connection(str(Path(tmp_path_factory.mktemp("ranking")) / "index.sqlite"))
    connection.execute("CREATE TABLE chunks (id INTEGER PRIMARY KEY)")
    connection.execute("CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT)")
    connection.execute(
        f"CREATE VIRTUAL TABLE chunks_fts USING fts5 (text, content = '', contentless_delete = 1, "
        f"tokenize = '{FTS5_TOKENIZER}')"
    )
    words = random.Random(5)
    with connection:
        for number in range(1, CHUNKS + 1):
            text = [f"filler{words.randrange(3000)}" for _ in range(words.randrange(5, 40))]
            text += [word for word in COMMON if words.random() < 0.4 for _ in range(words.randrange(1, 4))]
            text += [word for word in RARE if words.random() < 0.01]
            connection.execute("INSERT INTO chunks VALUES (?)", (number,))
            connection.execute("INSERT INTO chunks_fts (rowid, text) VALUES (?, ?)", (number, " ".join(text)))
    return connection


@pytest.mark.parametrize("seed", range(8))
def test_the_result_is_that_of_scoring_everything(
    index: apsw.Connection, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    choose = random.Random(seed)
    words = choose.sample([*COMMON, *RARE, "filler17", "filler99", "absent"], choose.randrange(2, 7))
    terms, k = [f'"{word}"' for word in words], choose.choice([1, 5, 24, 200])
    frequencies = TermFrequencies()
    quick = keywords.best_texts(index, terms, k, frequencies)
    monkeypatch.setattr(keywords, "LARGE_INDEX", CHUNKS * 10)
    plain = keywords.best_texts(index, terms, k, frequencies)
    assert [hit.id for hit in quick] == [hit.id for hit in plain]
    assert [hit.score for hit in quick] == pytest.approx([hit.score for hit in plain])
