"""Rules of every command: options, exit codes, and errors of one sentence."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from recalld.cli import COMMANDS, EXIT_CODES, root, run
from recalld.invocation import CommandGroup, Invocation, pass_invocation, setting_option, workspace_option
from schemas.errors import BrokerUnavailable, UserError
from tests.daemon import REPOSITORY, clean_environment
from tests.doc_tables import examples_of
from tests.raw_server import announce, proof, raw_server
from tests.raw_server import answer as said

Frame = Callable[[Callable[[Invocation], object]], None]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in list(os.environ):
        if name.startswith("RECALLD_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("RECALLD_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> Frame:
    """Puts a function in the place of `recalld index`."""

    def install(body: Callable[[Invocation], object]) -> None:
        @click.command("index")
        @workspace_option
        @setting_option("--port", "service.port", type=int)
        @pass_invocation
        def index(invocation: Invocation) -> object:
            return body(invocation)

        module = type(sys)("recalld.commands.index")
        module.index = index  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "recalld.commands.index", module)

    return install


#: A valid call of each command that has arguments or commands of its own.
CALLS = {
    "backfill": ["backfill", "sessions"],
    "search": ["search", "port"],
    "get": ["get", "MEMORY.md"],
    "dead": ["dead", "list"],
    "emit": ["emit", "reconcile"],
    "hook": ["hook", "install", "codex"],
    "config": ["config", "show"],
    "context": ["context", "list"],
    "model": ["model", "list"],
    "completion": ["completion", "bash"],
    "service": ["service", "status"],
    "tenant": ["tenant", "list"],
    "token": ["token", "list"],
    "export": ["export", "memory.sqlite"],
    "import": ["import", "memory.sqlite"],
    "backup": ["backup", "copy"],
    "restore": ["restore", "copy"],
}

#: Commands that need no settings.
WITHOUT_SETTINGS = {"completion", "help"}


@pytest.mark.parametrize("by", ["flag", "variable"])
@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in WITHOUT_SETTINGS])
def test_a_settings_file_that_is_not_there_ends_every_command_at_once(
    name: str, by: str, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = home.parent / "nowhere.toml"
    call = CALLS.get(name, [name])
    if by == "flag":
        call = [*call, "--config", str(missing)]
    else:
        monkeypatch.setenv("RECALLD_CONFIG", str(missing))
    assert run(call) == 2
    shown = capsys.readouterr()
    called = "--config" if by == "flag" else "RECALLD_CONFIG"
    assert shown.err.startswith(f"recalld: {called}: ")
    assert f" {missing};" in shown.err
    assert (shown.out, home.exists()) == ("", False)


def test_help_lists_every_command_without_importing_any(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == run(["--help"]) == 0
    shown = capsys.readouterr().out
    for name in COMMANDS:
        assert f"\n  {name} " in shown
    assert "130 interrupted" in shown
    code = "import sys, recalld.cli; recalld.cli.run(['--help']); print([m for m in sys.modules if 'commands.' in m])"
    listed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert listed.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_has_help_with_exit_codes_and_global_options(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [name, "show", "--help"] if name == "config" else [name, "--help"]
    assert run(arguments) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert EXIT_CODES in shown
    for option in ("--config FILE", "--home DIR", "--agent ID"):
        assert option in shown


def every_command() -> Iterator[tuple[str, click.Command, click.Context]]:
    """Yield each command, also those of groups: name as it is typed, command, and the context above it."""
    with click.Context(root, info_name="recalld", obj=Invocation()) as context:
        for name in COMMANDS:
            command = root.get_command(context, name)
            assert command is not None
            yield name, command, context
            if isinstance(command, CommandGroup):
                above = click.Context(command, parent=context, info_name=name)
                yield from ((f"{name} {below}", command.commands[below], above) for below in command.commands)


def test_the_examples_of_every_help_can_be_typed() -> None:
    for typed, command, context in every_command():
        assert type(command) is not click.Group, f"{typed} needs cls=CommandGroup"
        assert examples_of(command), typed
        for example in examples_of(command):
            words = shlex.split(example)[1:]
            assert " ".join(words).startswith(typed), example
            if not isinstance(command, click.Group) or command.invoke_without_command:
                command.make_context(typed, words[len(typed.split()) :], parent=context)


def test_a_command_s_help_is_shown_in_each_way_that_people_ask_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["dead", "retry"], ["search"], []):
        assert run([*words, "--help"]) == 0
        wanted = capsys.readouterr().out
        assert run(["help", *words]) == 0
        assert capsys.readouterr().out == wanted
    for group in [typed for typed, command, _ in every_command() if isinstance(command, click.Group)]:
        if group != "jobs":
            assert run([group, "--help"]) == 0
            wanted = capsys.readouterr().out
            assert run([group]) == 2
            assert capsys.readouterr() == ("", wanted)


def test_bash_completes_commands_options_and_agents(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text('[[agents]]\nid = "ada"\n[[agents]]\nid = "bob"\n', "utf-8")
    program = tmp_path / "recalld"
    program.write_text(f'#!/bin/sh\nPYTHONPATH="{REPOSITORY}" exec "{sys.executable}" -m recalld "$@"\n', "utf-8")
    program.chmod(0o755)

    def completed(line: str) -> list[str]:
        words = line.split(" ")
        script = 'eval "$(recalld completion bash)"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))\n'
        script += '_recalld_completion recalld; printf "%s\\n" "${COMPREPLY[@]}"'
        environment = clean_environment({"HOME": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}"})
        shell = ["bash", "-c", script, "bash", *words]
        return subprocess.run(shell, env=environment, capture_output=True, text=True, check=True).stdout.split()

    assert completed("recalld re") == ["remember", "rebuild", "restore"]
    assert completed("recalld dead r") == ["retry"]
    assert completed("recalld search --sou") == ["--source"]
    assert completed(f"recalld --config {config} status --agent ") == ["ada", "bob"]
    assert completed(f"recalld --config {config}x status --agent ") == []


def test_a_terminal_gets_matched_words_in_bold_unless_no_color_is_set(home: Path) -> None:
    turn = [proof("s"), said(json.dumps(FOUND).encode())]
    for environment, word in (({}, b"\x1b[1mPixel\x1b[0m"), ({"NO_COLOR": "1"}, b" Pixel ")):
        reading, writing = os.openpty()
        environment |= {"HOME": str(home.parent), "RECALLD_HOME": str(home)}
        with raw_server(turn) as server:
            announce(home, server, secret="s")
            command = [sys.executable, "-m", "recalld", "search", "pixel"]
            subprocess.run(command, cwd=REPOSITORY, env=clean_environment(environment), stdout=writing, check=True)
        printed = os.read(reading, 1 << 16)
        assert word in printed
        assert (b"\x1b[" in printed) is ("NO_COLOR" not in environment)


def test_global_options_are_taken_before_and_after_the_command(probe: Frame, tmp_path: Path) -> None:
    seen: list[Invocation] = []
    probe(seen.append)
    config = tmp_path / "c.toml"
    config.touch()
    options = ["--home", "/h", "--config", str(config), "--agent", "a"]
    assert run([*options, "index", "--workspace", "/w", "--port", "1"]) == 0
    assert run(["index", *options, "--workspace", "/w", "--port", "1"]) == 0
    assert run(["--home", "/before", "index", "--home", "/after"]) == 0
    for invocation in seen[:2]:
        assert (invocation.home, invocation.config, invocation.agent) == ("/h", str(config), "a")
        assert (invocation.workspace, invocation.overrides) == ("/w", {"service.port": 1})
    assert seen[2].home == "/after"


@pytest.mark.parametrize(
    ("error", "exit_code", "words"),
    [
        (UserError("the port is taken; choose another"), 1, "the port is taken; choose another"),
        (UserError("wrong", exit_code=2), 2, "wrong"),
        (BrokerUnavailable("the broker does not answer"), 1, "the broker does not answer"),
        (click.UsageError("Missing argument 'X'."), 2, "Missing argument 'X' (see recalld index --help)"),
        (KeyboardInterrupt(), 130, None),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(
    probe: Frame, capsys: pytest.CaptureFixture[str], error: BaseException, exit_code: int, words: str | None
) -> None:
    def body(_: Invocation) -> None:
        raise error

    probe(body)
    assert run(["index"]) == exit_code
    assert capsys.readouterr().err == (f"recalld: {words}\n" if words else "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nonsense"], "No such command 'nonsense' ("),
        (["serach", "x"], "No such command 'serach'; did you mean search? ("),
        (["dead", "rety"], "No such command 'rety'; did you mean retry? ("),
        (["help", "serach"], "No such command 'serach'; did you mean search? ("),
        (["help", "search", "x"], "recalld search has no commands of its own"),
        (["search"], "Missing argument 'QUERY...'"),
        (["search", "", "  "], "the query is empty"),
        (["search", "x", "--max-results", "0"], "Invalid value for '-n' / '--max-results'"),
        (["search", "x", "--nonsense"], "No such option"),
        (["get", "x", "--from", "0"], "Invalid value for '--from'"),
        (["--home", "", "status"], "Invalid value for '--home': must not be empty"),
    ],
)
def test_wrong_usage_is_one_line_with_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert run(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"recalld: {words}")
    assert line.endswith("--help)")


def test_a_defect_is_one_sentence_and_its_traceback_is_kept_without_secrets(
    probe: Frame, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    token = "ghp_" + "a1B2" * 9

    def body(_: Invocation) -> None:
        raise TypeError(f"{token}\nlines")

    probe(body)
    assert run(["index"]) == 1
    (log,) = (home / "run").glob("crash-*.log")
    [line] = capsys.readouterr().err.splitlines()
    assert "TypeError: [redacted:github-token];" in line
    assert line.endswith(str(log))
    assert "raise TypeError" in log.read_text("utf-8")
    assert token not in log.read_text("utf-8")
    assert log.stat().st_mode & 0o777 == 0o600


def test_the_entry_point_limits_numpy_to_one_thread_before_it_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    code = (
        "import os, sys, recalld.__main__ as entry\n"
        "sys.argv = ['recalld', '--help']\n"
        "try: entry.main()\n"
        "except SystemExit: print(os.environ['OPENBLAS_NUM_THREADS'], 'numpy' in sys.modules)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1] == "1 False"


def test_a_search_through_the_service_loads_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from recalld.client import Client\n"
        "Client.at_home = classmethod(lambda cls, *_, **__: cls('h', 1))\n"
        "Client.search = lambda *_, **__: {'results': []}\n"
        "from recalld.cli import run\n"
        "code = run(['search', 'x'])\n"
        "heavy = {'pydantic', 'numpy', 'fastapi', 'structlog', 'apsw', 'redis', 'dramatiq', 'openai'}\n"
        "print(code, sorted(heavy & set(sys.modules)))\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1] == "3 []"


HIT = {"path": "MEMORY.md", "startLine": 3, "endLine": 4, "score": 0.914, "snippet": "猫叫 Pixel\nblack"}
FOUND = {"results": [HIT], "degraded": ["keywords only: no key"], "pending": {"documents": 2, "vectors": 0}}
RESUMED = {"agent": "ada", "title": "shop, 3 May: " + "who feeds the cat " * 9, "resume": "codex resume 7", **HIT}
TWO_LINES = """\
ada  shop, 3 May: who feeds the cat who feeds the cat who feeds the cat who…  MEMORY.md:3-4  0.91
    猫叫 Pixel black
    resume: codex resume 7
