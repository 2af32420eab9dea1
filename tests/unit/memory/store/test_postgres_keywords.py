"""Keywords of the fleet's store: the same chunks with the same scores as FTS5 gives them."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import apsw
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory.chunking.segmenting import FTS5_TOKENIZER, index_text, match_terms
from memory.store.postgres.keywords import WordIndex
from memory.store.postgres.words import patterns_of, stream_of, tokens_of
from memory.store.reader import Hit

#: Pieces of which texts and queries are made, so that queries often find something.
PIECES = (
    *("gateway", "gateways", "gate", "way", "Gate-Way", "gatewayTimeout", "running runs", "uses", "us", "the", "C++"),
    *("café", "CAFE\u0301", "Zürich", "naïve", '"quoted" phrase', "it's", "*", '"', "AND OR NOT", "a:b", "18789"),
    *("今天天气好", "今", "天气", "東京タワー", "ｶﾀｶﾅ", "서울에서", "ภาษาไทย", "ไทย", "ខ្មែរ", "मराठी भाषा", "हिंदी"),
    *("tiếng Việt", "ma mà má", "سلام", "שלום", "🎉 party", "e9c1f00d12", "2026-11-28", "x" * 70, "\ue000", "a a a a"),
)

texts = st.lists(st.one_of(st.sampled_from(PIECES), st.text(st.characters(codec="utf-8"), max_size=12)), max_size=12)


def fts5(texts_by_id: dict[int, str]) -> apsw.Connection:
    """Return FTS5's own index of texts, as the SQLite store makes it."""
    connection = apsw.Connection(":memory:")
    connection.execute(f"CREATE VIRTUAL TABLE texts USING fts5 (text, content = '', tokenize = '{FTS5_TOKENIZER}')")
    insert = "INSERT INTO texts (rowid, text) VALUES (?, ?)"
    connection.executemany(insert, [(id_, index_text(text)) for id_, text in texts_by_id.items()])
    return connection


def words_index(texts_by_id: dict[int, str], *, parts: int = 1) -> WordIndex:
    """Return an index that was renewed several times."""
    ids = np.array([*texts_by_id], dtype=np.int64)
    index = WordIndex((), ids[:0])
    for part in np.array_split(ids, min(parts, ids.size)):
        added = [(int(id_), stream_of(index_text(texts_by_id[id_])).encode()) for id_ in part]
        index = index.renewed(ids[ids <= part[-1]], added)
    return index


def best(connection: apsw.Connection, expressions: Sequence[str]) -> list[Hit]:
    select = "SELECT rowid, -bm25(texts) AS score FROM texts WHERE texts MATCH ? ORDER BY score DESC, rowid"
    return [Hit(*row) for row in connection.execute(select, (" OR ".join(expressions),))]


@given(st.lists(texts.map(" ".join), min_size=1, max_size=12), texts.map(" ".join), st.integers(1, 4))
def test_chunks_and_scores_are_exactly_those_of_fts5(chunks: list[str], query: str, parts: int) -> None:
    texts_by_id = dict(enumerate(chunks, start=1))
    expressions = list(match_terms(query).values())
    patterns = list(patterns_of(query).values())
    index = words_index(texts_by_id, parts=parts)
    connection = fts5(texts_by_id)
    hits = best(connection, expressions) if expressions else []
    assert index.best(patterns, len(chunks)) == hits
    assert index.best(patterns, 2) == hits[:2]
    assert index.scores(patterns, [*texts_by_id, 99]) == {hit.id: hit.score for hit in hits}
    assert index.counts(patterns) == [len(best(connection, [expression])) for expression in expressions]
    assert index.chunks == len(chunks)


@given(st.text(st.characters(codec="utf-8")))
def test_a_stream_has_the_tokens_of_a_text_and_single_spaces(text: str) -> None:
    tokens = tokens_of(text)
    assert stream_of(text).split(" ") == ["", *tokens, ""] if tokens else stream_of(text) == "  "


def test_a_filter_sees_the_best_first_until_enough_pass() -> None:
    texts_by_id = {number: "gateway " * (100 - number) + "x " * number for number in range(1, 100)}
    index = words_index(texts_by_id, parts=5)
    calls: list[list[int]] = []

    def odd(ids: list[int]) -> set[int]:
        calls.append(ids)
        return {id_ for id_ in ids if id_ % 2 and id_ > 20}

    ranked = index.best([b"gatewai "], 99)
    assert index.best([b"gatewai "], 3, odd) == [hit for hit in ranked if hit.id % 2 and hit.id > 20][:3]
    assert [len(ids) for ids in calls] == [3, 9, 36]


def test_deleted_chunks_count_no_longer() -> None:
    texts_by_id = {number: f"gateway number{number}" for number in range(1, 41)}
    index = words_index(texts_by_id, parts=4)
    present = {number: text for number, text in texts_by_id.items() if number % 3 == 0 or number > 30}
    added = {50: "another gateway"}
    index = index.renewed(np.array([*present]), [])
    assert index.best([b"gatewai "], 60) == best(fts5(present), ['"gateway"'])
    index = index.renewed(
        np.array([*present, *added]), [(id_, stream_of(text).encode()) for id_, text in added.items()]
    )
    connection = fts5(present | added)
    assert index.best([b"gatewai "], 60) == best(connection, ['"gateway"'])
    assert index.counts([b"gatewai ", b"number3 "]) == [len(present) + 1, 1]


def test_many_small_commits_make_one_segment() -> None:
    texts_by_id = {number: f"gateway {number}" for number in range(1, 301)}
    index = words_index(texts_by_id, parts=300)
    assert len(index.segments) == 1
    assert index.counts([b"gatewai "]) == [300]


def test_threads_share_a_tokenizer() -> None:
    text = "the quick gateways were running " * 200
    with ThreadPoolExecutor(8) as threads:
        streams = list(threads.map(stream_of, [text] * 200))
    assert set(streams) == {stream_of(text)}


@pytest.mark.parametrize("query", ["", "?!", "\u0640", '"', "\N{PARTY POPPER}"])
def test_a_query_without_a_word_matches_nothing(query: str) -> None:
    index = words_index({1: "gateway ?! \N{PARTY POPPER}"})
    assert index.best(patterns_of(query).values(), 5) == []
