"""The report of an agent's context counts what models would read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest

from memory.chunking.chunker import estimate_tokens
from memory.context.agent_context import AgentContext
from memory.context.injection import InjectedSessions
from memory.search.searchable import SearchableMemory
from memory.store.reader import StoreReader
from schemas.documents import DocumentKey, Lane
from schemas.settings import Settings
from tests.indexing import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path) as made:
        yield made


def test_a_transcript_counts_with_its_words_and_not_with_its_bytes(world: World, home: Path) -> None:
    words = "The gateway listens on port 18789."
    message = {"role": "user", "content": words, "id": "x" * 4000, "timestamp": "2026-02-03T09:00:00Z"}
    (world.sessions / "a.jsonl").write_text(json.dumps(message) + "\n", "utf-8")
    indexer = world.indexer()
    indexer.index([DocumentKey("sessions", "sessions/a.jsonl")], lane=Lane.LIVE, on_done=lambda _: None)

    @contextmanager
    def reading() -> Iterator[StoreReader | None]:
        yield indexer.target()

    agent = indexer.agent
    context = AgentContext(
        Settings(home=home, agents=(agent,)),
        agent,
        cast("SearchableMemory", None),
        cast("InjectedSessions", None),
        reading=reading,
    )
    [document] = context.report().indexed
    assert document.bytes > 4000
    assert estimate_tokens(words) <= document.tokens < 4 * estimate_tokens(words)
