"""Text of the memory for a prompt: sources, budgets, nothing twice, and nothing that is late."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memory.chunking.curated import CuratedBlock, CuratedFile, curated_blocks
from memory.context.injection import (
    MEANT_COSINE,
    REMEMBERED_LINES,
    REMEMBERED_SESSIONS,
    InjectedBlock,
    InjectedSessions,
    daily_note_block,
    injected_text,
    passage_blocks,
    prompt_results,
    sessions_of,
    standing_blocks,
    triggered_blocks,
    without_hidden_lines,
)
from memory.documents.agent_files import AgentFiles
from memory.documents.note_facts import noted_sessions
from memory.search.searchable import SearchableMemory
from memory.store.reader import Vector
from memory.transcripts.transcript_format import CONTEXT_TAG
from schemas.search import AlsoIn, GetAnswer, GetRequest, SearchAnswer, SearchRequest, SearchResult
from schemas.settings import AgentSettings, Injection

CURATED = [
    *curated_blocks(
        "## Rules\n- Never push on Fridays\n\n# Else\n- Vault <!-- trigger: deploy -->\n", path="MEMORY.md"
    ),
    *curated_blocks("- Metric units <!-- always -->\n", path="USER.md"),
]


class Found(SearchableMemory):
    """Memory with these results, found after so many seconds."""

    def __init__(self, *results: SearchResult, seconds: float = 0.0) -> None:
        self.results = results
        self.seconds = seconds
        self.asked: SearchRequest | None = None

    async def searched(self, request: SearchRequest) -> SearchAnswer:
        self.asked = request
        await asyncio.sleep(self.seconds)
        return SearchAnswer(results=self.results)

    def read_file(self, request: GetRequest) -> GetAnswer:
        return GetAnswer(path=request.path)


def hit(
    path: str, text: str, score: float = 0.9, *, vector: float | None = 0.4, copies: Sequence[str] = ()
) -> SearchResult:
    """A result of a search."""
    return SearchResult(
        path=path,
        start_line=3,
        end_line=9,
        score=score,
        vector_score=vector,
        snippet=text,
        source="sessions" if ".jsonl" in path else "memory",
        citation=f"{path}#L3-L9",
        also_in=AlsoIn(count=len(copies), paths=tuple(copies)) if copies else None,
    )


def texts(*hits: SearchResult, excluded_session: str = "", given: Sequence[str] = (), **settings: Any) -> list[str]:
    """Return the texts of the passages among results, of which only transcripts are of sessions."""
    files = AgentFiles(AgentSettings(id="a", workspace=Path("/nowhere")))
    results = [(one, sessions_of(one, files)) for one in hits]
    return [
        one.text
        for one in passage_blocks(results, Injection(**settings), excluded_session=excluded_session, given=given)
    ]


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
def test_a_prompt_gets_at_most_three_lines_the_most_important_first(
    prompt: str, near: dict[str, float], found: list[str]
) -> None:
    curated = curated_blocks(NOTES, path="MEMORY.md")
    cosines = {one.meaning: near[word] for one in curated for word in near if one.meaning and word in one.text}
    blocks = triggered_blocks(curated, prompt, cosines=cosines)
    assert len(blocks) == len(found)
    assert all(word in block.text and "<!--" not in block.text for word, block in zip(found, blocks, strict=True))


def test_a_search_that_is_in_time_brings_passages_within_their_budget() -> None:
    memory, settings = (
        Found(hit("memory/a.md", "y" * 3_000)),
        Injection(max_chars=100, max_results=2, timeout_ms=10_000),
    )
    results = asyncio.run(prompt_results(memory, "the port of it", settings, session_key="agent:a:main"))
    blocks = passage_blocks([(one, ()) for one in results], settings)
    assert [(one.source, one.text) for one in blocks] == [("memory/a.md#L3-L9", "y" * 100)]
    assert memory.asked is not None
    assert (memory.asked.query, memory.asked.session_key, memory.asked.wait_ms) == ("the port of it", "agent:a:main", 0)


@pytest.mark.parametrize("prompt", ["continue", "please continue", "谢谢", " "])
def test_a_word_alone_is_not_searched(prompt: str) -> None:
    memory = Found(hit("memory/a.md", "one"))
    assert asyncio.run(prompt_results(memory, prompt, Injection(timeout_ms=10_000), session_key=None)) == ()
    for searched in ("FP-131", "gateway port", "网关端口", "where is it"):
        assert asyncio.run(prompt_results(memory, searched, Injection(timeout_ms=10_000), session_key=None))


def test_a_search_that_is_late_is_left_out() -> None:
    memory, settings = Found(hit("memory/a.md", "one"), seconds=60.0), Injection(timeout_ms=10)
    assert asyncio.run(prompt_results(memory, "the gateway port", settings, session_key=None)) == ()


SESSION_7F = [
    "sessions/7f.jsonl",
    "sessions/rollout-2026-03-04-7f.jsonl",
    "sessions/rollout-2026-03-04T10-00-00-7f.jsonl",
    "7f.jsonl.reset.2026-03-04T10-00-00.000Z",
    "7f.jsonl.deleted.2026-03-04T10-00-00.000Z",
    "sessions/7f-topic-12.jsonl",
    "sessions/project/7f/subagents/agent-1.jsonl",
]


@pytest.mark.parametrize("path", SESSION_7F)
def test_a_session_that_is_not_compacted_gets_nothing_of_its_own_transcript(path: str) -> None:
    others = hit("sessions/a7f.jsonl", "other"), hit("memory/a.md", "note")
    assert texts(hit(path, "said"), *others, excluded_session="7f") == ["other", "note"]
    copied = hit("sessions/a7f.jsonl", "said", copies=["sessions/b.jsonl", path])
    assert texts(copied, others[1], excluded_session="7f") == ["note"], "it holds the same words itself"
    assert texts(hit(path, "said"), *others) == ["said", "other", "note"]
    archived = hit("sessions/7f.jsonl.reset.2026-01-01T10-00-00.000Z", "said", 0.95)
    assert texts(archived, hit(path, "answered"), others[0], max_results=2) == ["said", "other"], "it has one passage"


NOTE = """- Session: 7f
- Program: claude-code
- Transcript: sessions/7f.jsonl

