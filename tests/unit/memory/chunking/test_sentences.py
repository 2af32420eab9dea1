"""Sentences of messages and notes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory.chunking.sentences import is_cjk, sentences_of


def test_the_script_is_told_by_the_beginning_of_a_text():
    assert is_cjk("[2026-02-03 09:00] User: 我们决定周五迁移数据库，备份在前一天。")
    assert is_cjk("고양이가 집에 왔다")
    assert not is_cjk("We met 陈宇 on Friday and moved the database.")
    assert not is_cjk("")
    assert not is_cjk("café olé")


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        (
            "We moved the database to the new host on Friday. Yes. The backup was made on the day before that!",
            [
                "We moved the database to the new host on Friday.",
                "Yes. The backup was made on the day before that!",
            ],
        ),
        ("- port 8080\n- host a", ["- port 8080\n- host a"]),
        (
            "我们决定周五迁移数据库。备份在前一天完成，由陈宇负责。",
            ["我们决定周五迁移数据库。", "备份在前一天完成，由陈宇负责。"],
        ),
        ("?!\n--", []),
    ],
    ids=["a short one joins the next", "short lines", "Chinese", "no word"],
)
def test_a_text_comes_apart_into_sentences(text: str, sentences: list[str]):
    assert sentences_of(text) == sentences


@given(st.text(alphabet="ab .\n数据。", max_size=2_000))
def test_sentences_hold_every_word_and_none_is_too_long(text: str):
    sentences = sentences_of(text)
    assert all(len(sentence) <= 240 for sentence in sentences)
    words = "".join(character for character in text if character.isalnum())
    assert "".join(character for character in "".join(sentences) if character.isalnum()) == words
