from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory.chunking.chunker import SLACK_TOKENS, Piece, chunk_text, estimate_tokens, text_hash
from tests.examples import examples

_FRAGMENTS = st.sampled_from(
    [
        *("\n", "\n\n", "\r\n", "\r", "\n \t\n", "\u3000", "\x85", "\u2028", "\x0c", "\ufffd", " " * 40),
        *(
            "# Heading\n",
            "## 第二章 计划\n",
            "#\n",
            "#no heading\n",
            "###### deep\r\n",
            "####### too deep\n",
            "#",
            "# ",
        ),
        *("```\n", "```python\n", "````\n", "  ~~~\n", "~~~ end\n", "```inline```\n", "``", "- item one\n"),
        *(
            "The gateway was restarted at noon. It recovered. ",
            "今天我们讨论了数据库迁移的问题。决定先部署！然后观察日志",
        ),
        *("👩‍👩‍👧‍👦👍🏽", "e\u0301a\u0308", "Привет мир ", "x" * 300, "word " * 60, "中" * 150),
    ]
)
_TEXTS = st.lists(st.one_of(_FRAGMENTS, st.text(max_size=30)), max_size=60).map("".join)
_SIZES = st.sampled_from(
    [(16, 0, 8191), (16, 8, 160), (32, 0, 8191), (32, 16, 8191), (40, 8, 170), (100, 20, 300), (4000, 80, 511)]
)

_EXAMPLES = settings(max_examples=examples(60), deadline=None)


def _cut(text: str, size: tuple[int, int, int]) -> list[Piece]:
    tokens, overlap, max_bytes = size
    return chunk_text(text, tokens=tokens, overlap=overlap, max_bytes=max_bytes)


@_EXAMPLES
@given(_TEXTS, _SIZES)
def test_own_parts_are_the_text_within_the_caps_and_line_ranges_are_exact(
    text: str, size: tuple[int, int, int]
) -> None:
    tokens, _, max_bytes = size
    chunks = _cut(text, size)
    assert "".join(text[chunk.own_start : chunk.end] for chunk in chunks) == text
    assert all(chunk.tokens <= tokens for chunk in chunks[:-1])
    lines = text.split("\n")
    covered: set[int] = set()
    for chunk in chunks:
        assert chunk.text == text[chunk.start : chunk.end]
        assert chunk.start <= chunk.own_start < chunk.end
        assert len(chunk.text.encode("utf-8", "surrogatepass")) <= max_bytes
        assert chunk.tokens == estimate_tokens(chunk.text) <= tokens + SLACK_TOKENS
        assert chunk.start_line == text.count("\n", 0, chunk.start) + 1
        assert chunk.end_line == text.count("\n", 0, chunk.end - 1) + 1
        assert chunk.text.removesuffix("\n") in "\n".join(lines[chunk.start_line - 1 : chunk.end_line])
        covered.update(range(chunk.start_line, chunk.end_line + 1))
    assert {number for number, line in enumerate(lines, start=1) if line} <= covered


@_EXAMPLES
@given(_TEXTS, _SIZES, st.data())
def test_chunks_of_a_prefix_are_a_prefix_of_the_chunks_the_last_one_aside(
    text: str, size: tuple[int, int, int], data: st.DataObject
) -> None:
    whole = _cut(text, size)
    for length in data.draw(st.lists(st.integers(0, len(text)), min_size=1, max_size=20)):
        part = _cut(text[:length], size)
        assert part[:-1] == whole[: max(len(part) - 1, 0)], length


@_EXAMPLES
@given(_TEXTS, _SIZES)
def test_crlf_and_lf_give_the_same_line_ranges(text: str, size: tuple[int, int, int]) -> None:
    text = text.replace("\r", "")
    unix, windows = _cut(text, size), _cut(text.replace("\n", "\r\n"), size)
    assert [(c.start_line, c.end_line) for c in unix] == [(c.start_line, c.end_line) for c in windows]
    assert [c.text for c in unix] == [c.text.replace("\r\n", "\n") for c in windows]


def test_a_short_note_is_one_chunk_and_an_empty_one_none() -> None:
    assert chunk_text("") == []
    (chunk,) = chunk_text("# Day\n\nBought coffee.\n")
    assert (chunk.start_line, chunk.end_line, chunk.text) == (1, 3, "# Day\n\nBought coffee.\n")


def test_tokens_are_estimated_by_what_scripts_cost() -> None:
    assert [estimate_tokens(text) for text in ("", "abcd", "数据库", "привет!!", "👍")] == [0, 1, 3, 4.25, 11 / 8]


