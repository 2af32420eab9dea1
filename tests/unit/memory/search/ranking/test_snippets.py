"""Shown part of a chunk."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from memory.chunking.text_cuts import splits_character, splits_word
from memory.search.ranking.query import sought
from memory.search.ranking.snippets import best_sentence, columns_of, make_snippet
from tests.examples import examples

PIECES = st.sampled_from(
    [
        "alpha ",
        "beta",
        "gamma\n",
        "\n",
        " ",
        "\r\n",
        "数据库",
        "迁移。",
        "e\u0301",
        "👩\u200d👩\u200d👧",
        "🇩🇪🇫🇷",
        "👍🏽",
        "snake_case_name",
        "Привет ",
        "각",
        "\u1100\u1161\u11a8",
        "x" * 30,
        "한국어",
    ]
)
TEXTS = st.lists(PIECES, max_size=120).map("".join)
QUERIES = st.sampled_from(["gamma", "迁移", "数据库 gamma", "nothing here", "", "привет", "case", "x"])


@given(text=TEXTS, query=QUERIES, limit=st.integers(40, 200))
@settings(max_examples=examples(300), deadline=None)
@example(text="x" * 500, query="x", limit=40)
@example(text="a" * 45 + " \u0301" * 30, query="nothing", limit=40)
def test_a_snippet_is_short_and_exact_and_tears_nothing_apart(text: str, query: str, limit: int):
    snippet = make_snippet(text, terms=sought(query), max_chars=limit)

    assert len(snippet.text) <= limit
    assert snippet.text == text[snippet.start : snippet.end]
    assert snippet.text == snippet.text.rstrip() or "\u0301" in snippet.text
    indentation = len(snippet.text) - len(snippet.text.lstrip())
    assert indentation <= limit // 4
    assert "\n" not in snippet.text[:indentation]
    assert not indentation or snippet.start == 0 or text[snippet.start - 1] == "\n"
    assert bool(snippet.text.strip()) == bool(text.strip())
    longest_word = max((len(word) for word in text.split()), default=0)
    if longest_word <= limit and snippet.text:
        assert not any(cut(text, at) for cut in (splits_character, splits_word) for at in (snippet.start, snippet.end))


FILLER = "Nothing to see on this line, really nothing.\n" * 40
CODE = "def ready():\n" + "    # what was said\n" * 20 + "        gamma = 1\n        return gamma\n" + "x = 1\n" * 40
BACKUP = "Before: something else entirely, and a word about the backup of it.\n" + "filler line\n" * 50
BACKUP += "## Backup\nThe database backup runs at three.\n" + "more filler\n" * 80


@pytest.mark.parametrize(
    ("text", "query", "limit", "beginning", "held"),
    [
        pytest.param(
            f"{FILLER}The dentist moved.\n{FILLER}The dentist appointment moved to Friday.\n{FILLER}",
            "when is the dentist appointment?",
            200,
            "",
            "The dentist appointment moved to Friday.",
            id="the place that holds most of the question",
        ),
        pytest.param(
            "今天天气不错。\n" * 100 + "我们决定周五迁移数据库。\n" + "晚饭吃红烧肉。\n" * 100,
            "数据库什么时候迁移？",
            80,
            "",
            "迁移数据库",
            id="Chinese by bigrams",
        ),
        pytest.param("first line\n" * 100, "elsewhere", 50, "first line", "", id="the start without a match"),
        pytest.param("\n\n  one\ntwo\n\n", "", 700, "  one\ntwo", "", id="a short chunk whole, without blank lines"),
        pytest.param(CODE, "gamma", 60, "        gamma = 1\n        return gamma", "", id="indentation"),
        pytest.param(" " * 500 + "gamma", "", 100, "gamma", "", id="no indentation that would fill the snippet"),
        pytest.param(
            "lorem " * 3000 + "the-needle-4711 " + "ipsum " * 3000,
            "needle 4711",
            120,
            "",
            "needle-4711",
            id="a match far inside one long line",
        ),
        pytest.param("x " * 600 + "reorganisation" + " y" * 600, "organi", 60, "", "reorganisation", id="a whole word"),
        pytest.param(
            BACKUP,
            "database backup",
            700,
            "filler line\n",
            "The database backup runs at three.",
            id="whole lines",
        ),
        pytest.param(
            "".join(f"This is line {n} of a long note about nothing.\n" for n in range(1, 60)) + "And the needle.",
            "needle",
            300,
            "This is line ",
            "nothing.\nAnd the needle.",
            id="what comes before a match near the end",
        ),
    ],
)
def test_a_snippet_shows(text: str, query: str, limit: int, beginning: str, held: str):
    snippet = make_snippet(text, terms=sought(query), max_chars=limit).text

    assert snippet.startswith(beginning)
    assert held in snippet


NOTE = """\
# Ports and *names*

The gateway moved in May. It listens on port 8443, because
the old port collided! See e.g. the runbook.

## Heating
- 猫每天早上七点吃饭。**暖气阀门**在厨房水槽下面！物业电话贴在冰箱上。
- [ ] ask `memory/**/*.md` about 3 * 4 valves

| valve | room |
|---|---|
| main | cellar |
"""


@pytest.mark.parametrize(
    ("query", "sentence", "matched"),
    [
        ("old gateway port", "It listens on port 8443, because the old port collided!", ["port", "old", "port"]),
        (
            "which ports collide",
            "It listens on port 8443, because the old port collided!",
            ["port", "port", "collided"],
        ),
        ("暖气阀门", "暖气阀门在厨房水槽下面！", ["暖气阀门"]),
        ("runbook", "See e.g. the runbook.", ["runbook"]),
        ("ask about it", "ask `memory/**/*.md` about 3 * 4 valves", ["ask"]),
        ("the cellar of the heating", "main, cellar", ["cellar"]),
        ("unrelated", "The gateway moved in May.", []),
    ],
)
def test_a_result_s_sentence_holds_most_of_the_query(query: str, sentence: str, matched: list[str]) -> None:
    best = best_sentence(NOTE, terms=sought(query), columns=80)
    assert (best.text, [best.text[start:end] for start, end in best.matches]) == (sentence, matched)


def test_a_message_s_sentence_names_its_speaker_and_not_its_time() -> None:
    snippet = "[2026-02-03 09:00] User: Where is the key?\n[2026-02-03 09:01] Assistant: On the hook. Look there."
    assert best_sentence(snippet, terms=sought("hook"), columns=80).text == "Assistant: On the hook."
    assert best_sentence("# Only a heading\n", terms=sought("hook"), columns=80).text == "Only a heading"


@given(text=TEXTS, query=QUERIES, columns=st.integers(20, 60))
@settings(max_examples=examples(200), deadline=None)
def test_a_sentence_fits_into_its_columns(text: str, query: str, columns: int) -> None:
    best = best_sentence(text, terms=sought(query), columns=columns)
    assert columns_of(best.text) <= columns
    assert "\n" not in best.text
    spans = [0, *(place for span in best.matches for place in span), len(best.text)]
    assert spans == sorted(spans)
    assert best.text.strip("…") in best_sentence(text, terms=sought(query), columns=10_000).text


def test_a_long_sentence_is_cut_between_words_around_its_match() -> None:
    best = best_sentence("so many words " * 9 + "and a heron " + "in between " * 9, terms=("heron",), columns=40)
    assert best.text == "…many words and a heron in between in…"
    early = best_sentence("A heron, so many words, " * 2 + "heron", terms=("heron", "word"), columns=40)
    assert early.text == "A heron, so many words, A heron, so…"
