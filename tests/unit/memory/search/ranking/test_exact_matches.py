"""Queries that can only be meant exactly."""

from __future__ import annotations

import pytest

from memory.chunking.folding import fold
from memory.search.ranking.exact_matches import FileName, exact_pieces, file_names


@pytest.mark.parametrize(
    ("query", "pieces"),
    [
        ("when did we order FP-131?", ["fp-131"]),
        ("what does openReader in store/reader.py do", ["openreader", "store/reader.py"]),
        ("ERR_BROKER_4711 after the restart", ["err_broker_4711"]),
        ("ECONNREFUSED from 10.0.0.7:6379", ["econnrefused", "10.0.0.7:6379"]),
        ("commit 3f2a9c4", ["3f2a9c4"]),
        ("who wrote to anna@example.org", ["anna@example.org"]),
        ('the "connection reset by peer" thing', ["connection reset by peer"]),
        ("谁说过「周五迁移」这句话", ["周五迁移"]),
        ("covid-19 with gpt-4o", ["covid-19", "gpt-4o"]),
        ("on April 27th, in the 1990s, 10km at 5pm for 3.50, 2-3 times", []),
        ("e.g. the U.S. in 2024", []),
        ("don't they're LGBTQ", []),
    ],
)
def test_identifiers_and_quotations_are_meant_exactly(query: str, pieces: list[str]) -> None:
    assert list(exact_pieces(query).pieces) == pieces


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("We ordered FP-131 and FP-132.", 1.0),
        ("We ordered FP-131.", 0.5),
        ("We ordered FP-1310 and xFP-132.", 0.0),
        ("fp-131/fp-132", 1.0),
        ("在FP-131和FP-132之间", 1.0),
    ],
)
def test_a_place_holds_a_share_of_them_as_words_of_their_own(text: str, share: float) -> None:
    assert exact_pieces("FP-131 and FP-132, please").share(fold(text)) == share


def test_a_name_that_is_looked_up_stands_in_a_heading_before_it_stands_anywhere_else() -> None:
    asked = exact_pieces("FP-131")
    texts = [
        "# FP-131\nAll about it.",
        "## Incident FP-131: wrong language",
        "fp-131, FP-131 and again FP-131" * 9,
        "fp-131 after fp-131",
        "fp-131 once",
        "FP-1310 is another one\n# and FP-13 a third",
    ]
    standings = [asked.standing(fold(text)) for text in texts]
    assert standings == sorted(standings, reverse=True)
    assert len(set(standings[:5])) == 5
    assert standings[4:] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("team", [("team", "")]),
        ("people/team.md", [("people/team.md", "")]),
        ("`people/team.md#L3-L9`", [("people/team.md", "")]),
        ("people\\team.md:12", [("people/team.md", "")]),
        ("what does team.md say?", [("what does team.md say", ""), ("team.md", "what does   say?")]),
        ("the plan for the move", [("the plan for the move", "")]),
        ("?!", []),
        ("x" * 300, []),
    ],
)
def test_all_of_a_query_or_a_piece_with_an_ending_or_a_slash_may_name_a_document(
    query: str, names: list[tuple[str, str]]
) -> None:
    assert [(name.path, name.rest) for name in file_names(query)] == names


@pytest.mark.parametrize(
    ("typed", "path", "fits"),
    [
        ("memory/people/team.md", "memory/people/team.md", 3),
        ("/work/space/memory/people/team.md", "memory/people/team.md", 3),
        ("TEAM.md", "memory/people/team.md", 2),
        ("e/team.md", "memory/people/team.md", 0),
        ("team", "memory/people/team.md", 1),
        ("people/team", "memory/people/team.md", 1),
        ("tea", "memory/people/team.md", 0),
        ("team.md.bak", "memory/people/team.md", 0),
        ("abc", "sessions/main/abc.jsonl.reset.2026-01-01", 1),
        ("ef01", "sessions/x/rollout-2026-03-01T10-20-30-ef01.jsonl", 1),
        ("Größe", "memory/GRO\u0308SSE.md", 1),
    ],
)
def test_a_path_says_more_than_a_file_name_and_that_more_than_a_title(typed: str, path: str, fits: int) -> None:
    assert FileName(typed, "").fits(path) == fits