def test_text_hashes_are_32_hex_characters_and_tell_texts_apart() -> None:
    assert len(text_hash("a")) == 32
    assert len({text_hash(text) for text in ("a", "b", "\ud800", "?")}) == 4


# Where a break goes ------------------------------------------------------------------------------------


def _starts(text: str, *, tokens: int = 100, overlap: int = 0) -> list[str]:
    """First line of the own part of every chunk."""
    chunks = chunk_text(text, tokens=tokens, overlap=overlap)
    return [text[chunk.own_start : chunk.end].split("\n")[0] for chunk in chunks]


def _lines(count: int, label: str) -> str:
    """Lines of 9 tokens."""
    return "".join(f"{label:6} line {number:02} with a few words in\n" for number in range(count))


_LONG = "A long paragraph that does not fit any more. " * 8 + "\n"


@pytest.mark.parametrize(
    ("text", "starts"),
    [
        (_lines(6, "a") + "# Next\n" + _lines(2, "b"), ["a", "# Next"]),
        (_lines(3, "a") + "# Next\n" + _lines(2, "b"), ["a"]),
        (_lines(4, "a") + "# Next\n\n" + _LONG, ["a", "# Next"]),
        (_lines(7, "a") + "\n" + _lines(5, "b"), ["a", "b"]),
        (f"{_lines(6, 'a')}\n{_lines(1, 'b')}```\n{_lines(5, 'c')}\n# no heading\n```\n{_lines(1, 'd')}", ["a", "```"]),
        (f"```\n{_lines(8, 'code')}\n{_lines(8, 'more')}```\n", ["```", "more"]),
        *(
            (f"{opening}\n{_lines(6, 'code')}{inside}\n# comment\n{_lines(1, 'code')}{opening}\n", [opening])
            for opening, inside in (("````", "```"), ("```", "``` text"), ("~~~", "```"), ("```", "    ```"))
        ),
    ],
    ids=["a heading starts a chunk", "not of a chunk that is not half full", "a heading stays with its text",
         "a paragraph before a line", "no fence is broken near a better place", "a long fence breaks at a blank line",
         *(["a fence is closed by its own kind"] * 4)],
)  # fmt: skip
def test_a_chunk_starts(text: str, starts: list[str]) -> None:
    assert _starts(text)[:2] == [_lines(1, each).strip() if each.isalpha() else each for each in starts]


def test_whole_lines_of_the_chunk_before_are_repeated() -> None:
    first, second = chunk_text(_lines(15, "a"), tokens=100, overlap=20)[:2]
    assert second.start_line == first.end_line - 1
    assert second.own_start == first.end


def test_a_lone_long_line_lends_its_last_sentence() -> None:
    paragraph = "This is one sentence of some length. " * 8 + "It ends with this one."
    first, second = chunk_text(f"{paragraph}\n\n{paragraph}\n", tokens=100, overlap=20)[:2]
    assert second.own_start == first.end
    assert second.text.startswith("This is one sentence")
    assert second.start_line == first.end_line - 1


def test_nothing_is_repeated_across_a_heading() -> None:
    text = _lines(8, "a") + "# Next\n" + _lines(8, "b")
    second = chunk_text(text, tokens=100, overlap=20)[1]
    assert second.text.startswith("# Next")
    assert second.start == second.own_start


@pytest.mark.parametrize(
    "unit", ["The gateway was restarted at noon. ", "今天我们讨论了数据库迁移的问题。", "gateway ", "👩‍👩‍👧‍👦"]
)
def test_sentences_words_and_joined_emoji_of_a_long_line_stay_whole(unit: str) -> None:
    for chunk in chunk_text(unit * 200, tokens=100, overlap=20):
        assert chunk.text == unit * (len(chunk.text) // len(unit))


def test_an_edit_keeps_the_chunks_it_did_not_touch() -> None:
    sections = [f"## Topic {number}\n\n{_lines(9, str(number))}\n" for number in range(40)]
    before = {chunk.text for chunk in chunk_text("".join(sections), tokens=150, overlap=30)}
    sections[20] = "## Topic 20\n\nSomething else entirely.\n\n"
    after = [chunk.text for chunk in chunk_text("".join(sections), tokens=150, overlap=30)]
    assert sum(text not in before for text in after) <= 2


@pytest.mark.parametrize("unit", ["中", "word "])
def test_a_line_of_a_megabyte_loses_nothing(unit: str) -> None:
    text = "start\n" + unit * (1_000_000 // len(unit.encode())) + "\nend"
    chunks = chunk_text(text)
    assert "".join(text[chunk.own_start : chunk.end] for chunk in chunks) == text
    assert all(len(chunk.text.encode()) <= 8191 for chunk in chunks)
    assert {chunk.start_line for chunk in chunks[2:-1]} == {2}
