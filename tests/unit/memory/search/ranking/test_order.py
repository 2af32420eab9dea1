"""Changes before the older state, and the curated line before conversations that repeat the old one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memory.search.ranking.ranker import SearchParameters, ranked
from schemas.settings import Hybrid
from tests.storing import TemporaryStore, document, key

DAY, NOW = 86_400, 1_790_000_000.0
PORT = "Which port does the staging gateway listen on?"
OLD = "- The staging gateway listens on port 8080."
CHANGED = "- The gateway of staging was moved to 8443."
REMARK = "- The staging gateway logged 40 requests on its port."


def paths(query: str, notes: dict[str, str], talks: dict[str, str] | None = None) -> list[str]:
    """Return the paths of the hits of a query, best first. Talks are of the last days."""
    store, keys = TemporaryStore(), []
    for path, text in notes.items():
        keys.append(key(path))
        store.write([document(keys[-1], text)])
    for age, (path, text) in enumerate((talks or {}).items()):
        talk = document(key(path, "sessions"), text)
        keys.append(talk.key)
        store.write([replace(talk, added=(replace(talk.added[0], said_at=NOW - age * DAY),))])
    ids = [store.chunks_of(name)[0].id for name in keys]
    parameters = SearchParameters(query, 10, 0.0, ("memory", "sessions"), Hybrid(), now=NOW)
    hits, _ = ranked(store, parameters, {}, store.text_scores(query, ids), model="stub")
    return [row.key.path for _, row in hits]


NOTES = {"memory/2026-03-01.md": OLD, "memory/2026-03-09.md": CHANGED, "memory/2026-03-20.md": REMARK}


def test_a_question_for_a_value_finds_its_change_first() -> None:
    assert paths(PORT, NOTES)[0] == "memory/2026-03-09.md"


@pytest.mark.parametrize(
    "query", ["When did the staging gateway first listen on a port?", "staging gateway port listen"]
)
def test_a_question_for_the_past_keeps_the_order(query: str) -> None:
    assert paths(query, NOTES)[0] != "memory/2026-03-09.md"


def test_the_later_of_two_changes_comes_first() -> None:
    notes = NOTES | {"memory/2026-03-30.md": "- Staging's gateway was switched to 18443 by the security team."}
    assert paths(PORT, notes)[:2] == ["memory/2026-03-30.md", "memory/2026-03-09.md"]


def test_a_change_of_something_else_stays_behind() -> None:
    notes = {"memory/2026-03-01.md": OLD, "memory/2026-03-09.md": "- The port of the database was moved."}
    assert paths(PORT, notes)[0] == "memory/2026-03-01.md"


def test_memory_md_comes_before_conversations_that_repeat_an_old_value() -> None:
    answer = f"User: {PORT}\nAssistant: The staging gateway listens on port 8080."
    curated = {"MEMORY.md": "- Staging gateway: port 18443.\n- Billing: Priya.\n- Editor: light theme."}
    assert paths(PORT, curated, {f"sessions/{name}.jsonl": answer for name in "abc"})[0] == "MEMORY.md"


def test_chats_without_notes_keep_their_order() -> None:
    talks = {"sessions/new.jsonl": f"User: {CHANGED}", "sessions/old.jsonl": f"User: {OLD}"}
    assert paths(PORT, {}, talks)[0] == "sessions/old.jsonl"


def test_of_two_statements_without_a_word_of_change_the_later_comes_first() -> None:
    later = {"memory/2026-03-09.md": "- Since the audit the staging gateway listens on a high port, 18443 that is."}
    assert paths(PORT, {"memory/2026-03-01.md": OLD} | later)[0] == "memory/2026-03-09.md"
