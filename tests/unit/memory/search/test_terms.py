"""What a query asks for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from memory.search.terms import coverage, fold, sought


def test_question_words_are_dropped_unless_nothing_else_is_asked():
    assert sought("When did Caroline go to the meeting?") == ["carolin", "go", "meet"]
    assert sought("who is it") == ["who", "is", "it"]


def test_chinese_is_asked_by_bigrams_without_those_of_question_words():
    assert sought("数据库在哪") == ["数据", "据库", "库在"]


def test_full_width_letters_are_found_as_plain_ones():
    assert sought("ＡＰＩ") == ["api"]
    assert sought("") == sought("?!") == []
    assert fold("ＡＰＩ") == "api"


@given(st.text())
def test_folding_keeps_every_character_at_its_place(text: str):
    assert len(fold(text)) == len(text)


def test_coverage_is_the_share_of_the_rarer_words():
    shares = coverage(["friday", "team"], {1: "the team on Friday", 2: "the team", 3: "nothing"})

    assert shares[1] == 1.0
    assert 0 < shares[2] < 0.5
    assert shares[3] == 0.0
    assert coverage([], {1: "text"}) == {1: 0.0}


def test_a_pair_of_characters_that_straddles_two_words_does_not_count_against_a_text():
    asked = sought("数据库迁移")

    assert asked == ["数据", "据库", "库迁", "迁移"]
    assert coverage(asked, {1: "迁移了数据库", 2: "数据库"})[1] == 1.0
