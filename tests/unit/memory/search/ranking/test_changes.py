"""Newer statements of a fact before older ones, and curated lines before conversations that repeat an old value."""

from __future__ import annotations

import re
import zlib
from dataclasses import replace

import numpy as np
import pytest

from memory.search.ranking.ranker import SearchParameters, ranked
from memory.store.reader import SentenceSigns, Vector
from memory.transcripts.packing import packed_sentences
from schemas.settings import Hybrid
from tests.storing import TemporaryStore, document, key, text_hash, vector

DAY, NOW = 86_400, 1_790_000_000.0
PORT = "Which port does the staging gateway listen on?"
OLD = "- The staging gateway listens on port 8080, as the laptops do."
NEW = "- Since the audit the staging gateway answers on a high port, 18443 that is."
MOVED = "- Security had the gateway of staging moved to 8443 in the afternoon."
OTHER = "- The port of the database is closed from outside, and the alert came two days late."
CURATED = "- Staging gateway: port 18443.\n- Billing is done by Priya.\n- Editor: light theme."


def meaning(text: str) -> Vector:
    """Return a unit vector in which words in common are nearness."""
    words = {re.sub("(?:ing|ed|s|y)$", "", word) for word in re.findall("[a-z]{4,}|[0-9]+", text.lower())} or {""}
    total = np.sum([vector(zlib.crc32(word.encode()), 512) for word in sorted(words)], axis=0)
    return np.asarray(total / np.linalg.norm(total), dtype=np.float32)


def paths(
    query: str, notes: dict[str, str], talks: dict[str, str] | None = None, *, by_words: bool = False
) -> list[str]:
    """Return the paths of the hits of a query, best first. Talks are of the last days, the first of today."""
    store, chunks = TemporaryStore(), {}
    texts = {key(path): text for path, text in notes.items()}
    texts |= {key(path, "sessions"): text for path, text in (talks or {}).items()}
    for number, (name, text) in enumerate(texts.items()):
        write = document(name, text, vectors=[None if by_words else meaning(text)])
        said_at = NOW - (number - len(notes)) * DAY if name.is_transcript else None
        store.write([replace(write, added=(replace(write.added[0], said_at=said_at),))])
        sentences, is_users = zip(*packed_sentences(text, is_transcript=name.is_transcript), strict=True)
        if not by_words:
            store.add_sentences({text_hash(text): SentenceSigns.of(np.stack(list(map(meaning, sentences))), is_users)})
        chunks[store.chunks_of(name)[0].id] = meaning(text)
    asked = meaning(query)
    cosines = {} if by_words else {id_: float(of_chunk @ asked) for id_, of_chunk in chunks.items()}
    parameters = SearchParameters(query, 10, 0.0, ("memory", "sessions"), Hybrid(), now=NOW)
    hits, _ = ranked(
        store,
        parameters,
        cosines,
        store.text_scores(query, list(chunks)),
        model="stub",
        vector=None if by_words else asked,
    )
    return [row.key.path for _, row in hits]


NOTES = {"memory/2026-03-01.md": OLD, "memory/2026-03-09.md": NEW, "memory/2026-03-20.md": OTHER}


@pytest.mark.parametrize("query", [PORT, "What did we decide about the port of the staging gateway?"])
def test_a_question_for_a_value_finds_its_newest_statement_first(query: str) -> None:
    assert paths(query, NOTES)[:2] == ["memory/2026-03-09.md", "memory/2026-03-01.md"]


@pytest.mark.parametrize(
    "query",
    [
        "On which port did the staging gateway listen, as the laptops do?",
        "Why does the staging gateway listen on that port?",
    ],
)
def test_a_question_for_the_past_or_for_a_reason_keeps_the_order(query: str) -> None:
    assert paths(query, NOTES)[0] == "memory/2026-03-01.md"


def test_a_statement_in_other_words_is_linked_by_one_before_it() -> None:
    notes = NOTES | {"memory/2026-03-15.md": MOVED}
    assert paths(PORT, notes)[:3] == ["memory/2026-03-15.md", "memory/2026-03-09.md", "memory/2026-03-01.md"]


def test_an_undated_note_keeps_its_place() -> None:
    notes = {"memory/gateway.md": OLD, "memory/2026-03-09.md": NEW, "memory/2026-03-20.md": OTHER}
    assert paths(PORT, notes)[0] == "memory/gateway.md"


def test_a_subject_of_many_notes_keeps_its_order() -> None:
    notes = {f"memory/2026-03-{day:02}.md": f"{OLD} Seen on {day} machines." for day in range(1, 8)}
    by_time = sorted(notes, reverse=True)
    assert paths(PORT, dict(list(notes.items())[:5]))[:5] == by_time[2:]
    assert paths(PORT, notes) != by_time


def test_chats_without_notes_keep_their_order() -> None:
    talks = {"sessions/new.jsonl": f"User: {NEW}", "sessions/old.jsonl": f"User: {OLD}"}
    assert paths(PORT, {}, talks)[0] == "sessions/old.jsonl"


@pytest.mark.parametrize(("curated", "by_words"), [(CURATED, False), ("- Staging port: 18443.\n", True)])
def test_memory_md_comes_before_conversations_that_repeat_an_old_value(curated: str, by_words: bool) -> None:
    answer = f"User: {PORT}\nAssistant: The staging gateway listens on port 8080."
    talks = {f"sessions/{name}.jsonl": answer for name in "abc"}
    notes = {
        f"memory/{word}.md": f"- Something about the {word} that listens." for word in ("cat", "dog", "owl", "hen")
    }
    assert paths(PORT, {"MEMORY.md": curated} | notes, talks, by_words=by_words)[0] == "MEMORY.md"


def test_a_line_of_memory_md_on_something_else_stays_behind() -> None:
    notes = {"memory/2026-03-01.md": OLD, "MEMORY.md": "- The gateway of the city museum opens at nine on Sundays.\n"}
    assert paths(PORT, notes)[0] == "memory/2026-03-01.md"
