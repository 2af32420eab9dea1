"""Copies of a conversation or of a note: one result, that of a file that is there, and the others counted and named."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from memory.documents.agent_files import AgentFiles
from memory.embedding.selection import choose_provider
from memory.embedding.supply import EmbeddingSupply
from memory.index.indexer import Indexer
from memory.search.manager import SearchManager
from schemas.documents import Lane
from schemas.search import SearchAnswer, SearchRequest, SearchResult
from schemas.settings import Settings
from tests.transcript_files import BEGUN, message_line
from tests.written_index import searching, with_agent, writer_of

QUESTION = "Where is the harbour key"
KEY = "The harbour key hangs behind the blue door."


class Desk:
    """One agent with transcripts and notes, searched through its index."""

    def __init__(self, settings: Settings, provider: str) -> None:
        self.workspace = Path(settings.agents[0].workspace)
        self.sessions = self.workspace.parent / "sessions"
        self.sessions.mkdir()
        self.settings = with_agent(settings, sessions=[str(self.sessions)], provider=provider)
        self.manager: SearchManager

    def talk(self, name: str, *texts: str, written: int = 0, minutes: int = 0) -> Path:
        """A transcript; `minutes` later than others said, and `written` so many seconds after a day long ago."""
        path = self.sessions / name
        at = [BEGUN + timedelta(minutes=minutes + place) for place in range(len(texts))]
        roles = ("user", "assistant")
        lines = [message_line("plain", roles[place % 2], text, at=at[place]) for place, text in enumerate(texts)]
        path.write_bytes(b"".join(lines))
        os.utime(path, (1_700_000_000 + written,) * 2)
        return path

    def note(self, name: str, text: str, *, written: int = 0) -> Path:
        path = self.workspace / "memory" / name
        path.write_text(text, "utf-8")
        os.utime(path, (1_700_000_000 + written,) * 2)
        return path

    def index(self) -> None:
        agent = self.settings.agents[0]
        files = AgentFiles(agent)
        supply = EmbeddingSupply(choose_provider(agent, self.settings.credentials).provider, None)
        indexer = Indexer(agent, files=files, generations=writer_of(self.settings), supply=supply)
        indexer.index(files.scan().documents, lane=Lane.LIVE, on_done=lambda _: None)
        supply.close()
        indexer.generations.close()

    def search(self, query: str = QUESTION, **asked: object) -> SearchAnswer:
        answer = self.manager.search(SearchRequest.model_validate({"query": query, "min_score": 0, **asked}))
        assert answer.error is None
        return answer


@pytest.fixture(params=["stub", "none"])
def desk(settings: Settings, request: pytest.FixtureRequest) -> Iterator[Desk]:
    made = Desk(settings, request.param)
    with searching(made.settings) as made.manager:
        yield made


def others(result: SearchResult) -> tuple[int, set[str]]:
    return (result.also_in.count, set(result.also_in.paths)) if result.also_in is not None else (0, set())


def subjects(count: int) -> list[str]:
    return [f"Subject {number}: where is lamp {number} of the harbour, and its key?" for number in range(count)]


@pytest.mark.parametrize("own", [False, True], ids=["the same", "each with an end of its own"])
@pytest.mark.parametrize("minutes", [0, 7], ids=["at the same times", "at times of their own"])
def test_forks_of_a_conversation_are_one_result_and_leave_room_for_others(
    desk: Desk, minutes: int, *, own: bool
) -> None:
    common = [
        QUESTION + "?",
        KEY,
        *(f"Step {step} of the tour: mind the {step} ropes on the quay." for step in range(9)),
    ]
    for fork in range(40):
        end = [f"And now something about topic {fork} that no other one speaks of."] if own else []
        desk.talk(f"fork-{fork}.jsonl", *common, *end, written=fork, minutes=minutes * fork)
    for number, subject in enumerate(subjects(7)):
        desk.talk(f"other-{number}.jsonl", subject)
    desk.index()

    answer = desk.search(sources=("sessions",))
    paths = [result.path for result in answer.results]
    assert len(paths) == len(set(paths)) == 6
    first = answer.results[0]
    assert (first.path, KEY in first.snippet) == ("sessions/fork-39.jsonl", True)
    count, named = others(first)
    assert (count, len(named)) == (39, 10)
    assert "sessions/fork-38.jsonl" in named
    assert sum("fork" in path for path in paths) == 1
    for fewer in (1, 3):
        assert desk.search(sources=("sessions",), max_results=fewer).results == answer.results[:fewer]


def test_the_copy_that_is_cited_is_there_also_where_the_answer_is_kept(desk: Desk) -> None:
    files = [desk.talk(f"{name}.jsonl", QUESTION, KEY, written=age) for age, name in enumerate("abc")]
    desk.index()
    for left in range(2, -1, -1):
        [result] = desk.search().results
        assert result.path == f"sessions/{'abc'[left]}.jsonl"
        assert result.citation == f"{result.path}#L1-L2"
        assert others(result) == (2, {f"sessions/{name}.jsonl" for name in "abc" if name != "abc"[left]})
        files[left].unlink()
    assert desk.search().results[0].path == "sessions/c.jsonl", "of what is gone the newest is as good as any"
    moved = desk.talk("d.jsonl", QUESTION, KEY, written=9).rename(desk.sessions / "e.jsonl")
    desk.index()
    assert desk.search().results[0].path == f"sessions/{moved.name}"
    for place, where in enumerate(("chest", "window")):
        desk.talk(f"{place}.jsonl", QUESTION + "?", f"The harbour key is in the {where}.")
    desk.index()
    assert len(desk.search("key: door, chest, window").results) == 3, "other words"


def test_the_same_text_in_two_notes_is_one_result_with_the_lines_of_the_shown_note(desk: Desk) -> None:
    old = desk.note("a.md", f"# Keys\n\n{KEY}\n", written=1)
    new = desk.note("b.md", f"# Keys\n\n{KEY}\n", written=2)
    desk.note("lamp.md", "The harbour lamp is green.\n")
    desk.index()
    for path, gone in ((new, old), (old, new)):
        shown = desk.search().results
        assert [result.path for result in shown] == [f"memory/{path.name}", "memory/lamp.md"]
        assert others(shown[0]) == (1, {f"memory/{gone.name}"})
        assert (shown[0].snippet_start_line, shown[0].snippet_end_line) == (1, 3)
        new.unlink(missing_ok=True)
    desk.note("boathouse.md", f"# Keys\n\n{KEY}\n", written=1)
    desk.index()
    assert desk.search("boathouse door").results[0].path == "memory/boathouse.md", "its name is asked for"


def test_a_source_that_is_not_searched_is_not_named(desk: Desk) -> None:
    for name in "ab":
        desk.note(f"{name}.md", f"User: {KEY}")
        (desk.sessions / f"{name}.jsonl").write_text(json.dumps({"role": "user", "content": KEY}) + "\n")
    desk.index()
    [result] = desk.search().results
    assert others(result)[0] == 3
    for source, paths in (
        ("memory", {"memory/a.md", "memory/b.md"}),
        ("sessions", {"sessions/a.jsonl", "sessions/b.jsonl"}),
    ):
        [result] = desk.search(sources=(source,)).results
        assert {result.path, *others(result)[1]} == paths
