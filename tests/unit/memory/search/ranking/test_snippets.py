"""What is shown of a chunk."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from memory.search.ranking.snippets import make_snippet
from memory.search.ranking.terms import sought, splits_character, splits_word

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


@given(text=TEXTS, query=QUERIES, limit=st.integers(40, 200), first=st.integers(1, 900))
@settings(max_examples=300, deadline=None)
@example(text="x" * 500, query="x", limit=40, first=1)
@example(text="a" * 45 + " \u0301" * 30, query="nothing", limit=40, first=1)
def test_a_snippet_is_short_and_exact_and_tears_nothing_apart(text: str, query: str, limit: int, first: int):
    snippet = make_snippet(text, start_line=first, terms=sought(query), max_chars=limit)

    assert len(snippet.text) <= limit
    lines = text.split("\n")
    shown = "\n".join(lines[snippet.start_line - first : snippet.end_line - first + 1])
    assert snippet.text in shown
    assert snippet.text.count("\n") == snippet.end_line - snippet.start_line
    assert snippet.text == snippet.text.rstrip() or "\u0301" in snippet.text
    indentation = len(snippet.text) - len(snippet.text.lstrip())
    assert indentation <= limit // 4
    assert "\n" not in snippet.text[:indentation]
    assert not indentation or lines[snippet.start_line - first].startswith(snippet.text[:indentation])
    assert bool(snippet.text.strip()) == bool(text.strip())
    longest_word = max((len(word) for word in text.split()), default=0)
    if longest_word <= limit and snippet.text:
        assert any(
            not any(cut(text, at) or cut(text, at + len(snippet.text)) for cut in (splits_character, splits_word))
            for at in range(len(text))
            if text.startswith(snippet.text, at)
        )


def test_a_snippet_shows_the_place_that_holds_most_of_the_question():
    filler = "Nothing to see on this line, really nothing.\n" * 40
    text = f"{filler}The dentist moved.\n{filler}The dentist appointment moved to Friday.\n{filler}"

    snippet = make_snippet(text, start_line=10, terms=sought("when is the dentist appointment?"), max_chars=200)

    assert "The dentist appointment moved to Friday." in snippet.text
    assert snippet.start_line <= 10 + 81 <= snippet.end_line


def test_a_snippet_finds_chinese_by_bigrams():
    text = "今天天气不错。\n" * 100 + "我们决定周五迁移数据库。\n" + "晚饭吃红烧肉。\n" * 100

    snippet = make_snippet(text, start_line=1, terms=sought("数据库什么时候迁移？"), max_chars=80)

    assert "迁移数据库" in snippet.text
    assert snippet.start_line <= 101 <= snippet.end_line


def test_a_snippet_without_a_match_starts_where_the_chunk_starts():
    snippet = make_snippet("first line\n" * 100, start_line=5, terms=sought("elsewhere"), max_chars=50)

    assert snippet.text.startswith("first line")
    assert snippet.start_line == 5


def test_a_short_chunk_is_shown_whole_without_blank_lines_around():
    snippet = make_snippet("\n\n  note one\nnote two\n\n", start_line=1, terms=[], max_chars=700)

    assert (snippet.text, snippet.start_line, snippet.end_line) == ("  note one\nnote two", 3, 4)


def test_the_first_line_keeps_its_indentation_like_the_lines_after_it():
    code = (
        "def ready():\n" + "    # what was said\n" * 20 + "        gamma = 1\n        return gamma\n" + "x = 1\n" * 40
    )

    snippet = make_snippet(code, start_line=1, terms=["gamma"], max_chars=60)

    assert snippet.text.startswith("        gamma = 1\n        return gamma")
    assert code.split("\n")[snippet.start_line - 1] == "        gamma = 1"


def test_a_part_that_begins_inside_a_line_has_no_indentation():
    line = "lorem " * 100 + " " * 10 + "gamma " + "ipsum " * 100

    assert make_snippet(line, start_line=1, terms=["gamma"], max_chars=40).text[0] != " "


def test_blanks_that_would_fill_the_snippet_are_no_indentation():
    snippet = make_snippet(" " * 500 + "gamma", start_line=1, terms=[], max_chars=100)

    assert snippet.text == "gamma"


def test_a_match_far_inside_one_long_line_is_shown():
    text = "lorem " * 3000 + "the-needle-4711 " + "ipsum " * 3000

    snippet = make_snippet(text, start_line=7, terms=sought("needle 4711"), max_chars=120)

    assert "needle-4711" in snippet.text
    assert (snippet.start_line, snippet.end_line) == (7, 7)


def test_a_word_found_by_its_stem_is_shown_whole():
    text = "x " * 600 + "reorganisation" + " y" * 600

    snippet = make_snippet(text, start_line=1, terms=["organi"], max_chars=60)

    assert "reorganisation" in snippet.text


def test_a_snippet_starts_at_the_line_that_answers_not_in_the_middle_of_an_earlier_one():
    text = "Before: something else entirely, and a word about the backup of it.\n" + "filler line\n" * 50
    text += "## Backup\nThe database backup runs at three.\n" + "more filler\n" * 80

    snippet = make_snippet(text, start_line=1, terms=sought("database backup"), max_chars=700)

    assert "The database backup runs at three." in snippet.text
    assert text.split("\n")[snippet.start_line - 1].startswith(snippet.text.split("\n")[0])


def test_a_match_near_the_end_is_shown_with_what_comes_before_it_from_the_start_of_a_line():
    text = "".join(f"This is line {n} of a long note about nothing.\n" for n in range(1, 60)) + "And the needle."

    snippet = make_snippet(text, start_line=1, terms=["needle"], max_chars=300)

    assert snippet.text.endswith("And the needle.")
    assert snippet.text.startswith("This is line ")
    assert len(snippet.text) > 200
