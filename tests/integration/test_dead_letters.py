"""Documents that failed, from the endpoint's refusal to the command that tries again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from recalld.settings.load import load
from schemas.documents import DocumentKey
from schemas.settings import Settings
from schemas.status import IndexCounts
from tests.commanding import CommandLine
from tests.embedding_server import EmbeddingServer
from tests.waiting import wait_until
from tests.working import Workers, asking
from tests.written_index import reading, write_index

FINE = "# Fine\n\n" + "harmless words " * 100
BAD = "# Bad\n\n" + "arsenic words " * 100
TALL = "# Last\n\n" + "giraffe words " * 100


@pytest.fixture
def server() -> Iterator[EmbeddingServer]:
    with EmbeddingServer(poison="arsenic") as running:
        yield running


@pytest.fixture
def commands(commands: CommandLine, workspace: Path) -> CommandLine:
    (workspace / "memory" / "mixed.md").write_text(f"{FINE}\n\n{BAD}\n\n{TALL}\n")
    (workspace / "memory" / "good.md").write_text("Nothing wrong here.\n")
    return commands


def indexed(commands: CommandLine) -> tuple[int, int]:
    """Run `recalld index`: its exit code, and how many letters are listed then."""
    code, _, _ = commands.run("index", "--json")
    return code, len(commands.json("dead", "list")["deadLetters"])


def test_a_refused_part_of_a_note_is_listed_with_its_lines_and_the_rest_is_found(commands: CommandLine) -> None:
    assert indexed(commands) == (1, 1)
    [letter] = commands.json("dead", "list")["deadLetters"]
    assert (letter["agent"], letter["path"], letter["errorClass"]) == ("main", "memory/mixed.md", "EmbeddingRefused")
    assert letter["reason"].startswith("lines 5-")
    assert "HTTP 400" in letter["reason"]
    assert "arsenic" not in letter["reason"], "a letter holds no text of the memory"
    assert counts(commands.home) == (4, 3, 0, 1)
    for word in ("arsenic", "giraffe", "harmless"):
        assert "memory/mixed.md" in commands.say("search", word)

    shown = commands.json("dead", "show", "memory/mixed.md")
    assert [(one["startLine"], one["reason"]) for one in shown["refused"]] == [(5, letter["reason"].partition(": ")[2])]
    assert shown["indexed"]["size"] > 0
    for command in (["show", "memory/mixed.md"], ["list"]):
        assert "memory/mixed.md" in commands.say("dead", *command)


def test_a_retry_without_a_daemon_is_done_by_the_next_run(commands: CommandLine, server: EmbeddingServer) -> None:
    assert indexed(commands) == (1, 1)
    commands.say("dead", "retry", "memory/mixed.md")
    assert commands.json("dead", "list") == {"deadLetters": []}
    assert counts(commands.home) == (4, 3, 1, 0)

    server.poison = None
    paid = server.inputs
    assert indexed(commands) == (0, 0)
    assert server.inputs - paid == 1
    assert counts(commands.home) == (4, 4, 0, 0)


def test_another_key_is_asked_by_itself_and_what_it_accepts_ends_the_letter(
    commands: CommandLine, home: Path, settings: Settings, broker_server: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Housekeeping between the refusal and the entry of its account would ask once more: there is none before the entry.
    monkeypatch.setattr("workers.maintenance.SWEEP_SECONDS", 3600.0)
    with Workers(asking(settings, commands.server.url)) as workers:
        workers.mark("memory/mixed.md", "memory/good.md")
        wait_until(lambda: counts(home) == (4, 3, 0, 1))
        wait_until(lambda: meta(home, "account") is not None)
        assert len(commands.json("dead", "list")["deadLetters"]) == 1
    commands.server.poison = None
    paid = commands.server.inputs
    monkeypatch.setattr("workers.maintenance.SWEEP_SECONDS", 0.2)
    monkeypatch.setattr("workers.maintenance.HOUSEKEEPING_SECONDS", 0.2)
    with Workers(asking(settings, commands.server.url, key="a-better-key")):
        wait_until(lambda: counts(home) == (4, 4, 0, 0))
    assert commands.json("dead", "list") == {"deadLetters": []}
    assert commands.server.inputs - paid == 1


@pytest.fixture
def large(commands: CommandLine, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A note that is too large, and a letter."""
    monkeypatch.setattr("memory.documents.content.MAX_DOCUMENT_BYTES", 30)
    (workspace / "memory" / "mixed.md").unlink()
    (workspace / "memory" / "good.md").write_text("The okapi.\n")
    note = workspace / "memory" / "large.md"
    note.write_text("The okapi is large, very large.\n")
    assert indexed(commands) == (1, 1)
    return note


