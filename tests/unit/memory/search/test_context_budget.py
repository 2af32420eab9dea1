"""Part of an answer that goes into a model's context."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from memory.chunking.text_cuts import splits_character, splits_word
from memory.search.searchable import footer, injected
from schemas.search import SearchResult


def result(snippet: str, citation: str | None = "memory/a.md#L1-L9") -> SearchResult:
    return SearchResult(
        path="memory/a.md", start_line=1, end_line=9, score=0.5, snippet=snippet, source="memory", citation=citation
    )


def test_the_lines_of_a_shortened_snippet_are_those_that_are_still_shown():
    lines = [f"This is line number {number} of it." for number in range(5, 9)]
    whole = result("\n" + "\n".join(lines), None).model_copy(update={"snippet_start_line": 4, "snippet_end_line": 8})

    [shown] = injected([whole], max_chars=len("\n".join(lines[:2])))
    assert shown.snippet == "\n".join(lines[:2])
    assert (shown.snippet_start_line, shown.snippet_end_line) == (5, 6)

    talk = whole.model_copy(update={"source": "sessions"})
    [shown] = injected([talk], max_chars=60)
    assert (shown.snippet_start_line, shown.snippet_end_line) == (4, 8), "its lines are messages"


SNIPPETS = st.text(st.sampled_from("ab é\n文件e\u0301👩\u200d🚀"), min_size=1, max_size=120)
RESULTS = st.lists(st.builds(result, SNIPPETS, st.sampled_from([None, "m.md#L1", "memory/long-name.md#L10-L20"])))


@given(results=RESULTS, max_chars=st.integers(40, 400))
def test_the_bound_holds_and_no_citation_is_ever_cut(results, max_chars):
    shown = injected(results, max_chars=max_chars)

    assert sum(len(one.snippet) for one in shown) <= max_chars
    assert bool(shown) == bool(results)
    for place, (one, whole) in enumerate(zip(shown, results, strict=False)):
        text = one.snippet
        if whole.citation is not None and (place > 0 or text.endswith(footer(whole.citation))):
            assert text.endswith(footer(whole.citation))
            text = text.removesuffix(footer(whole.citation))
        stripped = whole.snippet.strip("\r\n").rstrip()
        assert stripped.startswith(text)
        if place < len(shown) - 1:
            assert text == stripped
        elif text != stripped:
            assert not splits_character(stripped, len(text))
            assert not splits_word(stripped, len(text)) or " " not in text
        assert one.model_copy(update={"snippet": whole.snippet}) == whole
