"""Backup of a home while its daemon runs and indexes, and restoration: the same answers, nothing paid, no secret."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from memory.embedding.consent import Consents
from recalld.cli import run
from tests.daemon import Daemon, recalld
from tests.embedding_server import EmbeddingServer
from tests.waiting import wait_until

QUESTIONS = ("badger and otter", "what is number 17", "heron")


def answers(daemon: Daemon) -> list[list[dict[str, Any]]]:
    return [daemon.search(question, "--min-score", "0", "--max-results", "20") for question in QUESTIONS]


@pytest.mark.long
def test_a_home_is_backed_up_while_it_indexes_and_answers_the_same_when_restored(
    tmp_path: Path, workspace: Path
) -> None:
    secret, folder, home = "sk-planted-4f9a8c7b6d5e4f3a2b1c", tmp_path / "copy", tmp_path / "restored"
    for number in range(40):
        (workspace / "memory" / f"{number}.md").write_text(f"The badger of number {number} met an otter.\n")
    with EmbeddingServer() as server:
        config = f'remote.base_url = "{server.url}"\nremote.api_key = "{secret}"\n# The old one: api_key = "{secret}"\n'
        with Daemon(tmp_path / "home", workspace, provider="openai", config=config) as daemon:
            wait_until(lambda: daemon.status()["ok"])
            for number in range(40, 80):
                daemon.write(f"memory/{number}.md", f"The heron of number {number} met an otter.\n")
            assert daemon.run("backup", str(folder)).returncode == 0
            wait_until(lambda: daemon.status()["ok"] and daemon.status()["index"]["vectorsReady"] == 80)
            shutil.rmtree(folder)
            made = daemon.run("backup", str(folder))
            assert "without the lines that hold keys" in made.stderr
            expected, tokens = answers(daemon), [path.read_text().strip() for path in tmp_path.glob("home/run/*-token")]
            assert tokens
        texts = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
        assert not [text for text in texts for planted in (secret, *tokens) if planted.encode() in text]
        assert {path.stat().st_mode & 0o077 for path in (folder, *folder.rglob("*"))} == {0}

        paid = server.inputs
        assert recalld("restore", str(folder), home=home).returncode == 0
        (home / "recalld.toml").unlink()  # the daemon gets the settings, with the key, by --config
        with Daemon(home, workspace, provider="openai", config=config) as daemon:
            wait_until(lambda: daemon.status()["ok"])
            assert (daemon.status()["index"]["files"], server.inputs) == (80, paid)
            assert answers(daemon) == expected
            refused = daemon.run("restore", str(folder))
            assert (refused.returncode, "has content" in refused.stderr) == (2, True)


@pytest.fixture
def folder(tmp_path: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for homes; `home` has an index, and its settings are its own."""
    monkeypatch.setenv("RECALLD_CONFIG", "")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    (tmp_path / "home").mkdir(exist_ok=True)
    (tmp_path / "home" / "recalld.toml").write_text(
        f'# Mine.\nprovider = "stub"\nstore.path = "elsewhere"\n[[agents]]\nid = "main"\nworkspace = "{workspace}"\n'
    )
    (workspace / "MEMORY.md").write_text("The heron stands in the reeds.\n")
    assert run(["--home", str(tmp_path / "home"), "index"]) == 0
    return tmp_path


def test_indexes_are_restored_where_the_settings_say_and_the_cache_with_them(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["--home", str(folder / "home"), "backfill", "--pause"]) == 0
    Consents(folder / "home" / "consents" / "main.jsonl", ask_above=0.5).grant("a model", 1000)
    assert run(["--home", str(folder / "home"), "backup", str(folder / "copy")]) == 0
    assert run(["--home", str(folder / "b"), "restore", str(folder / "copy")]) == 0
    for record in ("imports/main.halt", "consents/main.jsonl"):
        assert (folder / "b" / record).read_bytes() == (folder / "home" / record).read_bytes()
    assert run(["--home", str(folder / "b"), "backfill", "--resume"]) == 0
    assert (folder / "b" / "recalld.toml").read_text() == (folder / "home" / "recalld.toml").read_text()
    assert list(folder.glob("b/elsewhere/main/*.sqlite"))
    capsys.readouterr()
    assert run(["--home", str(folder / "b"), "search", "heron", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["results"]
    # The cache has come along as well: an index made anew costs nothing.
    shutil.rmtree(folder / "b" / "elsewhere")
    assert run(["--home", str(folder / "b"), "index"]) == 0
    assert "spent" not in capsys.readouterr().out


def test_an_incomplete_backup_and_a_home_with_content_are_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy, home = folder / "copy", folder / "b"
    assert run(["--home", str(folder / "home"), "backup", str(copy)]) == 0
    assert run(["--home", str(folder / "home"), "backup", str(copy)]) == 2
    home.mkdir()
    (home / "diary.txt").write_text("mine")
    assert run(["--home", str(home), "restore", str(copy)]) == 2
    (home / "diary.txt").unlink()
    (copy / "backup-version").unlink()
    assert run(["--home", str(home), "restore", str(copy)]) == 1
    assert list(home.iterdir()) == []
    errors = capsys.readouterr().err
    assert (errors.count("has content"), errors.count("no complete backup")) == (2, 1)


@pytest.mark.parametrize(
    ("lines", "is_copied"),
    [
        ('remote.api_key = "abc"', True),
        ('[remote]\napi_key = "abc"\nbase_url = "http://localhost:1/v1"', True),
        ('broker.url = "redis://u:abc@localhost/0"', True),
        ('remote = { api_key = "abc" }', False),
        ('remote.api_key = """\nabc"""', False),
        ('[remote.headers]\nX-Custom = "abc"', False),
        ('[broker]\nurl = "redis://localhost/0"', True),
    ],
)
def test_a_key_in_the_settings_is_left_out_or_the_backup_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], lines: str, is_copied: bool
) -> None:
    settings = folder / "home" / "recalld.toml"
    settings.write_text(settings.read_text().replace("[[agents]]", f"{lines}\n[[agents]]"))
    code = run(["--home", str(folder / "home"), "backup", str(folder / "copy")])
    assert code == (0 if is_copied else 1)
    copied = folder / "copy" / "recalld.toml"
    assert copied.exists() == is_copied
    if is_copied:
        assert "abc" not in copied.read_text()
        assert '# Mine.\nprovider = "stub"' in copied.read_text()
    else:
        assert "cannot leave out a key" in capsys.readouterr().err