# Session: 2026-03-04 11:00

- **Session Key**: agent:main:main
- **Session ID**: 8e

user: hello
"""


def test_lines_of_a_note_are_of_the_session_named_above_them_or_in_them() -> None:
    assert [noted_sessions(NOTE, *lines) for lines in ((4, 5), (4, 9), (9, 10), (1, 1))] == [
        {"7f"},
        {"7f", "8e"},
        {"8e"},
        {"7f"},
    ]
    assert noted_sessions("- A session: x\nSession: y\n", 1, 3) == set()


def test_a_curated_file_has_a_place_before_better_passages() -> None:
    better = [hit(f"memory/{name}.md", name) for name in ("one", "two", "three", "four")]
    curated = hit("MEMORY.md", "20001", 0.55), hit("USER.md", "Ada", 0.52)
    assert texts(*better, *curated) == ["20001", "one", "two"]
    assert texts(*better, hit("MEMORY.md", "20001", 0.4)) == ["one", "two", "three"], "it does not match"


def test_a_text_comes_once() -> None:
    hits = hit("memory/a.md", "The port\n  is 1"), hit("memory/b.md", "The port is 1"), hit("memory/c.md", "port")
    assert texts(*hits, hit("memory/d.md", "Now: The port is 1 \n")) == ["The port\n  is 1"]
    assert texts(*hits, given=["Rules\nThe  port is 1"]) == []
    assert texts(*hits[:1], given=["port"]) == ["The port\n  is 1"], "a rule may be a part of a passage"
    assert texts(hit("memory/a.md", "The port is 1"), hit("MEMORY.md", "port is 1", 0.6)) == ["port is 1"]


def test_passages_with_little_confidence_are_left_out() -> None:
    assert texts(hit("memory/a.md", "one", 0.6), hit("memory/b.md", "two", 0.49)) == ["one"]
    assert texts(hit("memory/a.md", "one", 0.9), hit("memory/b.md", "two", 0.6)) == ["one"], "far below the best"
    by_words = [hit(f"memory/{share}.md", str(share), share, vector=None) for share in (0.4, 0.3, 0.29, 0.25)]
    assert texts(*by_words) == ["0.4", "0.3"]
    assert texts(*by_words, min_score=0.0, max_results=9) == ["0.4", "0.3", "0.29", "0.25"]


def test_a_sessions_context_holds_all_of_it_until_it_is_compacted() -> None:
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


def test_passages_of_curated_files_are_known_by_their_path() -> None:
    hits = hit("USER.md", "one"), hit("memory/USER.md", "two")
    assert [one.is_indexed for one in passage_blocks([(one, ()) for one in hits], Injection())] == [True, False]


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


def test_a_block_with_other_white_space_is_the_same() -> None:
    assert InjectedSessions().fresh("a", "s", blocks("one two", "one\n two")) == blocks("one\n two")


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
    assert re.findall(rf"<{CONTEXT_TAG} kind=\"(\w+)\">", text) == ["standing", "memory"]
    assert "[MEMORY.md#L1-L3]\n## Rules" in text
    assert "no instruction" in text
    assert "[memory/one.md#L1-L1]\none" in text
    assert injected_text([]) == ""


def test_a_daily_note_is_cut_to_its_end_and_says_so() -> None:
    lines = [f"- entry {number:03}" for number in range(100)]
    block = daily_note_block("\n".join([*lines, "", ""]), "memory/2026-11-22.md", max_chars=200)
    notice, *rest = block.text.split("\n")
    assert ("memory/2026-11-22.md is cut here: 1199 characters" in notice, len(block.text)) == (True, 200)
    assert rest[1:] == lines[-len(rest) + 1 :]
    assert block.source == f"memory/2026-11-22.md#L{101 - len(rest)}-L100"
    whole = daily_note_block("- one\n- two\n", "memory/2026-11-22.md", max_chars=200)
    assert (whole.source, whole.text) == ("memory/2026-11-22.md#L1-L2", "- one\n- two")
