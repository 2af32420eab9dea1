"""From scores to hits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memory.search.ranking.ranker import SearchParameters, ranked
from schemas.settings import Hybrid
from tests.storing import TemporaryStore, document, key


def found(query: str, *notes: str, cosines: dict[int, float] | None = None) -> list[tuple[str, float]]:
    """The beginnings and scores of notes that all hold `query`, best first; `cosines` by place."""
    store = TemporaryStore()
    store.write([document(key(f"memory/{number}.md"), text) for number, text in enumerate(notes)])
    ids = [store.chunks_of(key(f"memory/{number}.md"))[0].id for number in range(len(notes))]
    near = {ids[place]: cosine for place, cosine in (cosines or {}).items()}
    parameters = SearchParameters(query, 10, 0.0, ("memory",), Hybrid(), now=0.0)
    hits, _ = ranked(store, parameters, near, store.text_scores(query, ids), model="stub")
    return [(row.text.split("\n")[0], item.score) for item, row in hits]


NOTES = (
    "Once, FP-131 was said.",
    "FP-131 after FP-131, and then FP-131.",
    "Near: FP-131 was said once, too.",
    "# Retro\nLeonie asked for FP-131, and FP-131 it was: FP-131.",
    "## Incident FP-131: the wrong language\nBetween nine and ten all messages were in Norwegian, as seldom before.",
)


@pytest.mark.parametrize("cosines", [None, {0: 0.1, 1: 0.1, 2: 0.3, 3: 0.6, 4: 0.05}])
def test_a_name_finds_what_it_heads_then_what_says_it_most(cosines: dict[int, float] | None) -> None:
    order = [text for text, _ in found("FP-131", *NOTES, cosines=cosines)]
    assert order[0] == NOTES[4].split("\n")[0]
    assert set(order[1:3]) == {NOTES[1], "# Retro"}
    assert cosines is None or order[3] == NOTES[2]


def test_a_question_about_a_name_finds_what_it_heads_before_what_mentions_it() -> None:
    order = found("when did FP-131 happen", NOTES[0], NOTES[4], cosines={0: 0.3, 1: 0.3})
    assert order[0][0] == NOTES[4].split("\n")[0]


def test_no_two_places_have_the_same_score() -> None:
    scores = [score for _, score in found("FP-131", *NOTES)]
    assert scores == sorted(scores, reverse=True)
    assert len({f"{score:.2f}" for score in scores}) == len(NOTES)


@pytest.mark.parametrize(("query", "first"), [("the alert", "sixty"), ("continue with the alert", "one")])
def test_a_question_that_asks_to_go_on_finds_the_newer_conversation_first(query: str, first: str) -> None:
    store, now = TemporaryStore(), 1_790_000_000.0
    bm25 = {}
    for name, age_days, score in (("sixty", 60, 1.0), ("one", 1, 0.9), ("today", 0, 0.0)):
        talk = document(key(f"sessions/{name}.jsonl", "sessions"), f"User: {name} alert")
        store.write([replace(talk, added=(replace(talk.added[0], said_at=now - age_days * 86_400),))])
        bm25[store.chunks_of(talk.key)[0].id] = score
    parameters = SearchParameters(query, 10, 0.0, ("memory", "sessions"), Hybrid(), now=now + 86_400 * 365)
    hits, _ = ranked(store, parameters, {}, bm25, model="stub")
    assert hits[0][1].text.split()[1] == first
