"""The doctor finds what was broken on purpose, heals it, and loses nothing."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from tests.daemon import recalld

Doctor = Callable[..., dict[str, Any]]


@pytest.fixture
def indexed(home: Path, workspace: Path, tmp_path: Path) -> Path:
    """The folder of an index of two notes; nothing runs."""
    (workspace / "MEMORY.md").write_text("# Memory\n\nThe gateway listens on port 18789.\n", encoding="utf-8")
    (workspace / "memory" / "zoo.md").write_text("The walrus sleeps at noon.\n", encoding="utf-8")
    (tmp_path / "recalld.toml").write_text('provider = "stub"\n')
    done = recalld("index", "--config", str(tmp_path / "recalld.toml"), "--workspace", str(workspace), home=home)
    assert done.returncode == 0, done.stderr
    return home / "indexes" / "main"


@pytest.fixture
def doctor(home: Path, tmp_path: Path) -> Doctor:
    def doctor(*arguments: str, code: int = 0) -> dict[str, Any]:
        nowhere = {
            "CLAUDE_CONFIG_DIR": str(tmp_path / "claude"),
            "CODEX_HOME": str(tmp_path / "codex"),
            "OPENCLAW_STATE_DIR": str(tmp_path / "openclaw"),
        }
        options = ("--config", str(tmp_path / "recalld.toml"), "--json")
        done = recalld("doctor", *options, *arguments, home=home, environment=nowhere)
        assert done.returncode == code, done.stdout + done.stderr
        return dict(json.loads(done.stdout))

    return doctor


def problems(answer: dict[str, Any]) -> list[str]:
    return [found["message"] for found in answer["findings"] if found["level"] == "problem" and "healed" not in found]


def healed(answer: dict[str, Any]) -> list[str]:
    return [found["healed"] for found in answer["findings"] if "healed" in found]


def finds(home: Path, tmp_path: Path, query: str, path: str) -> bool:
    done = recalld("search", query, "--json", "--config", str(tmp_path / "recalld.toml"), home=home)
    return any(result["path"] == path for result in json.loads(done.stdout)["results"])


def test_a_healthy_home_has_nothing_to_heal(indexed: Path, doctor: Doctor) -> None:
    answer = doctor("--fix", "--online")
    assert answer["ok"]
    assert healed(answer) == []
    assert {"open files", "watches", "keywords", "vectors", "disk", "clock", "broker", "index"} <= {
        found["check"] for found in answer["findings"]
    }
    assert any("answered in" in found["message"] for found in answer["findings"])


def test_nothing_that_runs_is_nothing_that_is_broken(indexed: Path, home: Path, tmp_path: Path) -> None:
    told = recalld("status", "--config", str(tmp_path / "recalld.toml"), home=home)
    assert told.returncode == 0
    assert "does not answer" not in told.stdout
    assert "queue         nothing runs" in told.stdout
    assert "the private one is started when it is needed" in told.stdout


@pytest.mark.long
def test_a_missing_index_is_found_and_made_again(indexed: Path, doctor: Doctor, home: Path, tmp_path: Path) -> None:
    shutil.rmtree(indexed)
    assert "2 documents are missing" in problems(doctor(code=4))[0]
    answer = doctor("--fix")
    assert healed(answer) == ["main: brought up to date"]
    assert finds(home, tmp_path, "walrus", "memory/zoo.md")
    assert doctor()["ok"]


@pytest.mark.long
def test_orphan_rows_are_counted_and_healed_by_building_the_index_anew_beside_the_old_one(
    indexed: Path, doctor: Doctor, home: Path, workspace: Path, tmp_path: Path
) -> None:
    index = indexed / (indexed / "CURRENT").read_text().strip()
    connection = apsw.Connection(str(index))
    [(chunk,)] = connection.execute("SELECT id FROM chunks WHERE text LIKE '%walrus%'").fetchall()
    connection.execute("DELETE FROM chunks_fts WHERE rowid = ?", (chunk,))
    connection.close()
    status = recalld("status", "--deep", "--json", "--config", str(tmp_path / "recalld.toml"), home=home)
    assert json.loads(status.stdout)["agents"][0]["deep"]["orphanRows"] == 1
    assert "does not hold together (1 orphan rows" in problems(doctor(code=4))[0]
    assert healed(doctor("--fix")) == ["main: built anew from files, cache and what it held"]
    assert finds(home, tmp_path, "walrus", "memory/zoo.md")
    assert index.exists(), "the old one is left until nobody can be reading it"
    assert problems(doctor()) == []


def test_an_abandoned_generation_is_removed_and_the_answering_one_stays(indexed: Path, doctor: Doctor) -> None:
    answering = (indexed / "CURRENT").read_text().strip()
    abandoned = indexed / "20200101T000000-0-0000.sqlite"
    shutil.copy(indexed / answering, abandoned)
    os.utime(abandoned, (0, 0))
    assert healed(doctor("--fix")) == ["main: removed 1 unused index files"]
    assert not abandoned.exists()
    assert (indexed / answering).exists()


def test_a_workspace_that_is_not_there_forgets_nothing(indexed: Path, doctor: Doctor, workspace: Path) -> None:
    before = sorted(path.name for path in indexed.iterdir())
    workspace.rename(workspace.with_name("unmounted"))
    answer = doctor("--fix", code=4)
    assert "is not there" in problems(answer)[0]
    assert sorted(path.name for path in indexed.iterdir()) == before


def test_findings_are_one_line_each_and_what_to_do_below(indexed: Path, home: Path, tmp_path: Path) -> None:
    shutil.rmtree(indexed)
    done = recalld("doctor", "--config", str(tmp_path / "recalld.toml"), home=home)
    assert done.returncode == 4
    lines = done.stdout.splitlines()
    [place] = [number for number, line in enumerate(lines) if "missing in the index" in line]
    assert "recalld doctor --fix --config" in lines[place + 1]
    assert lines[-1] == "1 problem left"
