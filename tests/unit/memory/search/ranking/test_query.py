"""Terms that a query asks for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory.chunking.folding import fold, places_in
from memory.search.ranking.coverage import word_matcher
from memory.search.ranking.query import sought
from memory.store.reader import TermCounts


@pytest.mark.parametrize(
    ("query", "pieces"),
    [
        ("When did Caroline go to the meeting?", ("carolin", "go", "meet")),
        ("who is it", ("who", "is", "it")),
        ("数据库在哪", ("数据", "据库", "库在")),
        ("ＡＰＩ", ("api",)),
        ("?!", ()),
    ],
    ids=["question words", "nothing else", "Chinese", "full width", "no word"],
)
def test_a_query_looks_for_its_words_without_stop_words(query: str, pieces: tuple[str, ...]):
    assert sought(query) == pieces


@given(st.text())
def test_folded_characters_have_places_in_the_text(text: str):
    places = list(places_in(text))

    assert len(places) == len(fold(text)) + 1
    assert places == sorted(places)
    assert places[-1] == len(text)


def covered(query: str, *texts: str, among: dict[str, int], chunks: int = 100) -> list[float]:
    matcher = word_matcher(query, TermCounts(chunks, among))
    return [round(matcher(text, fold(text)).coverage, 3) for text in texts]


def test_coverage_is_the_share_of_the_rarer_words():
    texts = ["the team on Friday", "the team", "Fridays", "nothing"]
    whole, common, rare, none = covered("Friday team", *texts, among={"Friday": 2, "team": 50})

    assert (whole, none) == (1.0, 0.0)
    assert 0 < common < 0.2 < 0.8 < rare < 1
    assert covered("?!", "text", among={}) == [0.0]


def test_a_pair_of_characters_that_straddles_two_words_hardly_counts_against_a_text():
    among = {"数据": 5, "据库": 5, "库迁": 0, "迁移": 3}

    [share] = covered("数据库迁移", "迁移了数据库", among=among)
    [with_a_word_that_is_rare] = covered("数据库迁移", "迁移了数据库", among=among | {"库迁": 1})
    assert share > 0.85 > with_a_word_that_is_rare


def test_a_word_is_found_where_a_word_begins():
    among = {"art": 3}

    assert covered("art", "the art", "Art of it", "a party", "openArt", "open_art", "mp3art", among=among) == [
        *(1.0, 1.0, 0.0),
        *(1.0, 1.0, 1.0),
    ]


def test_another_form_of_a_word_counts_for_most_of_it():
    among = {"городами": 0, "горо*": 9, "город*": 9, "Сибири": 9}

    assert covered("городами", "города", "по городам", "пригород", "огород", among=among) == [0.85, 0.85, 0.0, 0.0]
    # A word of no chunk weighs as its forms.
    assert covered("городами Сибири", "Сибири", among=among) == [0.5]


def test_letters_that_fold_into_two_move_no_sentence():
    matcher = word_matcher("Verwaltungen Freitag", TermCounts(100, {"Verwaltungen": 0, "verwa*": 3, "Freitag": 3}))
    after = f"Am Freitag zog dann die ganze Verwaltung um. {'Danach war lange gar nichts los ' * 5}."
    texts = [f"{mass * 60}ist voll. {after}" for mass in ("Maß ", "Mass ")]

    lines = [matcher(text, fold(text)).line for text in texts]

    assert lines[0] == lines[1] > 0


def test_accents_are_no_difference():
    assert covered("cafe", "au Café", among={"cafe": 1}) == [1.0]
    assert covered("Café", "cafe", among={"Café": 1}) == [1.0]
