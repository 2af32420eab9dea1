"""Printed commands can be typed as they stand, and `get` takes what `search` prints."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from recalld.invocation import Invocation
from tests.commanding import CommandLine
from tests.daemon import REPOSITORY, clean_environment

LINES = [f"Line {number}." for number in range(1, 61)]


def printed(text: str) -> list[str]:
    """The commands that a message names."""
    return re.findall(r"`([^`]* ?recalld [^`]+)`", text)


@pytest.fixture
def note(commands: CommandLine, workspace: Path) -> None:
    commands.set("RECALLD_PROVIDER", "none")
    (workspace / "MEMORY.md").write_text("\n".join(LINES) + "\n", "utf-8")
    commands.say("index")


# Commands ---------------------------------------------------------------------------------------------


def test_home_settings_and_agent_of_a_call_are_those_of_the_commands_it_prints() -> None:
    call = Invocation(home="/my home", config="my.toml")
    options = ["--config", "my.toml", "--home", "/my home"]
    assert shlex.split(call.command("status", agent="ada"))[-7:] == ["status", *options, "--agent", "ada"]
    assert shlex.split(call.command("up", agent="ada"))[-5:] == ["up", *options]
    assert call.command("status --agent bob", agent="ada").count("--agent") == 1
    shown = Invocation(agent="bob").command("dead show PATH", agent="ada")
    assert shlex.split(shown)[-5:] == ["dead", "show", "PATH", "--agent", "bob"]
    assert call.to_type("run `recalld  `") == "run `recalld  `"


@pytest.mark.parametrize(
    "program", [[sys.executable, "-m", "recalld"], [str(Path(sys.executable).with_name("recalld"))]]
)
def test_a_printed_command_runs_as_it_is_typed(program: list[str], tmp_path: Path) -> None:
    home, here = tmp_path / "a home", tmp_path / "here"
    here.mkdir()

    def typed(words: list[str]) -> subprocess.CompletedProcess[str]:
        environment = clean_environment({"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY)})
        return subprocess.run(words, cwd=here, env=environment, capture_output=True, text=True, timeout=120)

    failed = typed([*program, "--home", str(home), "index"])
    assert failed.returncode == 2
    start, discover = printed(failed.stderr)
    assert f"--home {shlex.quote(str(home))}" in start
    done = typed(shlex.split(discover))
    assert done.returncode == 0, done.stderr


def test_with_several_agents_a_message_about_one_names_it(commands: CommandLine, workspace: Path) -> None:
    other = workspace.with_name("other")
    other.mkdir()
    commands.configure(f'[[agents]]\nid = "other"\nworkspace = "{other}"')
    commands.server.poison = "hemlock"
    (other / "MEMORY.md").write_text("The hemlock stands by the path.\n", "utf-8")
    _, _, err = commands.run("index")
    shown = [command for command in printed(err) if "dead show" in command]
    assert shown
    assert all("--agent other" in command for command in shown), err


# Lines ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("note")
@pytest.mark.parametrize(
    ("typed", "lines"),
    [
        ("MEMORY.md:23-44", LINES[22:44]),
        ("MEMORY.md:23", LINES[22:23]),
        ("MEMORY.md#L3-L5", LINES[2:5]),
        ("MEMORY.md#L3-5", LINES[2:5]),
        ("MEMORY.md#L3", LINES[2:3]),
    ],
)
def test_get_takes_what_search_prints(commands: CommandLine, typed: str, lines: list[str]) -> None:
    assert commands.say("get", typed).splitlines() == lines


@pytest.mark.usefixtures("note")
def test_what_search_prints_is_what_get_takes(commands: CommandLine) -> None:
    place = commands.say("search", "Line", "--short").splitlines()[0]
    assert f"{place}  " in commands.say("search", "Line")
    assert re.fullmatch(r"MEMORY\.md:\d+-\d+", place)
    assert "Line" in commands.say("get", place)


@pytest.mark.usefixtures("note")
def test_options_go_before_the_lines_of_the_path(commands: CommandLine) -> None:
    assert commands.say("get", "MEMORY.md:23-44", "--from", "50", "--lines", "2").splitlines() == LINES[49:51]


@pytest.mark.usefixtures("note")
@pytest.mark.parametrize("typed", ["MEMORY.md:x", "memory/none.md:3-5", "MEMORY.md:9999999999"])
def test_what_names_nothing_is_exit_code_3(commands: CommandLine, typed: str) -> None:
    assert commands.run("get", typed)[0] == 3


# Events -----------------------------------------------------------------------------------------------


def test_emit_says_which_changed_path_is_outside_of_the_memory(commands: CommandLine, workspace: Path) -> None:
    inside = [str(workspace / "MEMORY.md"), str(workspace / "memory")]
    assert commands.run("emit", "changed", *inside) == (0, "", "")
    code, out, err = commands.run("emit", "changed", *inside, "/nowhere/a.md")
    assert (code, out, err.count("\n"), "agent main" in err) == (0, "", 1, True)
    assert err.startswith("recalld: /nowhere/a.md ")
