"""One search over one generation."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from memory.chunking.chunker import Chunk, text_hash
from memory.embedding.providers.stub import StubProvider
from memory.embedding.vectors import round_rows
from memory.search.ranking.ranker import SearchParameters
from memory.search.retrieval import QuerySide, Retrieval, by_keywords, retrieve
from memory.store.errors import VectorSearchUnavailable
from memory.store.writer import DocumentWrite, Unread
from schemas.conditions import Condition, ConditionCode
from schemas.documents import DocumentKey, FileStat
from schemas.settings import Hybrid
from tests.storing import TemporaryStore, document, key

PROVIDER = StubProvider()
NOTES = {
    "memory/dentist.md": "The dentist appointment moved to Friday at nine.",
    "memory/garden.md": "Tomatoes and basil grow on the balcony.",
    "memory/db.md": "我们决定周五迁移数据库。",
    "memory/error.md": "Seen again: ERR_BROKER_4711 after the restart.",
}


def embed(text: str) -> np.ndarray:
    return round_rows(PROVIDER.embed_documents([text]).vectors, expected=1, dimensions=None)[0][0]


def index(*, identity: str = PROVIDER.identity, vectors: bool = True, store: TemporaryStore | None = None):
    store = store or TemporaryStore()
    store.set_meta({"identity": json.dumps({"embedding": identity})})
    store.write(
        [
            DocumentWrite(
                key=DocumentKey("memory", path),
                expected=store.revision(DocumentKey("memory", path)),
                stat=FileStat(1, 1, 1),
                content_hash="",
                added=(Chunk(0, 1, 1, text, text_hash(text)),),
                vectors={text_hash(text): embed(text)} if vectors else {},
            )
            for path, text in NOTES.items()
        ]
    )
    return store


def find(store: TemporaryStore, query: str, *, vector=None, **options) -> Retrieval:
    hybrid = options.pop("hybrid", Hybrid())
    parameters = SearchParameters(
        query=query,
        max_results=options.pop("max_results", 6),
        min_score=options.pop("min_score", 0.0),
        sources=("memory",),
        hybrid=hybrid,
    )
    lack = options.pop("lack", None)
    value = None if lack is not None else embed(query) if vector is None else vector
    side = QuerySide(PROVIDER.identity, PROVIDER.model, value, lack)
    early = by_keywords(store, parameters) if options.pop("early", False) else None
    return retrieve(store, parameters, side, lambda: early)


def paths(retrieval: Retrieval) -> list[str]:
    return [row.key.path for _, row in retrieval.hits]


def test_keywords_of_an_index_that_has_changed_since_are_searched_again():
    store = index()
    parameters = SearchParameters(query="zebra", max_results=6, min_score=0.0, sources=("memory",), hybrid=Hybrid())
    early = by_keywords(store, parameters)
    store.write([document(key("memory/zoo.md"), "A zebra in the zoo.")])
    assert paths(retrieve(store, parameters, None, lambda: early)) == ["memory/zoo.md"]


CODE = {
    "memory/reader.md": "Found it: openReader in store/reader.py forgets to close.",
    "memory/build.md": "Bisected to 3f2a9c41d09e88ab0c1d2e3f405162738495a6b7 on the second try.",
    "memory/lang.md": "Rewrote the parser in C++ over the weekend.",
    "memory/letter.md": "The letter C is the third one, and F the sixth.",
    "memory/network.md": "It says: connection reset by peer. Nobody knows why.",
    "memory/peers.md": "A peer was reset; the connection of the other peer was not. By whom?",
    "memory/2026-04-27.md": "Ran around the lake.",
    "memory/2026-04-28.md": "Did not run at all.",
}


@pytest.mark.parametrize(
    ("query", "path"),
    [
        ("openReader", "memory/reader.md"),
        ("who closes a reader", "memory/reader.md"),
        ("store reader", "memory/reader.md"),
        ("storeReader", "memory/reader.md"),
        ("commit 3f2a9c4", "memory/build.md"),
        ("3F2A9C41D09E", "memory/build.md"),
        ("C++", "memory/lang.md"),
        ("connection reset by peer", "memory/network.md"),
        ('what does "reset by peer" mean', "memory/network.md"),
        ("how far did I run on April 27th", "memory/2026-04-27.md"),
        ("4月27号", "memory/2026-04-27.md"),
    ],
)
def test_what_is_meant_exactly_is_found_and_comes_first_wherever_the_vectors_are(query: str, path: str):
    store = TemporaryStore()
    store.set_meta({"identity": json.dumps({"embedding": PROVIDER.identity})})
    other = embed("tomatoes and basil")
    store.write([document(key(name), text, vectors=[embed(text)]) for name, text in CODE.items()])

    retrieval = find(store, query, vector=other, min_score=0.35)

    assert paths(retrieval)[0] == path


@pytest.mark.parametrize("query", ["basil xylophone quokka telescope", "周五 xylophone quokka telescope"])
def test_a_rare_word_of_a_list_of_words_is_never_lost_to_min_score(query: str):
    held = "memory/garden.md" if "basil" in query else "memory/db.md"
    far = embed("planets with rings")
    for words in (query, query.rpartition(" ")[0]):
        assert paths(find(index(), words, vector=far, min_score=0.99)) == [held]
    assert paths(find(index(), f"where is the {query} now", vector=far, min_score=0.99)) == []
    assert paths(find(index(), f"{query}?", vector=far, min_score=0.99)) == []


def test_a_hit_by_vector_alone_needs_min_score():
    options = {"vector": embed("dentist appointment Friday"), "max_results": 4}
    by_meaning = find(index(), "zahnarzt", **options)
    assert len(by_meaning.hits) == 4

    strict = find(index(), "zahnarzt", min_score=0.5, **options)
    assert paths(strict) == ["memory/dentist.md"]
    assert strict.hits[0][0].text is None


def test_a_chunk_that_the_model_does_not_read_is_found_by_words_and_never_by_chance():
    store = index()
    for text in ("Η Zanzibar Lighthouse άνοιξε στο λιμάνι.", "Το balcony είναι άδειο, και η πόλη κοιμάται."):
        write = document(key(f"memory/{text.split()[1]}.md"), text)
        store.write([replace(write, vectors={chunk.text_hash: Unread("Greek") for chunk in write.added})])
    assert paths(find(store, "Zanzibar Lighthouse", min_score=0.35))[0] == "memory/Zanzibar.md"
    chance = "Where is it that the tomatoes and the basil grow: on the balcony?"
    assert "memory/balcony.md" not in paths(find(store, chance, min_score=0.35))
    parameters = SearchParameters("balcony στην Ελλάδα", 6, 0.9, sources=("memory",), hybrid=Hybrid())
    assert paths(retrieve(store, parameters, None))[0] == "memory/balcony.md", "the query has no vector"


class Blind(TemporaryStore):
    def search_vectors(self, vector, k, sources=None):
        raise VectorSearchUnavailable("of another size")


DOWN = Condition(ConditionCode.QUERY_NOT_EMBEDDED, params={"reason": "the provider is down"})


@pytest.mark.parametrize(
    ("made", "lack", "codes"),
    [
        pytest.param({}, DOWN, [DOWN.code], id="without a vector"),
        pytest.param({"identity": "another model"}, None, [ConditionCode.OTHER_MODEL], id="of another model"),
        pytest.param({"store": Blind}, None, [ConditionCode.KEYWORDS_ONLY], id="vectors that cannot be searched"),
        pytest.param({"vectors": False}, None, [], id="chunks that wait for their vectors"),
    ],
)
def test_keywords_answer_without_vectors_and_say_why(made, lack, codes):
    if "store" in made:
        made = {"store": made["store"]()}
    retrieval = find(index(**made), "dentist", lack=lack)
    assert (retrieval.mode, [one.code for one in retrieval.lacks]) == ("keyword", codes)
    assert paths(retrieval) == ["memory/dentist.md"]
