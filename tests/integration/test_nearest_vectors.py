"""Vectors of an index that the product wrote: its own search finds what sqlite-vec's query finds."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from memory.embedding.providers.stub import StubProvider
from memory.index.file_generations import FileGenerations
from memory.index.generations import CURRENT
from memory.store.options import StoreOptions
from memory.store.sqlite.vectors import VectorShelf
from tests.commanding import CommandLine
from tests.storing import by_sqlite_vec

#: Ways to read the vectors: block after block, from memory, and rounded in memory.
SHELVES = {
    "blocks": VectorShelf(max_bytes=0),
    "memory": VectorShelf(hot_at_search=1),
    "rounded": VectorShelf(hot_at_search=1, exact_bytes=0),
}

WORDS = [f"{first}{second}" for first in "bdfgklmnprst" for second in ("ala", "eno", "iri", "opu", "ust", "yke", "ora")]


@pytest.fixture
def index(commands: CommandLine, workspace: Path, home: Path) -> Path:
    """The folder of an index with several hundred chunks, and with holes: a note was deleted, another one changed."""
    numbers = random.Random(7)
    for note in range(14):
        sections = ["## " + " ".join(numbers.choices(WORDS, k=24)) + ".\n" for _ in range(40)]
        (workspace / "memory" / f"{note}.md").write_text("\n".join(sections), "utf-8")
    commands.configure('provider = "stub"\nchunking = { tokens = 48, overlap = 8 }')
    commands.say("index")
    (workspace / "memory" / "3.md").unlink()
    (workspace / "memory" / "5.md").write_text("# New\n\nballast of the tower crane\n", "utf-8")
    commands.say("index", "--forget-missing")
    return home / "indexes" / "main"


def test_a_search_finds_the_chunks_that_sqlite_vecs_own_query_finds(index: Path) -> None:
    for way, shelf in SHELVES.items():
        generations = FileGenerations(index, StoreOptions(), shelf=shelf)
        name = generations.pointer(CURRENT)
        reader = generations.open_reader()
        assert name is not None
        assert reader is not None
        count = reader.counts().vectors_ready
        assert count > 400
        for query in ("bala feno giri", "kopu must nora ryke", "crane", "tala tala deno", "pala piri popu pust pyke"):
            vector = StubProvider().embed_query(query).vectors[0]
            hits = reader.search_vectors(vector, 20)
            theirs = by_sqlite_vec(index / name, vector, count)
            cosines = {hit.id: hit.score for hit in theirs}
            # Place by place, so that only chunks of one cosine may stand in another order.
            ours = [cosines[hit.id] for hit in hits]
            assert ours == pytest.approx([hit.score for hit in theirs[:20]], abs=1e-5), (way, query)
            assert len({hit.id for hit in hits}) == 20
        reader.close()
