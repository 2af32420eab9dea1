"""Text of the memory for a prompt: sources, budgets, nothing twice, and nothing that is late."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Sequence

import numpy as np
import pytest

from memory.chunking.curated import CuratedBlock, CuratedFile, curated_blocks
from memory.context.injection import (
    MEANT_COSINE,
    REMEMBERED_LINES,
    REMEMBERED_SESSIONS,
    InjectedBlock,
    InjectedSessions,
    found_blocks,
    injected_text,
    standing_blocks,
    triggered_blocks,
    without_hidden_lines,
)
from memory.context.marks import MARK
from memory.search.tools import SearchableMemory
from memory.store.reader import Vector
from schemas.search import GetAnswer, GetRequest, SearchAnswer, SearchRequest, SearchResult
from schemas.sections import Injection

CURATED = [
    *curated_blocks(
        "## Rules\n- Never push on Fridays\n\n# Else\n- Vault <!-- trigger: deploy -->\n", path="MEMORY.md"
    ),
    *curated_blocks("- Metric units <!-- always -->\n", path="USER.md"),
]


class Found(SearchableMemory):
    """Memory with one passage, found after so many seconds."""

    def __init__(self, seconds: float = 0.0, *, transcripts: Sequence[str] = ()) -> None:
        self.seconds = seconds
        self.transcripts = transcripts
        self.path = "memory/a.md"
        self.asked: SearchRequest | None = None

    async def searched(self, request: SearchRequest) -> SearchAnswer:
        self.asked = request
        await asyncio.sleep(self.seconds)
        result = SearchResult(
            path=self.path,
            start_line=3,
            end_line=9,
            score=0.9,
            snippet="y" * 3_000,
            source="memory",
            citation="memory/a.md#L3-L9",
        )
        said = [result.model_copy(update={"path": path, "source": "sessions"}) for path in self.transcripts]
        return SearchAnswer(results=(*said, result))

    def read_file(self, request: GetRequest) -> GetAnswer:
        return GetAnswer(path=request.path)


def test_standing_instructions_have_a_budget_of_their_own() -> None:
    assert [(one.source, one.text) for one in standing_blocks(CURATED, Injection())] == [
        ("MEMORY.md#L1-L3", "## Rules\n- Never push on Fridays"),
        ("USER.md#L1-L1", "- Metric units"),
    ]
    long = curated_blocks("## Rules\n" + "- a rule\n" * 1_000, path="MEMORY.md")
    shown = standing_blocks([*long, *CURATED], Injection(standing_max_chars=500))
    assert [len(one.text) for one in shown] == [500]
    assert standing_blocks(CURATED, Injection(standing_max_chars=0)) == []


NOTES = """
- The vault holds the deploy password <!-- trigger: deploy, 部署 --> <!-- importance: 9 -->
- Ports begin at 7000 <!-- trigger: port, C++ -->
- The café opens at nine <!-- trigger: café -->
- Staging is on Fridays <!-- trigger: deploy, stage --> <!-- importance: 2 -->
- Ask Ada <!-- trigger: deploy -->
- Nothing
"""

#: Prompt, cosines of lines with it, and the lines that it gets.
TRIGGERED: list[tuple[str, dict[str, float], list[str]]] = [
    ("How do I DEPLOY this?", {}, ["vault", "Ada", "Staging"]),
    ("redeployed", {}, []),
    ("我们怎么部署", {}, ["vault"]),
    ("which Port?", {}, ["Ports"]),
    ("written in C++", {}, ["Ports"]),
    ("the cafe", {}, ["café"]),
    ("hello", {}, []),
    ("stage the port of the café in C++ and deploy", {}, ["vault", "Ports", "café"]),
    ("hello", {"Ada": MEANT_COSINE, "Staging": 0.71}, ["Ada"]),
    ("hello", {"Ports": 0.8, "Ada": 0.9, "vault": 0.75}, ["vault", "Ada", "Ports"]),
    ("deploy", {"Ports": 0.9, "café": 0.95}, ["vault", "Ada", "café"]),
]


@pytest.mark.parametrize(("prompt", "near", "found"), TRIGGERED)
def test_a_prompt_gets_at_most_three_lines_by_words_and_meanings_the_most_important_first(
    prompt: str, near: dict[str, float], found: list[str]
) -> None:
    curated = curated_blocks(NOTES, path="MEMORY.md")
    cosines = {one.meaning: near[word] for one in curated for word in near if one.meaning and word in one.text}
    blocks = triggered_blocks(curated, prompt, cosines=cosines)
    assert len(blocks) == len(found)
    assert all(word in block.text and "<!--" not in block.text for word, block in zip(found, blocks, strict=True))


def test_a_search_that_is_in_time_brings_passages_within_their_budget() -> None:
    memory = Found()
    settings = Injection(max_chars=100, max_results=2, min_score=0.5, timeout_ms=10_000)
    blocks = asyncio.run(found_blocks(memory, "the port", settings, session_key="agent:a:main"))
    assert [(one.source, one.text) for one in blocks] == [("memory/a.md#L3-L9", "y" * 100)]
    assert memory.asked == SearchRequest(
        query="the port", max_results=2, min_score=0.5, session_key="agent:a:main", wait_ms=0
    )


def test_a_search_that_is_late_is_left_out() -> None:
    assert asyncio.run(found_blocks(Found(60.0), "the port", Injection(timeout_ms=10), session_key=None)) == []


@pytest.mark.parametrize("path", ["sessions/7f.jsonl", "sessions/rollout-2026-03-04-7f.jsonl", "7f.jsonl.reset.2026"])
def test_a_session_that_is_not_compacted_gets_nothing_of_its_own_transcript(path: str) -> None:
    memory, first, asked = Found(transcripts=(path, "sessions/a7f.jsonl")), [], []
    for session in ("7f", ""):
        found = asyncio.run(found_blocks(memory, "x", Injection(), session_key=None, but_of=session))
        first.append(found[0].source.partition("#")[0])
        assert memory.asked is not None
        asked.append(memory.asked.max_results or 0)
    assert first == ["sessions/a7f.jsonl", path]
    assert asked[0] > asked[1], "others take the places of those that are left out"
    sessions = InjectedSessions()
    sessions.begin("a", "7f")
    sessions.fresh("a", "7f", [])
    assert sessions.holds_all("a", "7f")
    sessions.begin("a", "7f")
    assert not sessions.holds_all("a", "7f")


def passage(text: str, *, path: str = "MEMORY.md") -> InjectedBlock:
    """A passage of a curated file, as an index has it."""
    return InjectedBlock("memory", f"{path}#L1-L9", text, is_indexed=True)


def shown(text: str, now: str, *, given: Sequence[CuratedBlock] = (), repositories: Collection[str] = ()) -> list[str]:
    """Return what a prompt gets of a passage, when its file is `now`."""
    files = {"MEMORY.md": CuratedFile.of(now, path="MEMORY.md")}
    return [one.text for one in without_hidden_lines([passage(text)], files, repositories, given=given)]


def test_a_passage_does_not_repeat_lines_that_come_by_themselves_nor_comments() -> None:
    text = "## Rules\n- Never push on Fridays\n\n# Else\n---\n- Vault <!-- trigger: deploy -->\n- The gateway"
    standing, vault = curated_blocks(text, path="MEMORY.md")
    assert shown(text, text, given=[standing]) == ["# Else\n---\n- Vault\n- The gateway"]
    assert shown(text, text, given=[standing, vault]) == ["# Else\n---\n- The gateway"]
    assert shown("- Vault\n- The gateway", text, given=[vault]) == ["- The gateway"]
    assert shown("# Else\n---\n- Vault", text, given=[vault]) == [], "a heading alone says nothing"
    assert without_hidden_lines(blocks("a"), {}, (), given=()) == blocks("a")


SHOP = "<!-- project: github.com/acme/shop -->"
SECRET = "- The shop pays 300 a day, in advance and by the hour"
BOUND = f"# Notes\n- The gateway\n{SECRET} {SHOP}\n- The end"

#: The file now, while the index has `BOUND` or its line without a mark.
EDITED = {
    "nothing": BOUND,
    "a word": BOUND.replace("300", "400"),
    "its place": f"# Notes\n- The gateway\n- Else\n- The end\n{SECRET} {SHOP}",
    "the mark is on the heading now": f"# Notes\n- The gateway\n- The end\n# Shop {SHOP}\n{SECRET}",
    "the mark is misspelt": BOUND.replace("project:", "projects:"),
    "the line is gone": "# Notes\n- The gateway\n- The end",
    "the line is there a second time": f"{BOUND}\n{SECRET}",
}


@pytest.mark.parametrize("indexed", [BOUND, BOUND.partition(" <!--")[0] + "\n- The end"], ids=["marked", "unmarked"])
@pytest.mark.parametrize("now", EDITED.values(), ids=EDITED)
def test_a_line_of_another_project_is_hidden_whatever_text_the_index_still_has(now: str, indexed: str) -> None:
    assert shown(indexed, now) == ["# Notes\n- The gateway\n- The end"]


def test_a_part_of_a_line_is_shown_only_if_the_line_is() -> None:
    half = SECRET[: len(SECRET) // 2]
    cut = f"gateway\n{half}"
    assert shown(cut, BOUND) == ["gateway"]
    assert shown(cut, BOUND, repositories={"github.com/acme/shop"}) == [cut]
    assert shown(f"{half[5:]}\n- The end", BOUND) == ["- The end"]
    assert shown(half[5:], BOUND) == []
    assert shown(f"- The end\n{half}\n- The end", SECRET) == [], "within a passage, lines are whole"


def test_a_file_that_cannot_be_read_now_has_no_passages() -> None:
    assert without_hidden_lines([passage("- The gateway")], {}, (), given=()) == []


async def results(path: str) -> list[InjectedBlock]:
    """Passages of a search that tells no lines of its snippets, as other backends do."""
    memory = Found()
    memory.path = path
    return await found_blocks(memory, "x", Injection(), session_key=None)


def test_passages_of_curated_files_are_known_by_their_path() -> None:
    [curated], [note] = (asyncio.run(results(path)) for path in ("USER.md", "memory/USER.md"))
    assert (curated.is_indexed, note.is_indexed) == (True, False)


def blocks(*texts: str) -> list[InjectedBlock]:
    return [InjectedBlock("memory", f"memory/{text}.md#L1-L1", text) for text in texts]


def test_a_block_comes_once_in_a_session_until_it_begins_anew() -> None:
    sessions = InjectedSessions()
    assert sessions.fresh("a", "s", blocks("one", "two", "one")) == blocks("one", "two")
    assert sessions.fresh("a", "s", blocks("two", "three")) == blocks("three")
    assert sessions.fresh("a", "other", blocks("two")) == blocks("two")
    assert sessions.fresh("b", "s", blocks("two")) == blocks("two")
    sessions.begin("a", "s")
    assert sessions.fresh("a", "s", blocks("two")) == blocks("two")


def test_sessions_used_last_are_remembered() -> None:
    sessions = InjectedSessions()
    for number in range(REMEMBERED_SESSIONS + 1):
        sessions.fresh("a", str(number), blocks("one"))
    assert sessions.fresh("a", str(REMEMBERED_SESSIONS), blocks("one")) == []
    assert sessions.fresh("a", "0", blocks("one")) == blocks("one")


def test_vectors_of_the_lines_used_last_are_remembered() -> None:
    sessions, looked_up = InjectedSessions(), []

    def look_up(meanings: Sequence[str]) -> dict[str, Vector]:
        looked_up.extend(meanings)
        return {meaning: np.ones(2, np.float32) for meaning in meanings if meaning != "unknown"}

    def vectors(*meanings: str) -> set[str]:
        looked_up.clear()
        return set(sessions.line_vectors("model", meanings, look_up))

    assert (vectors("first", "unknown"), looked_up) == ({"first"}, ["first", "unknown"])
    vectors(*map(str, range(REMEMBERED_LINES - 1)))
    assert (vectors("first", "first"), looked_up) == ({"first"}, [])
    assert (vectors("new"), looked_up) == ({"new"}, ["new"])
    assert (vectors("first", "1"), looked_up) == ({"first", "1"}, []), "both were used after line 0"
    assert (vectors("0"), looked_up) == ({"0"}, ["0"])
    assert set(sessions.line_vectors("other model", ["first"], look_up)) == {"first"}
    assert looked_up == ["0", "first"]


def test_injected_text_is_marked_quoted_and_names_its_sources() -> None:
    text = injected_text([*standing_blocks(CURATED, Injection()), *blocks("one")])
    assert re.findall(rf"<{MARK} kind=\"(\w+)\">", text) == ["standing", "memory"]
    assert "[MEMORY.md#L1-L3]\n## Rules" in text
    assert "no instruction" in text
    assert "[memory/one.md#L1-L1]\none" in text
    assert injected_text([]) == ""
