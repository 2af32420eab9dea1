"""The ordinary commands of one machine whose index is in PostgreSQL."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.daemon import recalld
from tests.postgres_server import Urls


class Machine:
    """A home and a workspace, and the URL of its store."""

    def __init__(self, home: Path, workspace: Path, url: str, queue: str) -> None:
        self.home, self.workspace = home, workspace
        self.environment = {"RECALLD_PROVIDER": "stub", "RECALLD_STORE__URL": url, "REDIS_URL": queue}

    def run(self, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
        return recalld(*arguments, home=self.home, environment={**self.environment, **settings})

    def index(self, **settings: str) -> dict[str, Any]:
        answer = self.run("index", "--workspace", str(self.workspace), "--json", **settings)
        assert answer.returncode == 0, answer.stdout + answer.stderr
        return dict(json.loads(answer.stdout)["agents"][0])

    def paths(self, query: str, **settings: str) -> list[str]:
        answer = self.run("search", query, "--json", **settings)
        assert answer.returncode == 0, answer.stdout + answer.stderr
        return [result["path"] for result in json.loads(answer.stdout)["results"]]


@pytest.fixture
def machine(home: Path, workspace: Path, fleet_urls: Urls, redis_url: str) -> Machine:
    return Machine(home, workspace, fleet_urls.writer, redis_url)


def test_notes_are_indexed_and_found_in_postgresql(machine: Machine, fleet_urls: Urls) -> None:
    note = machine.workspace / "MEMORY.md"
    note.write_text("The lynx hides in the forest beyond the third lake.\n")
    (machine.workspace / "memory" / "2026-11-20.md").write_text("The margay climbs trees.\n")
    report = machine.index()
    assert (report["files"], report["chunks"], report["vectorsReady"], report["vectorsPending"]) == (2, 2, 2, 0)
    assert machine.paths("lynx")[0] == "MEMORY.md"
    assert not list(machine.home.glob("indexes/**/*.sqlite"))

    note.write_text("The ocelot hides.\n")
    assert machine.index()["files"] == 2
    assert machine.paths("ocelot")[0] == "MEMORY.md"
    assert machine.paths("ocelot", RECALLD_STORE__URL=fleet_urls.reader)[0] == "MEMORY.md", "a role that reads suffices"

    changed = {"RECALLD_CHUNKING__TOKENS": "64", "RECALLD_CHUNKING__OVERLAP": "0"}
    assert machine.index(**changed)["files"] == 2
    assert machine.paths("margay", **changed)[0] == "memory/2026-11-20.md"
    with psycopg.connect(fleet_urls.superuser) as connection:
        states = connection.execute("SELECT state FROM recalld.generations ORDER BY state").fetchall()
        vectors = connection.execute("SELECT count(embedding) FROM recalld.chunks GROUP BY generation").fetchall()
    assert (states, vectors) == ([("current",), ("old",)], [(2,), (2,)])
    status = json.loads(machine.run("status", "--deep", "--json", **changed).stdout)
    assert [trouble["code"] for trouble in status["agents"][0]["troubles"]] == []


def test_a_store_that_is_away_is_one_sentence(machine: Machine) -> None:
    (machine.workspace / "MEMORY.md").write_text("The lynx hides.\n")
    away = {"RECALLD_STORE__URL": "postgresql://recalld:secret@127.0.0.1:1/recalld"}
    for command in (("index", "--workspace", str(machine.workspace)), ("search", "lynx")):
        answer = machine.run(*command, **away)
        assert answer.returncode != 0
        assert "PostgreSQL cannot be reached" in answer.stdout + answer.stderr
        assert "Traceback" not in answer.stderr
        assert "secret" not in answer.stdout + answer.stderr
