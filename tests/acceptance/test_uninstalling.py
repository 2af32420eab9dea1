"""Removal of recalld: everything that it made, and no other file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from memory.embedding.consent import Consents
from tests.daemon import processes_of, recalld


@pytest.fixture
def user(tmp_path: Path) -> Path:
    """A user with notes, and settings of Claude Code and OpenClaw."""
    folder = tmp_path / "user"
    for file, text in {
        "notes/MEMORY.md": "The heron stands in the reeds.\n",
        ".claude/settings.json": '{\n  "model": "opus"\n}\n',
        ".codex/config.toml": "",
    }.items():
        (folder / file).parent.mkdir(parents=True)
        (folder / file).write_text(text)
    return folder


def run(user: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command as that user, in the folder of notes."""
    usual = {"HOME": str(user), "XDG_DATA_HOME": "", "XDG_CONFIG_HOME": "", "CLAUDE_CONFIG_DIR": "", "CODEX_HOME": ""}
    return recalld(*arguments, environment={**usual, "RECALLD_PROVIDER": "stub", "RECALLD_SERVICE__PORT": "0"})


def done(user: Path, *arguments: str) -> str:
    answer = run(user, *arguments)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def files(user: Path) -> dict[str, str]:
    return {str(file.relative_to(user)): file.read_text() for file in user.rglob("*") if file.is_file()}


def test_everything_that_recalld_made_is_removed_and_nothing_else(user: Path) -> None:
    before, home = files(user), user / ".local" / "share" / "recalld"
    (user / ".config" / "recalld").mkdir(parents=True)
    # As `recalld discover --write` writes it.
    (user / ".config" / "recalld" / "recalld.toml").write_text(
        '# Settings of recalld, written by `recalld discover`.\n[[agents]]\nid = "main"\nworkspace = "~/notes"\n'
    )
    done(user, "connect", "cursor", "--yes")
    assert (user / ".cursor" / "mcp.json").exists()
    run(user, "connect", "codex", "--rules", "user", "--no-hooks", "--yes")
    assert "memory_search" in (user / ".codex" / "AGENTS.md").read_text()
    for program in ("claude-code", "codex"):
        done(user, "hook", "install", program, "--yes")
    hook = done(user, "hook", "install", "openclaw").split("# /")
    folder = user / ".openclaw" / "hooks" / "recalld"
    folder.mkdir(parents=True)
    for text in hook[1:]:
        name, _, content = text.partition("\n")
        (folder / Path(name).name).write_text(content)
    done(user, "up", "--detach")
    done(user, "search", "heron")
    done(user, "emit", "reconcile")
    done(user, "backfill", "--pause")
    Consents(home / "consents" / "main.jsonl", ask_above=0.5).grant("a model", 1000)
    theirs = {"diary.md": "d", "indexes/main/poem.md": "p", "log/notes.txt": "n"}
    for name, text in theirs.items():
        (home / name).write_text(text)

    refused = run(user, "uninstall")
    [line] = refused.stderr.splitlines()
    assert (refused.returncode, "--yes" in line) == (2, True)
    for name in (".claude/settings.json", "hooks.json", "mcp.json", "AGENTS.md", "openclaw", "recalld.toml", *theirs):
        assert name in refused.stdout
    assert processes_of(home)

    shown = done(user, "uninstall", "--yes")
    assert "the program stays; " in shown
    assert processes_of(home) == []
    prefix = ".local/share/recalld/"
    assert files(user) == {**before, **{prefix + name: text for name, text in theirs.items()}}
    assert sorted(path.name for path in (user / ".local" / "share" / "recalld").iterdir()) == [
        "diary.md",
        "indexes",
        "log",
    ]
    assert not folder.exists()
    assert not (user / ".config" / "recalld").exists()


def test_settings_by_hand_links_and_the_hooks_of_another_home_stay(user: Path, tmp_path: Path) -> None:
    elsewhere, indexes, home = tmp_path / "disk", tmp_path / "indexes", user / "linked"
    elsewhere.mkdir()
    home.symlink_to(elsewhere)
    settings = home / "recalld.toml"
    settings.write_text(f'store.path = "{indexes}"\n[[agents]]\nid = "main"\nworkspace = "{user / "notes"}"\n')
    options = ["--home", str(home)]
    done(user, "hook", "install", "claude-code", "--yes", "--home", str(tmp_path / "other"))
    hooks = (user / ".claude" / "settings.json").read_text()
    done(user, *options, "index")
    assert list(indexes.rglob("*.sqlite"))
    assert "home: " not in done(user, *options, "uninstall", "--yes", "--keep-home")
    assert list(indexes.rglob("*.sqlite"))
    shown = done(user, *options, "uninstall", "--yes")
    assert f"{user / '.claude' / 'settings.json'} stays: its hooks" in shown
    assert f"{settings} stays" in shown
    assert (user / ".claude" / "settings.json").read_text() == hooks
    assert [path.name for path in elsewhere.iterdir()] == ["recalld.toml"]
    assert home.is_symlink()
    assert not indexes.exists()
    assert (user / "notes" / "MEMORY.md").exists()


def test_where_and_stop_name_the_folders_and_load_nothing_heavy(user: Path) -> None:
    home = user / "home"
    (home / "log").mkdir(parents=True)
    (home / "log" / "up.log").write_text("x" * 10)
    (home / "recalld.toml").write_text("store.path = 'elsewhere'\nanswers = 42\n")
    answer = json.loads(done(user, "--home", str(home), "where", "--json"))
    assert answer["settings"] == {"path": str(home / "recalld.toml"), "bytes": 38}
    assert answer["logs"] == {"path": str(home / "log"), "bytes": 10}
    assert answer["indexes"] == {"path": str(home / "elsewhere"), "bytes": None}
    code = (
        "import sys; from recalld.cli import run; run(['where']); run(['stop']);"
        "print({'pydantic', 'numpy', 'structlog', 'apsw', 'redis', 'dramatiq'} & set(sys.modules))"
    )
    environment = {**os.environ, "RECALLD_HOME": str(home)}
    loaded = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert loaded.stdout.splitlines()[-1] == "set()"
