"""`recalld hook`: programs call it, and it must never be in their way."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from producers.hook_events import Hook
from producers.spool import drain
from recalld.settings.load import find_home
from schemas.ports import Event
from tests.daemon import REPOSITORY, Daemon, clean_environment, recalld
from tests.waiting import wait_until


@pytest.fixture
def config(tmp_path: Path, workspace: Path) -> Path:
    file = tmp_path / "recalld.toml"
    sessions = tmp_path / "sessions"
    file.write_text(
        f'[[agents]]\nid = "main"\nworkspace = "{workspace}"\nsessions = ["{sessions}"]\n', encoding="utf-8"
    )
    return file


def run(
    *arguments: str, home: Path, payload: str | None = None, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `recalld hook ...`."""
    environment = {"HOME": str(home.parent), **(environment or {})}
    return recalld("hook", *arguments, "--home", str(home), payload=payload, environment=environment)


def spooled(home: Path) -> list[Hook]:
    found: list[Event | Hook] = []
    drain(home, found.append)
    assert all(isinstance(hook, Hook) for hook in found)
    hooks = [hook for hook in found if isinstance(hook, Hook)]
    assert all(hook.at is not None and abs(hook.at - time.time()) < 600 for hook in hooks)
    return [hook._replace(at=None) for hook in hooks]


def compaction(tmp_path: Path) -> str:
    path = str(tmp_path / "sessions" / "a.jsonl")
    return json.dumps({"hook_event_name": "PreCompact", "transcript_path": path, "prompt": "the walrus"})


def test_a_hook_is_spooled_and_nothing_is_printed(home: Path, config: Path, tmp_path: Path) -> None:
    ended = run("claude-code", "--config", str(config), home=home, payload=compaction(tmp_path))
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    assert "the walrus" not in "".join(file.read_text() for file in (home / "spool").iterdir()), "what was said"
    assert spooled(home) == [Hook("compaction", (str(tmp_path / "sessions" / "a.jsonl"),), program="claude-code")]
    (tmp_path / "file").write_text("in the way")
    ended = run("claude-code", home=tmp_path / "file" / "home", payload=compaction(tmp_path))
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (0, "", 1)


def test_codex_notify_comes_as_the_last_argument(home: Path) -> None:
    notified = '{"type": "agent-turn-complete", "thread-id": "a", "input-messages": ["--yes"]}'
    assert run("codex", "--agent=coder", notified, home=home).stderr == ""
    assert spooled(home) == [Hook("reconcile", meant="coder", program="codex")]


#: Modules that taking a hook may load beside those of a bare Python. Every one of them is paid for at every hook.
MODULES = {
    *("__future__", "collections", "copyreg", "enum", "errno", "functools", "itertools", "keyword", "operator"),
    *("json", "json.decoder", "json.encoder", "json.scanner", "re", "reprlib", "select", "types"),
    *("re._casefix", "re._compiler", "re._constants", "re._parser"),
    *("recalld", "recalld.__main__", "recalld.hooks", "recalld.hooks.entry"),
    *("recalld.settings", "recalld.settings.places"),
    *("producers", "producers.hook_events", "producers.spool"),
    *("collections.abc", "io"),  # which Python 3.14 has not loaded by itself
}


def test_taking_a_hook_loads_next_to_nothing(home: Path) -> None:
    code = (
        "import sys; before = {*sys.modules}; from recalld.__main__ import main; main();"
        "print(*sorted({*sys.modules} - before))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, "hook", "openclaw", "--home", str(home)],
        cwd=REPOSITORY,
        env=clean_environment({"HOME": str(home.parent)}),
        input='{"type": "command", "action": "stop", "sessionKey": "agent:a:b", "context": {"sessionId": "s"}}',
        capture_output=True,
        text=True,
        timeout=60,
    )
    loaded = {name for name in ended.stdout.split() if not name.startswith("_")}
    assert loaded - MODULES == set()
    assert "producers.spool" in loaded
    assert len(spooled(home)) == 1


def test_the_home_that_a_hook_makes_is_its_owners_alone(home: Path, tmp_path: Path):
    assert run("codex", home=home / "below", payload=compaction(tmp_path)).returncode == 0
    assert len(spooled(home / "below")) == 1
    assert {path for path in (home, *home.rglob("*")) if path.stat().st_mode & 0o077} == set()


@pytest.mark.parametrize("variable", ["RECALLD_HOME", "XDG_DATA_HOME", None])
def test_a_hook_finds_the_home_that_every_command_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str | None
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    environment = clean_environment({"HOME": str(tmp_path), **({variable: str(tmp_path / "data")} if variable else {})})
    hook = [sys.executable, "-m", "recalld", "hook", "codex", '{"hook_event_name": "SessionStart"}']
    subprocess.run(hook, cwd=REPOSITORY, env=environment, check=True, timeout=60)
    assert spooled(find_home(environment=environment)) == [Hook("session-start", program="codex")]


@pytest.mark.parametrize(
    ("arguments", "payload", "words"),
    [
        (["claude-code"], "this is not JSON", "not JSON"),
        (["claude-code"], "", "nothing came"),
    ],
)
def test_whatever_is_wrong_is_one_sentence_and_exit_code_0(
    home: Path, arguments: list[str], payload: str, words: str
) -> None:
    ended = run(*arguments, home=home, payload=payload)
    assert (ended.returncode, ended.stdout) == (0, "")
    assert words in ended.stderr
    assert ended.stderr.startswith(f"recalld hook {arguments[0]}: ")
    assert ended.stderr.count("\n") == 1
    assert not (home / "spool").exists()


