"""Estimates of dry runs equal what the runs pay, and a rebuild pays nothing: the endpoint counts."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from memory.chunking.chunker import estimate_tokens
from tests.commanding import CommandLine
from tests.embedding_server import EmbeddingServer
from tests.transcript_files import message_line

#: Notes that share paragraphs, so that there are fewer texts than chunks.
NOTES = 20


def write_notes(workspace: Path, count: int = NOTES, *, sections: int = 4) -> None:
    for number in range(count):
        parts = [f"# Part {part}\n\n" + f"word{number}x{part} " * 120 for part in range(sections - 1)]
        shared = f"# The same everywhere\n\n{'shared words ' * 80}"
        (workspace / "memory" / f"{number:03}.md").write_text("\n\n".join([*parts, shared]) + "\n")


def files_below(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*")} if folder.exists() else {}


def test_an_estimate_is_what_the_run_then_sends(commands: CommandLine, server: EmbeddingServer) -> None:
    write_notes(commands.workspace)
    said = commands.agent("index", "--dry-run")
    assert server.requests == 0
    done = commands.agent("index")
    assert said["documents"] == done["files"] == NOTES
    assert said["chunks"] == done["chunks"] == done["vectorsReady"]
    assert said["toEmbed"] == server.inputs == len(server.texts)
    assert said["toEmbed"] < said["chunks"], "the notes share a text"
    assert said["cached"] == 0
    assert said["tokens"] == round(sum(map(estimate_tokens, server.texts)))
    assert said["dollars"] == pytest.approx(said["tokens"] * 0.02 / 1e6, abs=1e-6)

    again = commands.agent("index", "--dry-run")
    assert (again["documents"], again["chunks"], again["toEmbed"], again["dollars"]) == (0, 0, 0, 0)


def test_an_estimate_after_edits_counts_only_what_is_new(commands: CommandLine, server: EmbeddingServer) -> None:
    write_notes(commands.workspace)
    commands.agent("index")
    paid = server.inputs
    (commands.workspace / "memory" / "001.md").unlink()
    (commands.workspace / "memory" / "002.md").write_text("# New\n\nnothing like it was there\n")
    # Moved: the vectors of its texts are held.
    (commands.workspace / "memory" / "003.md").rename(commands.workspace / "memory" / "moved.md")
    os.utime(commands.workspace / "memory" / "004.md", (1, 1))
    said = commands.agent("index", "--dry-run")
    assert (said["documents"], said["vanished"], said["toEmbed"]) == (2, 2, 1)
    assert said["cached"] == said["texts"] - 1 > 0
    commands.agent("index")
    assert server.inputs - paid == said["toEmbed"]


def test_a_dry_run_writes_nothing(commands: CommandLine, home: Path, workspace: Path) -> None:
    write_notes(workspace, 3)
    commands.say("index", "--dry-run")
    assert not home.exists()
    commands.agent("index")
    before = files_below(home / "indexes") | files_below(home / "cache")
    write_notes(workspace, 6)
    commands.say("rebuild", "--dry-run")
    commands.say("index", "--dry-run")
    after = files_below(home / "indexes") | files_below(home / "cache")
    # A reader of a write-ahead log touches the log's index; what is in the databases stays.
    data = {name: time for name, time in before.items() if name.endswith((".sqlite", "CURRENT"))}
    assert data
    assert data.items() <= after.items()
    assert {name for name in after if name.endswith(".sqlite")} == {name for name in before if name.endswith(".sqlite")}


def test_the_sentence_of_a_dry_run_says_texts_tokens_and_money(commands: CommandLine, workspace: Path) -> None:
    write_notes(workspace)
    said = commands.say("index", "--dry-run")
    assert said.startswith("main: 20 documents ")
    assert " texts to embed, " in said
    assert "$0.01 (text-embedding-3-small" in said
    commands.set("RECALLD_REMOTE__PRICE_PER_MILLION_TOKENS", "20")
    assert "about $" in commands.say("index", "--dry-run")
    commands.set("RECALLD_MODEL", "own-model")
    commands.set("RECALLD_REMOTE__PRICE_PER_MILLION_TOKENS", "")
    assert "own-model" in commands.say("index", "--dry-run")
    commands.set("RECALLD_PROVIDER", "none")
    assert "nothing to pay" in commands.say("index", "--dry-run")


@pytest.mark.parametrize("cache", [("CACHE__MAX_ENTRIES", "5"), ("CACHE__ENABLED", "false")])
def test_a_rebuild_takes_every_vector_from_the_index_when_the_cache_does_not_have_it(
    commands: CommandLine, workspace: Path, server: EmbeddingServer, cache: tuple[str, str]
) -> None:
    commands.set(f"RECALLD_{cache[0]}", cache[1])
    write_notes(workspace, 20, sections=3)
    # More chunks than one transaction takes: such a document gets its vectors afterwards, in slices.
    long = "\n\n".join(f"# Part {part}\n\nlong{part} " * 3 + "filler " * 120 for part in range(520))
    (workspace / "memory" / "long.md").write_text(long)
    first = commands.agent("index")
    assert first["vectorsReady"] == first["chunks"] > 520
    paid = server.inputs
    said = commands.agent("rebuild", "--dry-run")
    assert (said["toEmbed"], said["dollars"]) == (0, 0)
    assert said["cached"] == said["texts"]

    rebuilt = commands.agent("rebuild")
    assert rebuilt["vectorsReady"] == first["chunks"]
    assert server.inputs == paid


def test_status_and_estimate_count_the_text_of_huge_messages_that_is_left_out(
    commands: CommandLine, tmp_path: Path, server: EmbeddingServer
) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "other").mkdir()
    huge = f"begins with apricots {'pasted ' * 90_000} ends with quinces"
    for name, text in (("huge", huge), ("larger", f"{huge} and cream"), ("small", "a short word")):
        (tmp_path / "old" / f"{name}.jsonl").write_bytes(message_line("plain", "user", text))
    commands.configure("[limits]\nmax_message_chars = 20000")
    plan = commands.json("backfill", str(tmp_path / "old"), "--dry-run")["estimate"]
    counts = (plan["cutMessages"], plan["cutCharacters"])
    assert counts == (2, 2 * len(huge) + len(" and cream") - 40_000)
    commands.configure(f'[[agents]]\nid = "reader"\nworkspace = "{tmp_path}/other"\nsessions = ["{tmp_path}/old"]')
    estimate = commands.json("index", "--dry-run", "--agent", "reader")["agents"][0]
    assert (estimate["cutMessages"], estimate["cutCharacters"]) == counts
    left_out = f"{estimate['cutCharacters']:,} characters of 2 long messages left out"
    assert left_out in commands.say("index", "--dry-run", "--agent", "reader")
    commands.say("index", "--agent", "reader")
    assert estimate["toEmbed"] == server.inputs < 40
    _, out, _ = commands.run("status", "--json")
    assert any(left_out in note for note in json.loads(out)["agents"][1]["notes"])
    for word in ("apricots", "quinces", "cream", "short"):
        assert commands.json("search", word, "--agent", "reader")["results"]


def test_a_dry_run_of_many_agents_ends_with_their_total(commands: CommandLine, tmp_path: Path) -> None:
    write_notes(commands.workspace, 3)
    other = tmp_path / "other"
    (other / "memory").mkdir(parents=True)
    write_notes(other, 5)
    assert len(commands.say("index", "--dry-run").splitlines()) == 1
    commands.configure(f'[[agents]]\nid = "other"\nworkspace = "{other}"')
    answer = commands.json("index", "--dry-run")
    total, parts = answer["total"], answer["agents"]
    assert (total["documents"], len(parts)) == (8, 2)
    for name in ("chunks", "toEmbed", "tokens", "requests"):
        assert total[name] == sum(part[name] for part in parts) > parts[0][name]
    assert total["dollars"] == pytest.approx(sum(part["dollars"] for part in parts), abs=2e-6)
    last = commands.say("index", "--dry-run").splitlines()[-1]
    assert last.startswith("all 2 agents: 8 documents changed")
    commands.configure('provider = "none"')
    assert commands.json("index", "--dry-run")["total"]["dollars"] == total["dollars"] - parts[1]["dollars"]
    # An unknown price makes that of all of them unknown.
    commands.set("RECALLD_MODEL", "own-model")
    assert commands.json("index", "--dry-run")["total"]["dollars"] is None
