"""Searched part of a query into which a file was pasted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from memory.redaction import redact
from memory.search.manager import SearchManager
from memory.search.ranking.query import SEARCHED_CHARACTERS, searched_query
from schemas.conditions import ConditionCode
from schemas.search import SearchRequest
from schemas.settings import Settings
from tests.written_index import searching, write_index

LONG = "the dentist appointment " + "and so on " * 10_000


@pytest.fixture
def manager(settings: Settings) -> Iterator[SearchManager]:
    (settings.agents[0].workspace / "memory" / "a.md").write_text("The dentist appointment moved to nine.\n", "utf-8")
    write_index(settings).close()
    with searching(settings) as made:
        yield made


@pytest.mark.parametrize(
    "query",
    [LONG, "appointment " * 10_000, "很长的问题。" * 20_000, "x" * 100_000, "\u0301" * 100_000, "🇩🇪" * 50_000],
)
def test_of_a_very_long_query_the_beginning_is_searched_up_to_a_word(query: str):
    asked = searched_query(query, redact)

    assert query.startswith(asked.text)
    assert SEARCHED_CHARACTERS - 256 <= len(asked.text) <= SEARCHED_CHARACTERS
    assert asked.cut is not None
    assert asked.cut.params == {"characters": len(query.strip()), "searched": len(asked.text)}
    if " " in query:
        assert query[len(asked.text)] == " " or asked.text.endswith(" ")


@pytest.mark.parametrize("before", range(SEARCHED_CHARACTERS - 700, SEARCHED_CHARACTERS + 20, 20))
def test_no_part_of_a_secret_is_searched_where_the_query_is_cut(before: int):
    key = "".join(f"line{number:02}" + "Qm9" * 19 + "\n" for number in range(20))
    pem = f"-----BEGIN PRIVATE KEY-----\n{key}-----END PRIVATE KEY-----\n"
    rest = "sk-proj-" + "a1B2c3D4" * 6 + " and more" * 2_000
    for secret in (pem, "postgres://ada:" + "Zx9-" * 12 + "@db.example/x "):
        asked = searched_query("word " * (before // 5) + secret + rest, redact)

        assert not any(part in asked.text for part in ("Qm9", "a1B2", "Zx9"))


def test_the_answer_says_what_was_searched_and_finds_it(manager: SearchManager):
    answer = manager.search(SearchRequest(query=LONG))

    assert answer.results[0].path == "memory/a.md"
    assert [one.code for one in answer.conditions] == [ConditionCode.QUERY_CUT]
    assert (answer.mode, answer.fallback, answer.error) == ("hybrid", False, None)
    assert manager.search(SearchRequest(query="dentist")).degraded == ()