# Installing


def test_installing_shows_and_asks_first_and_changes_nothing_else_but_formatting(home: Path, tmp_path: Path) -> None:
    file, real = tmp_path / "settings.json", tmp_path / "dotfiles" / "settings.json"
    real.parent.mkdir()
    file.symlink_to(real)
    before = '{\n   "env": {"ANTHROPIC_API_KEY": "sk-secret"},   "model" : "opus"\n}'
    file.write_text(before, encoding="utf-8")

    def install(*more: str) -> subprocess.CompletedProcess[str]:
        return run("install", "claude-code", "--settings", str(file), *more, home=home, payload="")

    shown = install()
    assert (shown.returncode, "--yes" in shown.stderr, "sk-secret" in shown.stdout) == (2, True, False)
    assert shown.stdout.startswith("+ ")
    assert "PreCompact" in shown.stdout
    assert file.read_text() == before

    assert install("--yes").returncode == 0
    after = file.read_text()
    hooks = json.loads(after)["hooks"]
    assert set(hooks) == {"SessionStart", "PreCompact", "PostCompact", "Stop", "SessionEnd"}
    assert after == json.dumps({**json.loads(before), "hooks": hooks}, indent=3) + "\n"
    (copy,) = real.parent.glob("settings.json.before-recalld-*")
    assert (file.is_symlink(), copy.read_text(), copy.stat().st_mode) == (True, before, file.stat().st_mode)

    assert "there already" in install("--yes").stdout
    assert file.read_text() == after
    assert install("--yes", "--remove").returncode == 0
    assert file.read_text() == json.dumps(json.loads(before), indent=3) + "\n"


def test_installed_commands_work_from_anywhere(home: Path, config: Path, tmp_path: Path) -> None:
    folders = {name: str(tmp_path / name) for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "OPENCLAW_STATE_DIR")}
    named = ("--config", str(config), "--yes")
    for program, file in (("claude-code", "CLAUDE_CONFIG_DIR/settings.json"), ("codex", "CODEX_HOME/hooks.json")):
        installed = run("install", program, *named, home=home, payload="", environment=folders)
        assert installed.returncode == 0, installed.stderr
        assert ("/hooks" in installed.stdout) is (program == "codex")
        (handler,) = json.loads((tmp_path / file).read_text())["hooks"]["PreCompact"][0]["hooks"]
        ended = subprocess.run(
            handler["command"],
            shell=True,
            cwd="/",
            env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
            input=compaction(tmp_path),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
        assert [(hook.kind, hook.program) for hook in spooled(home)] == [("compaction", program)]
    printed = run("install", "openclaw", home=home, payload="", environment=folders).stdout
    assert str(tmp_path / "OPENCLAW_STATE_DIR" / "hooks" / "recalld" / "HOOK.md") in printed
    assert "session:compact:after" in printed
    assert not (tmp_path / "OPENCLAW_STATE_DIR").exists()


# With everything running


@pytest.mark.long
def test_a_compaction_is_searchable_long_before_its_session_is_quiet(
    home: Path, workspace: Path, tmp_path: Path
) -> None:
    sessions = tmp_path / "sessions"
    sessions.mkdir()
    config = (
        "[hooks]\nport = 0\n"
        f'[[agents]]\nid = "main"\nworkspace = "{workspace}"\nsessions = ["{sessions}"]\n'
        "sync.sessions.quiet_seconds = 3600\n"
    )
    session = sessions / "0b1a.jsonl"

    def said(text: str) -> str:
        return json.dumps({"type": "user", "sessionId": "0b1a", "message": {"role": "user", "content": text}}) + "\n"

    session.write_text(said("The walrus sleeps at noon."))
    payload = {"hook_event_name": "PreCompact", "transcript_path": str(session)}
    with Daemon(home, workspace, config=config) as daemon:
        wait_until(lambda: daemon.found("walrus", "sessions/0b1a.jsonl"))
        (url,) = [line.split()[-1] for line in daemon.said().splitlines() if "hooks at" in line]
        assert f"hooks         {url}" in daemon.run("status").stdout
        with session.open("a") as file:
            file.write(said("The quokka smiled."))
        sent = httpx.post(url.replace("PROGRAM", "claude-code"), json=payload, trust_env=False, timeout=60)
        assert sent.json() == {"accepted": True}
        wait_until(lambda: daemon.found("quokka", "sessions/0b1a.jsonl"))
        outside = {**payload, "transcript_path": str(tmp_path / "elsewhere.jsonl")}
        (tmp_path / "elsewhere.jsonl").write_text(said("The numbat must not be read."))
        sent = httpx.post(url.replace("PROGRAM", "claude-code"), json=outside, trust_env=False, timeout=60)
        assert not sent.json()["accepted"]
        told = ("claude-code", "--agent", "main", *daemon.options()[:2])
        assert run(*told, home=home, payload=json.dumps(outside)).returncode == 0
        wait_until(lambda: "elsewhere.jsonl" in str(daemon.status()["troubles"]))
        assert not any("numbat" in result["snippet"] for result in daemon.search("numbat"))
