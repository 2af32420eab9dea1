"""What a query asks for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from memory.search.terms import Coverage, fold, sought


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
    texts = ["the team on Friday", "the team", "nothing"]
    coverage = Coverage(["friday", "team"], texts)

    whole, part, none = map(coverage.of, texts)
    assert (whole, none) == (1.0, 0.0)
    assert 0 < part < 0.5
    assert Coverage([], texts).of("text") == 0.0
    assert Coverage(["friday"], []).of("Friday") == 1.0


def test_a_pair_of_characters_that_straddles_two_words_does_not_count_against_a_text():
    asked = sought("数据库迁移")

    assert asked == ["数据", "据库", "库迁", "迁移"]
    assert Coverage(asked, ["数据库"]).of("迁移了数据库") == 1.0
