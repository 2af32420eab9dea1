"""`recalld doctor` finds what was broken on purpose and heals it from files and cache: nothing is paid for or lost."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest
import sqlite_vec

from schemas.status import EndpointCondition, EndpointStatus
from tests.commanding import CommandLine
from tests.transcript_files import message_line, transcript
from workers.health.health_store import HealthStore
from workers.queue.private_server import BrokerServer

Damage = Callable[[Path], object]


@pytest.fixture
def commands(commands: CommandLine, home: Path, workspace: Path) -> CommandLine:
    """Commands for an agent with three notes, and no hooks of the user who runs this."""
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "OPENCLAW_STATE_DIR"):
        commands.set(name, str(home.parent / "programs"))
    for name in ("walrus", "ibex", "okapi"):
        (workspace / "memory" / f"{name}.md").write_text(f"The {name} sleeps at noon.\n")
    return commands


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


_ONE = "(SELECT min(id) FROM chunks)"


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(sql(f"DELETE FROM chunks_vec WHERE rowid = {_ONE}"), id="no vector"),
        pytest.param(sql(f"DELETE FROM chunks WHERE id = {_ONE}"), id="keywords and vector of nothing"),
        pytest.param(unreadable, id="unreadable"),
        pytest.param(lambda index: (index.parent / "CURRENT").write_text(""), id="CURRENT is empty"),
        pytest.param(lambda index: index.unlink(), id="the file is gone", marks=pytest.mark.long),
    ],
)
def test_what_was_damaged_is_found_healed_and_costs_nothing(commands: CommandLine, home: Path, damage: Damage) -> None:
    commands.say("index")
    paid = commands.server.inputs
    folder = home / "indexes" / "main"
    damage(folder / (folder / "CURRENT").read_text().strip())
    code, found, _ = commands.run("doctor", "--json")
    assert code == 4, found
    code, healed, _ = commands.run("doctor", "--fix", "--json")
    assert (code, '"healed"' in healed) == (0, True), healed
    assert commands.run("doctor")[0] == 0
    assert commands.server.inputs == paid, "the cache holds them all"
    status = commands.agent("status", "--deep")
    assert (status["integrity"], status["index"]["files"], status["index"]["vectorsReady"]) == ([], 3, 3)
    for name in ("walrus", "ibex", "okapi"):
        assert f"memory/{name}.md" in commands.say("search", name)
    kept = [file.read_bytes()[:8] for file in folder.glob("*.corrupt-*")]
    assert kept == [b"\x00garbage"] * (damage is unreadable)


def test_healing_keeps_what_only_the_index_holds_of_a_transcript_that_is_gone(commands: CommandLine) -> None:
    sessions, folder = commands.home.parent / "sessions", commands.home / "indexes" / "main"
    sessions.mkdir()
    talk = sessions / "talk.jsonl"
    talk.write_bytes(transcript("openclaw", 1, bare=True) + message_line("openclaw", "user", "Where is the narwhal?"))
    commands.configure(f'sessions = ["{sessions}"]')
    commands.say("index")
    paid = commands.server.inputs
    talk.unlink()
    sql(f"DELETE FROM chunks_fts WHERE rowid = {_ONE}")(folder / (folder / "CURRENT").read_text().strip())
    assert '"healed"' in commands.say("doctor", "--fix", "--json")
    assert commands.server.inputs == paid
    assert "narwhal" in commands.say("search", "narwhal")


def test_transcripts_of_which_a_program_wrote_most_are_a_warning_with_a_code(commands: CommandLine, home: Path) -> None:
    sessions = home.parent / "sessions"
    sessions.mkdir()
    polls = b"".join(message_line("openclaw", "user", f"[Poll {number} of a new kind]") for number in range(40))
    (sessions / "talk.jsonl").write_bytes(polls)
    commands.configure(f'sessions = ["{sessions}"]')
    commands.say("index")
    findings = commands.json("doctor")["findings"]
    (alike,) = [each for each in findings if each.get("code") == "messages_alike"]
    assert (alike["level"], alike["agent"]) == ("warning", "main")


def test_files_of_processes_that_are_gone_are_removed_and_those_of_the_living_stay(commands: CommandLine) -> None:
    commands.say("index")
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    run = commands.home / "run"
    run.mkdir(exist_ok=True)
    for name, pid in {"service.json": ended.pid, "hooks.json": os.getpid()}.items():
        (run / name).write_text(json.dumps({"pid": pid}))
    commands.run("doctor", "--fix")
    assert [(run / name).exists() for name in ("service.json", "hooks.json")] == [False, True]


def problems(commands: CommandLine, *arguments: str) -> list[str]:
    """Return the open findings, which end the command with exit code 4."""
    code, out, _ = commands.run("doctor", *arguments, "--json")
    findings: list[dict[str, Any]] = json.loads(out)["findings"]
    left = [found["message"] for found in findings if found["level"] == "problem" and "healed" not in found]
    assert code == (4 if left else 0)
    return left


def test_a_healthy_home_where_nothing_runs_has_nothing_to_heal(commands: CommandLine) -> None:
    commands.say("index")
    answer = commands.json("doctor", "--fix", "--online")
    assert answer["ok"]
    assert not any("healed" in found for found in answer["findings"])
    checks = {"open files", "watches", "keywords", "vectors", "disk", "clock", "broker", "index"}
    assert checks <= {found["check"] for found in answer["findings"]}
    assert any("answered in" in found["message"] for found in answer["findings"])
    told = commands.say("status")
    assert "does not answer" not in told
    assert "queue         nothing runs" in told


def test_a_workspace_that_is_not_there_forgets_nothing(commands: CommandLine, home: Path, workspace: Path) -> None:
    commands.say("index")
    before = sorted(path.name for path in (home / "indexes" / "main").iterdir())
    workspace.rename(workspace.with_name("unmounted"))
    [problem] = problems(commands, "--fix")
    assert str(workspace) in problem
    assert sorted(path.name for path in (home / "indexes" / "main").iterdir()) == before


def test_findings_are_one_line_each_and_what_to_do_below(commands: CommandLine, home: Path) -> None:
    commands.say("index")
    shutil.rmtree(home / "indexes" / "main")
    [found] = problems(commands)
    code, out, _ = commands.run("doctor")
    lines = out.splitlines()
    [place] = [number for number, line in enumerate(lines) if found in line]
    assert "3 documents" in found
    assert f"--fix --home {home}" in lines[place + 1]
    assert (code, lines[-1]) == (4, "1 problem left")


def linked(commands: CommandLine) -> None:
    (commands.home.parent / "elsewhere").mkdir()
    (commands.workspace / "memory" / "projects").symlink_to(commands.home.parent / "elsewhere")


@pytest.mark.parametrize(
    ("breakage", "said"),
    [
        pytest.param(linked, "memory/projects is a symbolic link", id="a linked folder"),
        pytest.param(
            lambda commands: commands.configure(f'sessions = ["{commands.home}/nowhere"]'),
            "nowhere does not exist",
            id="a sessions folder that is not there",
        ),
        pytest.param(
            lambda commands: commands.configure('model = "another"'),
            "was built with other settings",
            id="other settings",
        ),
        pytest.param(
            lambda commands: (commands.workspace / "memory" / "new.md").write_text("The heron sleeps.\n"),
            "1 document missing",
            id="a note that is not indexed",
        ),
    ],
)
def test_what_makes_status_not_ok_is_a_problem_of_the_doctor_with_what_to_do(
    commands: CommandLine, breakage: Callable[[CommandLine], object], said: str
) -> None:
    commands.say("index")
    assert commands.run("doctor")[0] == commands.run("status")[0] == 0
    breakage(commands)
    red, shown, _ = commands.run("status", "--json")
    [trouble] = json.loads(shown)["agents"][0]["troubles"]
    code, out, _ = commands.run("doctor", "--json")
    problems: list[dict[str, Any]] = [one for one in json.loads(out)["findings"] if one["level"] == "problem"]
    assert (code, [said in one["message"] for one in problems]) == (4, [True]), problems
    assert problems[0]["action"]
    assert (red, problems[0]["code"]) == (4, trouble["code"])


def test_a_key_that_is_refused_is_one_problem_of_all_agents_that_use_it(
    commands: CommandLine, workspace: Path, broker_server: BrokerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents = "".join(f'[[agents]]\nid = "{name}"\nworkspace = "{workspace}"\n' for name in ("ada", "bob"))
    commands.configure(agents)
    refusal = EndpointStatus(EndpointCondition.STOPPED, None, "the key is refused", since=1.0)
    monkeypatch.setattr(HealthStore, "endpoint", lambda *_: refusal)
    findings = json.loads(commands.run("doctor", "--json")[1])["findings"]
    [found] = [one for one in findings if one["check"] == "provider" and one["level"] == "problem"]
    assert found["agents"] == ["main", "ada", "bob"]
    assert found["code"] == "provider_refuses"
