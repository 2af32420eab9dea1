"""Notes and transcripts are found by their own names, whatever else a memory holds."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from memory.search.manager import SearchManager
from schemas.documents import SESSIONS_SOURCE, DocumentKey
from schemas.search import SearchRequest
from schemas.settings import Settings
from tests.storing import document
from tests.written_index import searching, with_agent, write_index

ROLLOUT = "0199d2e5-7c11-7a52-8f0e-7d3a52e1c9aa"
SESSION = "4b7d5d0c-6f0e-4c35-9e7e-2f6a1d1c8b55"
TRANSCRIPTS = (f"sessions/main/{SESSION}.jsonl", f"sessions/main/rollout-2026-03-01T10-20-30-{ROLLOUT}.jsonl")
NOTES = {
    "MEMORY.md": "The server is called Basalt.",
    "memory/people/team.md": "# People\n\nAnna leads.\n" + "\n".join(f"Line {n} of filler." for n in range(300)),
    "memory/archive/team.md": "Former colleagues: Carla.",
    "memory/2026-03-01.md": "Rain all day.",
    "memory/plan.md": "Buy paint for the fence.",
    "memory/meeting with bob.md": "Budget was cut.",
    "memory/Größe.md": "Shoes: 43.",
    "memory/ПЛАН.md": "Купить краску.",
    "memory/about-names.md": "The team said: read MEMORY.md and team.md and 2026-03-01.md, the team plan, team, team.",
    "memory/migration.md": "The plan for the database migration is to do it on Friday.",
}


@pytest.fixture
def notes(workspace: Path) -> Path:
    for name, text in NOTES.items():
        note = workspace / name
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(f"{text}\n", "utf-8")
    return workspace


@pytest.fixture(params=["hybrid", "reference formula", "aged and varied", "keywords alone"])
def configured(request: pytest.FixtureRequest, settings: Settings) -> Settings:
    changes: dict[str, dict[str, Any]] = {
        "hybrid": {},
        "reference formula": {"query": {"hybrid": {"fusion": "weighted"}}},
        "aged and varied": {
            "query": {"hybrid": {"mmr": {"enabled": True}, "temporal_decay": {"enabled": True, "half_life_days": 1}}}
        },
        "keywords alone": {"provider": "none"},
    }
    return with_agent(settings, **changes[request.param])


def write_transcripts(settings: Settings) -> None:
    store = write_index(settings)
    for path in TRANSCRIPTS:
        store.write([document(DocumentKey(SESSIONS_SOURCE, path), f"user: something that was said in {len(path)}")])


def first(manager: SearchManager, query: str, **request: Any) -> str | None:
    results = manager.search(SearchRequest(query=query, **request)).results
    return results[0].path if results else None


TEAM, FORMER, DAY = "memory/people/team.md", "memory/archive/team.md", "memory/2026-03-01.md"
NAMES = {
    "MEMORY.md": ["MEMORY.md", "memory.md", "MEMORY"],
    TEAM: [TEAM, "people/team.md", "People/TEAM.md", f"{TEAM}#L1-L3", f"`{TEAM}`", f"/srv/space/{TEAM}"],
    FORMER: [FORMER, "archive/team", f"./{FORMER}"],
    DAY: ["2026-03-01.md", "2026-03-01"],
    "memory/plan.md": ["plan", "Plan.md"],
    "memory/meeting with bob.md": ["meeting with bob", "Meeting with Bob.md"],
    "memory/Größe.md": ["größe", "Gro\u0308ße.md", "is there anything about shoes in Größe.md"],
    "memory/ПЛАН.md": ["план.md"],
}


@pytest.mark.parametrize(("query", "path"), [(query, path) for path, queries in NAMES.items() for query in queries])
def test_a_note_comes_first_when_its_name_is_asked_for(
    configured: Settings, notes: Path, query: str, path: str
) -> None:
    write_index(configured)
    with searching(configured) as manager:
        results = manager.search(SearchRequest(query=query)).results
        assert results[0].path == path
        assert results[0].score == 1.0
        assert all(above.score >= below.score for above, below in pairwise(results))


@pytest.mark.parametrize("query", ["team", "team.md", "TEAM.MD"])
def test_every_note_of_a_name_comes_before_notes_that_say_it(configured: Settings, notes: Path, query: str) -> None:
    write_index(configured)
    with searching(configured) as manager:
        results = manager.search(SearchRequest(query=query)).results
        assert {result.path for result in results[:2]} == {"memory/people/team.md", "memory/archive/team.md"}
        assert [result.start_line for result in results[:2]] == [1, 1]


@pytest.mark.parametrize("path", TRANSCRIPTS)
def test_a_transcript_is_found_by_its_name_and_by_its_id(settings: Settings, notes: Path, path: str) -> None:
    both = with_agent(settings, sources=["memory", "sessions"])
    write_transcripts(both)
    name = path.rpartition("/")[2]
    with searching(both) as manager:
        for query in (path, name, name.removesuffix(".jsonl"), name[-42:-6].upper()):
            assert first(manager, query) == path
            assert first(manager, query, sources=("memory",)) != path


@pytest.mark.parametrize("query", ["what is the plan for the database migration", "database migration plan"])
def test_a_longer_question_is_not_about_a_note_that_is_called_like_one_of_its_words(
    configured: Settings, notes: Path, query: str
) -> None:
    write_index(configured)
    with searching(configured) as manager:
        assert first(manager, query) == "memory/migration.md"
