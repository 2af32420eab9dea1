"""Prefixes by model family: sent on both sides, part of the identity, and never paid for without a person's word."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recalld.settings.load import load
from schemas.conditions import ConditionCode
from tests.commanding import CommandLine
from tests.embedding_server import EmbeddingServer
from tests.quiet_board import QuietBoard
from tests.serving import running

QUERY, DOCUMENT = "search_query: ", "search_document: "
KEPT = 'query_prefix = ""\ndocument_prefix = ""\n'

Write = Callable[[str], None]


@pytest.fixture
def configure(workspace: Path, server: EmbeddingServer) -> Write:
    """Write the settings of an agent with nomic's model, and more of them; and two notes."""
    (workspace / "MEMORY.md").write_text("The heron stands in the reeds.\n", "utf-8")
    (workspace / "memory" / "otter.md").write_text("The otter swims in the brook.\n", "utf-8")

    def write(more: str) -> None:
        (workspace.parent / "recalld.toml").write_text(
            f'provider = "openai-compatible"\nmodel = "nomic-embed-text"\n{more}'
            f'remote.base_url = "{server.url}"\n[[agents]]\nid = "main"\nworkspace = "{workspace}"\n'
        )

    return write


def identity(status: dict[str, Any]) -> dict[str, str]:
    return dict(json.loads(json.loads(status["index"]["identity"])["embedding"]))


def asked(home: Path, server: EmbeddingServer, words: str) -> str:
    """Return what a search of the service sent."""
    before = server.requests
    settings = load(home=str(home)).settings
    with running(settings, QuietBoard()) as service:
        answer = service.post("/v1/search", json={"query": words}).json()
    assert answer["mode"] == "hybrid"
    (sent,) = server.log[before].inputs
    return sent


def test_a_new_index_has_them_on_both_sides_and_shows_none(
    commands: CommandLine, configure: Write, server: EmbeddingServer, home: Path
) -> None:
    configure("")
    done = commands.agent("index")
    assert (done["advice"], done["vectorsReady"]) == (None, 2)
    assert server.texts == {f"{DOCUMENT}The heron stands in the reeds.\n", f"{DOCUMENT}The otter swims in the brook.\n"}
    assert asked(home, server, "a bird in the reeds") == f"{QUERY}a bird in the reeds"
    found = commands.json("search", "heron")["results"][0]
    assert DOCUMENT not in found["snippet"]
    made = identity(commands.agent("status"))
    assert (made["query_prefix"], made["document_prefix"]) == (QUERY, DOCUMENT)


def test_an_index_without_them_goes_on_for_nothing_until_a_person_rebuilds_it(
    commands: CommandLine, configure: Write, server: EmbeddingServer, workspace: Path, home: Path
) -> None:
    configure(KEPT)
    assert commands.agent("index")["advice"] is None
    before = commands.agent("status")
    assert identity(before).keys() == {"base_url", "model", "provider"}, "as every version before made it"
    assert before.get("advice", []) == []

    # What its owner has who never heard of prefixes.
    configure("")
    paid = server.inputs
    assert commands.agent("index")["advice"] == ConditionCode.PREFIXES_MISSING
    status = commands.agent("status")
    assert server.inputs == paid
    assert (status["ok"], [one["code"] for one in status["advice"]]) == (True, [ConditionCode.PREFIXES_MISSING])
    assert status["index"]["identity"] == before["index"]["identity"]
    assert asked(home, server, "a bird in the reeds") == "a bird in the reeds"
    (workspace / "memory" / "fox.md").write_text("The fox sleeps.\n", "utf-8")
    commands.agent("index")
    assert "The fox sleeps.\n" in server.texts
    assert commands.agent("index", "--dry-run")["toEmbed"] == 0

    # The two ways on: to keep it for good, and to rebuild it.
    configure(KEPT)
    assert commands.agent("index")["advice"] is None
    configure("")
    paid = server.inputs
    assert commands.agent("rebuild", "--dry-run")["toEmbed"] == 3
    assert server.inputs == paid
    done = commands.agent("rebuild")
    assert (done["advice"], done["vectorsReady"], server.inputs - paid) == (None, 3, 3)
    assert f"{DOCUMENT}The fox sleeps.\n" in server.texts
    assert asked(home, server, "a bird in the reeds") == f"{QUERY}a bird in the reeds"
    assert commands.agent("status").get("advice", []) == []
    paid = server.inputs
    commands.agent("index")
    assert server.inputs == paid


def test_a_chunk_leaves_room_for_its_prefix(
    commands: CommandLine, configure: Write, server: EmbeddingServer, workspace: Path
) -> None:
    configure('document_prefix = "' + "p" * 4000 + ' "\nchunking.tokens = 8000\n')
    (workspace / "memory" / "long.md").write_text("水獭在小溪里游泳\n" * 2000, "utf-8")
    commands.agent("index")
    assert 7000 < max(len(text.encode()) for text in server.texts) <= 8191
