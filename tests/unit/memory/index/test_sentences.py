"""Sentences of chunks: made last and newest first, never paid for, and kept by a rebuild."""

from __future__ import annotations

from itertools import count

import apsw
import pytest

from memory.embedding.providers.stub import StubProvider
from memory.index.completion import complete_generation, fill_sentences, fill_vectors
from memory.index.indexer import Indexer
from recalld.wiring import closed
from schemas.documents import Lane
from tests.indexing import FAST, World
from tests.storing import TemporaryStore, document, key, vector

TEXT = "The heron of day {} stood in the northern reed. It left the lake for the mole at nightfall."
NOTES = {f"memory/{number}.md": TEXT.format(number) for number in range(5)}


def index(indexer: Indexer) -> int:
    """Index the notes with their vectors; return the number of unchanged ones."""
    report = indexer.index(map(key, NOTES), lane=Lane.LIVE, on_done=lambda _: None)
    fill_vectors(indexer, seconds=60)
    return report.unchanged


@pytest.fixture
def provider() -> StubProvider:
    return StubProvider(limits=FAST)


@pytest.fixture
def indexer(world: World, provider: StubProvider) -> Indexer:
    """An index of the notes, one chunk each, without sentences."""
    for path, text in NOTES.items():
        world.write(path, text)
    made = world.indexer(provider)
    index(made)
    return made


def test_sentences_come_newest_first_and_stop_when_something_waits(indexer: Indexer, provider: StubProvider) -> None:
    store, asked = indexer.target(), count()
    newest, *_, oldest = ids = list(store.lacking_sentences(9))
    assert fill_sentences(indexer, seconds=60, stopping=lambda: True)
    assert store.sentence_counts() == (0, 5)
    assert fill_sentences(indexer, seconds=60, stopping=lambda: next(asked) > 2)  # once before the first one
    assert store.sentence_counts() == (2, 5)
    assert set(store.sentence_signs([oldest, newest])) == {newest}
    assert not fill_sentences(indexer, seconds=60)
    assert store.sentence_counts() == (5, 5)
    shapes = {(of.signs.shape, of.is_users.tolist() == [True] * 2) for of in store.sentence_signs(ids).values()}
    assert shapes == {((2, provider.dimensions // 8), True)}


def test_only_users_sentences_of_a_transcript_are_users(world: World, indexer: Indexer) -> None:
    store, talk = indexer.target(), key("s/a.jsonl", "sessions")
    said = ("Where did the heron stand when the sun set over the reed bed?", "It stood beside the northern mole.")
    text = f"[2026-02-03 09:00] User: {said[0]}\n[2026-02-03 09:01] Assistant: {said[1]}\nShort."
    store.write([document(talk, text, "Assistant: 👍", vectors=[vector(1, 64), vector(2, 64)])])
    fill_sentences(indexer, seconds=60)
    with_sentences, without = [chunk.id for chunk in store.chunks_of(talk)]
    assert store.sentence_signs([with_sentences])[with_sentences].is_users.tolist() == [True, False]
    assert store.sentence_signs([without]) == {}
    assert store.sentence_counts() == (7, 7)


def test_a_rebuild_takes_sentences_over_and_another_model_makes_its_own(
    world: World, provider: StubProvider, indexer: Indexer
) -> None:
    fill_sentences(indexer, seconds=60)
    paid = provider.inputs
    changed = world.indexer(provider, chunking={"tokens": 400, "overlap": 40})
    index(changed)
    assert complete_generation(changed)
    assert changed.target().sentence_counts() == (5, 5)
    assert not fill_sentences(changed, seconds=60)
    assert provider.inputs == paid
    other = world.indexer(StubProvider(dimensions=32, limits=FAST))
    index(other)
    assert complete_generation(other)
    assert other.target().sentence_counts() == (0, 5)


def test_an_older_index_gains_tables_and_neither_pays_nor_ignores_the_setting(
    world: World, provider: StubProvider, indexer: Indexer
) -> None:
    paid, name = provider.inputs, indexer.generations.current()
    indexer.close()
    connection = apsw.Connection(str(indexer.generations.folder / str(name)))
    connection.execute("DROP TABLE chunks_said; DROP TABLE sentences; PRAGMA user_version = 4")
    connection.close()
    with closed(indexer.generations.open_reader()) as reader:
        assert reader is not None
        assert reader.sentence_counts() == (0, 5)
    upgraded = world.indexer(provider)
    assert index(upgraded) == 5
    assert not fill_sentences(world.indexer(provider, query={"sentences": "off"}), seconds=60)
    provider.account = "paid"
    assert not fill_sentences(upgraded, seconds=60)
    assert (upgraded.generations.current(), upgraded.target().counts().vectors_ready) == (name, 5)
    assert provider.inputs == paid


@pytest.mark.long
def test_the_newest_twenty_thousand_chunks_get_sentences_at_most() -> None:
    store = TemporaryStore()
    for number in range(51):
        texts = [f"{number} {place}" for place in range(400)]
        store.write([document(key(f"{number}.md"), *texts, vectors=[vector(1)] * 400)])
    assert store.sentence_counts() == (0, 20_000)
    assert min(store.lacking_sentences(30_000)) == 401
    store.close()
