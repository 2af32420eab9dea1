"""`doctor --fix` heals what was broken on purpose, from files and cache: nothing is paid for, nothing is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest
import sqlite_vec

from tests.commanding import CommandLine, command_line
from tests.embedding_server import EmbeddingServer
from tests.transcript_files import message_line, transcript

Damage = Callable[[Path], object]


@pytest.fixture
def commands(
    home: Path,
    workspace: Path,
    server: EmbeddingServer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[CommandLine]:
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "OPENCLAW_STATE_DIR"):
        monkeypatch.setenv(name, str(home.parent / "programs"))
    for name in ("walrus", "ibex", "okapi"):
        (workspace / "memory" / f"{name}.md").write_text(f"The {name} sleeps at noon.\n")
    yield from command_line(home, workspace, server, capsys, monkeypatch)


def sql(*statements: str) -> Damage:
    def damage(index: Path) -> None:
        connection = apsw.Connection(str(index))
        connection.enable_load_extension(True)
        connection.load_extension(sqlite_vec.loadable_path())
        for statement in statements:
            connection.execute(statement)
        connection.close()

    return damage


def unreadable(index: Path) -> None:
    for sidecar in index.parent.glob("*.sqlite-*"):
        sidecar.unlink()
    index.write_bytes(b"\x00garbage\xff" * 5000)


def point_to(name: str) -> Damage:
    return lambda index: (index.parent / "CURRENT").write_text(name)


_ONE = "(SELECT min(id) FROM chunks)"


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(sql(f"DELETE FROM chunks_fts WHERE rowid = {_ONE}"), id="no keywords", marks=pytest.mark.long),
        pytest.param(sql(f"DELETE FROM chunks_vec WHERE rowid = {_ONE}"), id="no vector"),
        pytest.param(
            sql(f"DELETE FROM chunks WHERE id = {_ONE}"), id="keywords and vector of nothing", marks=pytest.mark.long
        ),
        pytest.param(
            sql("DELETE FROM files WHERE id = (SELECT min(id) FROM files)"),
            id="chunks of nothing",
            marks=pytest.mark.long,
        ),
        pytest.param(unreadable, id="unreadable"),
        pytest.param(
            point_to("20200101T000000-0-0000.sqlite\n"), id="CURRENT names a file that is gone", marks=pytest.mark.long
        ),
        pytest.param(point_to(""), id="CURRENT is empty"),
        pytest.param(
            point_to("../../elsewhere.sqlite"), id="CURRENT names what is none of ours", marks=pytest.mark.long
        ),
        pytest.param(lambda index: index.unlink(), id="the file is gone", marks=pytest.mark.long),
    ],
)
def test_what_was_damaged_is_found_healed_and_costs_nothing(
    commands: CommandLine, home: Path, server: EmbeddingServer, damage: Damage
) -> None:
    commands.say("index")
    paid = server.inputs
    folder = home / "indexes" / "main"
    damage(folder / (folder / "CURRENT").read_text().strip())
    code, found, _ = commands.run("doctor", "--json")
    assert code == 4, found
    code, healed, _ = commands.run("doctor", "--fix", "--json")
    assert (code, '"healed"' in healed) == (0, True), healed
    assert commands.run("doctor")[0] == 0
    status = commands.agent("status", "--deep")
    assert (status["integrity"], status["index"]["files"], status["index"]["vectorsReady"]) == ([], 3, 3)
    for name in ("walrus", "ibex", "okapi"):
        assert f"memory/{name}.md" in commands.say("search", name)
    assert server.inputs == paid, "the cache holds them all"
    kept = [file.read_bytes()[:8] for file in folder.glob("*.corrupt-*")]
    assert kept == [b"\x00garbage"] * (damage is unreadable)


@pytest.mark.parametrize("damaged", [pytest.param(False, marks=pytest.mark.long), True])
def test_healing_keeps_what_only_the_index_holds_of_a_transcript_that_is_gone(
    commands: CommandLine, home: Path, server: EmbeddingServer, *, damaged: bool
) -> None:
    sessions = home.parent / "sessions"
    sessions.mkdir()
    talk = sessions / "talk.jsonl"
    talk.write_bytes(transcript("openclaw", 1, bare=True) + message_line("openclaw", "user", "Where is the narwhal?"))
    config = home.parent / "recalld.toml"
    config.write_text(f'{config.read_text()}sessions = ["{sessions}"]\n')
    commands.say("index")
    assert "narwhal" in commands.say("search", "narwhal")
    paid = server.inputs
    talk.unlink()
    if damaged:
        folder = home / "indexes" / "main"
        sql("DELETE FROM chunks_fts WHERE rowid = (SELECT min(id) FROM chunks)")(
            folder / (folder / "CURRENT").read_text().strip()
        )
    code, healed, _ = commands.run("doctor", "--fix", "--json")
    assert (code, '"healed"' in healed) == (0, damaged), healed
    assert "narwhal" in commands.say("search", "narwhal")
    assert server.inputs == paid


def test_transcripts_of_which_a_program_wrote_most_are_a_warning_with_a_code(commands: CommandLine, home: Path) -> None:
    sessions = home.parent / "sessions"
    sessions.mkdir()
    polls = b"".join(message_line("openclaw", "user", f"[Poll {number} of a new kind]") for number in range(40))
    (sessions / "talk.jsonl").write_bytes(polls)
    config = home.parent / "recalld.toml"
    config.write_text(f'{config.read_text()}sessions = ["{sessions}"]\n')
    commands.say("index")
    findings = commands.json("doctor")["findings"]
    (alike,) = [each for each in findings if each.get("code") == "messages_alike"]
    assert (alike["level"], alike["agent"]) == ("warning", "main")