def test_a_document_whose_letter_was_dropped_is_left_out_until_it_changes(commands: CommandLine, large: Path) -> None:
    commands.say("dead", "drop", "memory/large.md")
    assert indexed(commands) == (0, 0), "no comparison tries it again, and none misses it"
    [agent] = commands.json("status")["agents"]
    assert (agent["ok"], agent["disk"]["missing"], agent["disk"]["leftOut"]) == (True, 0, 1)
    [left] = agent["notes"]
    assert left.startswith("memory/large.md: ")
    assert "1 left out" in commands.say("status")
    assert "left out" in commands.say("dead", "show", "memory/large.md")

    commands.say("dead", "retry", "memory/large.md")
    assert indexed(commands) == (1, 1)
    commands.say("dead", "drop", "memory/large.md")
    large.write_text("The okapi is larger, much larger.\n")
    assert indexed(commands) == (1, 1), "it changed, and fails again"
    large.write_text("The okapi is small.\n")
    # It was mended before its letter was dropped.
    assert "left out" not in commands.say("dead", "drop", "memory/large.md")
    assert indexed(commands) == (0, 0)
    assert "large.md" in commands.say("search", "small")
    [agent] = commands.json("status")["agents"]
    assert (agent["disk"]["leftOut"], agent["notes"]) == (0, [])
    large.write_text("The okapi is large, very large.\n")
    assert indexed(commands) == (1, 1)
    large.unlink()
    assert indexed(commands) == (0, 0), "what is gone does not fail any more"


def test_letters_of_several_agents_are_told_apart(commands: CommandLine, workspace: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / "memory").mkdir(parents=True)
    commands.configure(f'[[agents]]\nid = "other"\nworkspace = "{other}"')
    settings = load(config=str(tmp_path / "recalld.toml"), home=str(commands.home)).settings
    for agent in settings.agents:
        store = write_index(settings, agent.id, vectors=False)
        for name in ("both", agent.id):
            key = DocumentKey("memory", f"memory/{name}.md")
            store.add_dead_letter(key, reason=f"reason of {agent.id}", error_class="DocumentUnreadable")
        store.close()
    listed = commands.json("dead", "list")["deadLetters"]
    assert sorted((letter["agent"], letter["path"]) for letter in listed) == [
        ("main", "memory/both.md"),
        ("main", "memory/main.md"),
        ("other", "memory/both.md"),
        ("other", "memory/other.md"),
    ]
    assert set(listed[0]) == {"agent", "source", "path", "reason", "errorClass", "attempts", "firstAt", "lastAt"}
    assert len(commands.json("--agent", "other", "dead", "list")["deadLetters"]) == 2
    code, _, err = commands.run("dead", "drop", "memory/both.md")
    assert (code, "--agent" in err) == (2, True)
    assert commands.json("dead", "show", str(other / "memory" / "both.md"))["agent"] == "other"
    commands.say("--agent", "other", "dead", "drop", "memory/both.md")
    assert commands.json("dead", "retry", "memory/other.md")["retried"][0]["agent"] == "other"
    left = [(letter["agent"], letter["path"]) for letter in commands.json("dead", "list")["deadLetters"]]
    assert sorted(left) == [("main", "memory/both.md"), ("main", "memory/main.md")]


def meta(home: Path, name: str) -> str | None:
    with reading(home) as reader:
        return reader.meta(name) if reader is not None else None


def counts(home: Path) -> tuple[int, int, int, int]:
    """Chunks, and how many are ready, pending and refused, in the index that answers."""
    with reading(home) as reader:
        found = reader.counts() if reader is not None else IndexCounts()
    return found.chunks, found.vectors_ready, found.vectors_pending, found.vectors_refused
