"""Meaning of a score."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory.search.ranking.confidence import Evidence, calibration_of, scores
from memory.search.ranking.languages import Languages, languages_with

USE = calibration_of("multilingual-use-v3")
SHARE = st.floats(0, 1)
PLACES = st.builds(
    Evidence,
    cosine=st.none() | st.floats(-1, 1),
    coverage=SHARE,
    exact=st.booleans(),
    languages=st.sampled_from(Languages),
)


def place(
    cosine: float | None, coverage: float, *, exact: bool = False, languages: Languages = Languages.UNKNOWN
) -> Evidence:
    return Evidence(cosine=cosine, coverage=coverage, exact=exact, languages=languages)


def score(*places: Evidence, crowd: float = 0.15, chunks: int = 100) -> list[float]:
    return scores(places, crowd=crowd, chunks=chunks, calibration=USE)


@given(places=st.lists(PLACES, max_size=12), crowd=st.floats(-1, 1), chunks=st.integers(0, 10**7))
def test_every_score_is_a_share_and_depends_on_no_order(places, crowd, chunks):
    found = score(*places, crowd=crowd, chunks=chunks)

    assert all(0 <= one <= 1 for one in found)
    assert score(*reversed(places), crowd=crowd, chunks=chunks) == found[::-1]


@given(one=PLACES, more=SHARE)
def test_more_evidence_is_never_a_lower_score(one, more):
    better = replace(one, coverage=max(one.coverage, more))
    assert score(better) >= score(one) or (one.coverage < 0.1 <= better.coverage)
    if one.cosine is not None:
        assert score(replace(one, cosine=max(one.cosine, more))) >= score(one)


#: A usual bound for what is shown.
BOUND = 0.35


@pytest.mark.parametrize(
    ("places", "crowd", "chunks", "shown"),
    [
        pytest.param([place(0.40, 0.7)], 0.15, 100, True, id="words and meaning agree in one script"),
        pytest.param([place(0.25, 0.15)], 0.15, 100, False, id="little of either"),
        pytest.param([place(0.05, 0.30)], 0.15, 100, False, id="some words without the meaning"),
        pytest.param([place(0.30, 0.0, languages=Languages.APART)], 0.15, 100, True, id="across scripts it stands out"),
        pytest.param([place(0.30, 0.0, languages=Languages.APART)], 0.28, 100, False, id="across scripts one of many"),
        pytest.param([place(0.35, 0.0)], 0.15, 1000, True, id="no word anywhere: perhaps of another language"),
        pytest.param([place(0.35, 0.0), place(0.05, 0.2)], 0.15, 1000, False, id="a word elsewhere: of this language"),
        pytest.param([place(0.0, 0.0), place(-0.2, 0.0)], -0.1, 3, False, id="the nearest of a few is no answer"),
        pytest.param([place(0.2, 0.2)], 0.15, 100, False, id="a weak place alone"),
        pytest.param([place(0.2, 0.2), place(0.5, 0.9)], 0.15, 100, True, id="a weak place beside a clear answer"),
        pytest.param([place(-0.1, 0.6)], 0.15, 10**5, True, id="most of the words need no vector near"),
        pytest.param([place(-0.1, 0.05, exact=True)], 0.15, 10**5, True, id="what is meant exactly needs nothing else"),
    ],
)
def test_the_first_place_is_shown_or_not(places: list[Evidence], crowd: float, chunks: int, shown: bool):
    assert (score(*places, crowd=crowd, chunks=chunks)[0] > BOUND) is shown


def test_a_strange_question_in_the_language_of_the_text_finds_nothing():
    spanish, english = (place(0.3, 0.0, languages=known) for known in (Languages.UNKNOWN, Languages.SAME))

    def first(evidence: Evidence, closest: float | None, chunks: int = 100) -> float:
        return scores([evidence], crowd=0.1, chunks=chunks, calibration=USE, closest=closest)[0]

    # No word agrees: in another language the distance to the crowd counts, and in the same one it does not.
    assert first(spanish, 0.3) > BOUND > first(english, 0.3)
    assert first(english, 0.55) > BOUND
    assert first(english, 0.45) < BOUND < first(replace(english, coverage=0.3), 0.45)
    assert first(english, None) == first(spanish, None)
    # The nearest of a few notes is more often the right one.
    assert first(english, 0.39, chunks=1) > BOUND > first(english, 0.39)


def test_names_that_a_foreign_text_shares_do_not_hide_how_far_it_stands_out() -> None:
    # A name agrees, and the cosine stands out from the crowd.
    foreign, alike = (place(0.42, 0.2, languages=known) for known in (Languages.OTHER_SCRIPT, Languages.UNKNOWN))
    first, second = (
        scores([one], crowd=0.15, chunks=300, calibration=USE, closest=0.42)[0] for one in (foreign, alike)
    )
    assert first > BOUND > second


ENGLISH = "The deployment of the gateway is done on Friday, and it takes an hour or so."
GERMAN = "Das Gateway wird am Freitag ausgerollt, und das dauert etwa eine Stunde für alle."


@pytest.mark.parametrize(
    ("query", "text", "relation"),
    [
        ("When is the deployment of the gateway?", ENGLISH, Languages.SAME),
        ("Wann wird das Gateway ausgerollt und wie lange dauert es?", ENGLISH, Languages.OTHER),
        ("Wann wird das Gateway ausgerollt und wie lange dauert es?", GERMAN, Languages.ALIKE),
        ("When is the deployment of the gateway?", GERMAN, Languages.OTHER),
        ("Когда выкатывают шлюз?", ENGLISH, Languages.OTHER_SCRIPT),
        ("Melanie’s kids’ party", ENGLISH, Languages.UNKNOWN),
        ("Когда выкатывают шлюз?", "Шлюз выкатывают в пятницу.", Languages.ALIKE),
        ("gateway deployment friday", ENGLISH, Languages.UNKNOWN),
        ("When is the deployment of the gateway?", "gateway=1 port=8443 user=root", Languages.UNKNOWN),
        ("网关什么时候部署？", ENGLISH, Languages.APART),
        ("网关什么时候部署？", "网关星期五部署，大概一个小时。", Languages.SAME),
    ],
)
def test_a_few_words_tell_if_a_query_and_a_text_are_of_one_language(query: str, text: str, relation: Languages) -> None:
    assert languages_with(query)(text) is relation