"""
UNSURE = {
    "results": [
        {
            **HIT,
            "title": "猫叫 Pixel…",
            "score": 0.49,
            "vectorScore": 0.2,
            "alsoIn": {"count": 2, "paths": ["b.md", "c.md"]},
        }
    ]
}
FALLEN = {"results": [], "fallbackReason": "qmd failed: late", "degraded": ["keywords only: no key"]}
REMARKS = "recalld: keywords only: no key\nrecalld: 2 changed notes are not indexed yet\n"
LEFT_OUT = {"unavailable": True, "error": "no index", "action": "run `recalld index`"}
CUT = {"path": "a.md", "text": "one\n", "truncated": True, "nextFrom": 2, "totalLines": 9}
CACHE = {"enabled": True, "entries": 1, "diskBytes": 10}
BROKER = {"reachable": True, "private": True, "writable": True, "server": "valkey 9", "persistence": "none"}
STATUS = {
    "ok": False,
    "version": "1",
    "home": "/home-folder",
    "agents": [],
    "cache": CACHE,
    "broker": BROKER,
    "diskUse": {},
    "versions": {},
}


@pytest.mark.parametrize(
    ("call", "answer", "exit_code", "out", "err"),
    [
        ("search what is it", FOUND, 0, "MEMORY.md:3-4  0.91\n    猫叫 Pixel black\n", REMARKS),
        ("search what is it --long", FOUND, 0, "MEMORY.md:3-4  0.91\n    猫叫 Pixel\n    black\n", REMARKS),
        ("search what is it --short", FOUND, 0, "MEMORY.md:3-4\n", REMARKS),
        ("search cat", {"results": [RESUMED]}, 0, TWO_LINES, ""),
        (
            *("search cat", UNSURE, 0, "MEMORY.md:3-4  0.49  also in 2 more\n    猫叫 Pixel black\n"),
            "recalld: nothing fits well; the nearest passages:\n",
        ),
        ("search x", {"results": []}, 3, "", "recalld: nothing found\n"),
        (
            *("search x", FALLEN, 3, ""),
            "recalld: nothing found\nrecalld: qmd failed: late\nrecalld: keywords only: no key\n",
        ),
        ("search x", {"results": [], **LEFT_OUT}, 1, "", "recalld: no index; run `recalld index`\n"),
        ("get a.md", {"path": "a.md", "text": "one\ntwo", "truncated": False}, 0, "one\ntwo\n", ""),
        ("get a.md", {"path": "a.md", "text": ""}, 0, "", ""),
        ("get a.md", CUT, 0, "one\n", "recalld: there is more: --from 2 (of 9 lines)\n"),
        ("get b.md", {"path": "b.md", "text": "", "error": "path required"}, 3, "", "recalld: path required\n"),
        ("get b.md", {"path": "b.md", "text": "", "error": "no", "unavailable": True}, 1, "", "recalld: no\n"),
        ("status", STATUS, 4, None, "recalld: the query service that answers runs recalld 1: start it again\n"),
    ],
)
def test_an_answer_is_printed_alone_and_remarks_apart(
    home: Path,
    capsys: pytest.CaptureFixture[str],
    call: str,
    answer: dict[str, object],
    exit_code: int,
    out: str | None,
    err: str,
) -> None:
    turn = [proof("s"), said(json.dumps(answer).encode())]
    with raw_server(turn, turn) as server:
        announce(home, server, secret="s")
        assert run(call.split()) == exit_code
        shown = capsys.readouterr()
        assert (shown.out if out is not None else None, shown.err) == (out, err)
        assert run([*call.split(), "--json"]) == exit_code
        assert json.loads(capsys.readouterr().out) == answer


def test_config_show_masks_secrets_and_names_origins(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("RECALLD_QUERY__MAX_RESULTS", "9")
    assert run(["config", "show"]) == 0
    shown = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "query.max_results = 9 # RECALLD_QUERY__MAX_RESULTS" in shown
    assert 'credentials.openai = "***" # OPENAI_API_KEY' in shown
    assert 'provider = "auto"' not in shown
    assert run(["config", "show", "--all"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert 'provider = "auto"' in lines
    assert len(lines) > 50 + len(shown)
    assert run(["config", "show", "--json"]) == 0
    text = capsys.readouterr().out
    settings = json.loads(text)["settings"]
    assert settings["credentials.openai"] == {"value": "***", "origin": "OPENAI_API_KEY"}
    assert "sk-secret" not in text


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_in_a_deleted_folder_is_refused_without_a_crash(
    command: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (gone := tmp_path / "gone").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert run(CALLS.get(command, [command])) == 2
    assert not home.exists()
