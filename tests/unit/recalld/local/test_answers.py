"""Searches without a running service: this process reads the index, and embeds the query."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from recalld.doctor.examination import examine
from recalld.doctor.finding import Level
from recalld.invocation import Invocation
from recalld.local import answers
from recalld.local.answers import Answer
from recalld.settings.load import load
from tests.written_index import write_index

SAMPLE = Path(__file__).parents[4] / "deploy" / "sample-workspace"


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("RECALLD_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def indexed(home: Path) -> Path:
    """A home whose agent has the sample workspace, indexed with the stub's vectors."""
    home.mkdir()
    (home / "recalld.toml").write_text(f"provider = 'stub'\n[[agents]]\nid = 'main'\nworkspace = '{SAMPLE}'\n", "utf-8")
    write_index(load(home=str(home)).settings)
    return home


def search(home: Path, query: str, **request: Any) -> Answer:
    return answers.search(Invocation(home=str(home)), query, **request)


def test_a_query_is_embedded_and_nothing_is_remarked_on(indexed: Path) -> None:
    answer = search(indexed, "暖气阀门")
    assert answer["results"][0]["path"] == "MEMORY.md"
    assert (answer["mode"], answer["degraded"]) == ("hybrid", [])
    file = indexed / "recalld.toml"
    file.write_text(file.read_text("utf-8").replace("stub", "none"), "utf-8")
    assert search(indexed, "sourdough")["degraded"] == [], "it was chosen on purpose"


def test_searches_and_status_say_that_another_backend_was_meant(indexed: Path) -> None:
    file = indexed / "recalld.toml"
    file.write_text(f"backend = 'qmd'\nqmd.command = 'sh'\n{file.read_text('utf-8')}", "utf-8")
    instead = "no service is running, so recalld's own index answers in place of qmd"
    assert search(indexed, "sourdough")["degraded"] == [instead]
    strange = search(indexed, "sourdough", session_key="agent:other:main")
    assert strange["degraded"] == [], "a session out of scope learns nothing"
    [agent] = answers.status(Invocation(home=str(indexed)), deep=False, on_absence=lambda _: None)["agents"]
    assert agent["backend"] == {"backend": "builtin", "fallbackFrom": "qmd"}
    file.write_text(file.read_text("utf-8").replace("'sh'", "'no-such-command'"), "utf-8")
    answer = answers.status(Invocation(home=str(indexed)), deep=False, on_absence=lambda _: None)
    assert "backend_fails" in [trouble["code"] for trouble in answer["agents"][0]["troubles"]]
    found = examine(Invocation(home=str(indexed)), online=False, fix=False)
    assert [one.level for one in found if one.check == "backend"] == [Level.PROBLEM]


def test_a_damaged_index_is_no_answer_and_no_crash(indexed: Path) -> None:
    folder = indexed / "indexes" / "main"
    name = (folder / "CURRENT").read_text("utf-8").strip()
    (folder / name).write_bytes(b"not a database" * 500)
    (folder / f"{name}-wal").unlink()  # it may hold all pages
    assert search(indexed, "sourdough")["unavailable"] is True
