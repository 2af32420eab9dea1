"""Settings files of two versions of OpenClaw, accepted by OpenClaw itself, as recalld takes them over."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from recalld.discover.machine import discover
from recalld.discover.memories import DiscoveredMemory, Discovery, settings_file
from recalld.discover.openclaw import leaves_of, read_json5
from recalld.discover.translation import Translation
from recalld.settings.keys import dotted
from recalld.settings.load import load
from recalld.settings.program_folders import ProgramFolders
from schemas.settings import Settings
from tests import npm

FIXTURES = Path(__file__).parent / "openclaw"
CURRENT, MARCH = FIXTURES / "2026.9.6.json5", FIXTURES / "2026.3.json5"


def memory_search(fixture: Path) -> dict[str, Any]:
    tree: dict[str, Any] = read_json5(fixture.read_text())["memory"]["search"]
    return tree


def leaves(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping) and above + name not in ("remote.apiKey", "remote.headers"):
            yield from leaves(value, f"{above}{name}.")
        else:
            yield above + name, value


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def found_with(home: Path, fixture: Path, *folders: str) -> Discovery:
    for folder in folders:
        (home / folder).mkdir(parents=True)
    (home / ".openclaw").mkdir(exist_ok=True)
    shutil.copy(fixture, home / ".openclaw" / "openclaw.json")
    (home / "here").mkdir()
    return discover(ProgramFolders.named_by({}), home / "here", seconds=60)


def written(home: Path, *found: DiscoveredMemory) -> Settings:
    """The settings that recalld loads from what it writes."""
    file = home / "recalld.toml"
    file.write_text(settings_file(found))
    assert tomllib.loads(file.read_text())["agents"]
    return load(config=str(file), home=str(home / "recalld"), environment={}).settings


def test_a_file_of_2026_9_6_is_taken_over_agent_by_agent(home: Path) -> None:
    discovery = found_with(
        home, CURRENT, "notes", "agents/work", "agents/travel", ".openclaw/agents/main/sessions", "shared", "runbooks"
    )
    assert discovery.problems == ()
    main, work, travel = discovery.memories
    settings = written(home, main, work, travel)
    assert [agent.id for agent in settings.agents] == ["main", "Work", "travel"]
    one, two, three = settings.agents
    assert [agent.workspace for agent in settings.agents] == [
        home / "notes",
        home / "agents/work",
        home / "agents/travel",
    ]
    assert (one.provider, one.model, one.fallback) == ("openai-compatible", "asymmetric-embedder", "ollama")
    assert one.remote.base_url == "https://embeddings.example/v1"
    assert one.local.model_path == "hf:example/embedder/embedder-q8.gguf"
    assert (one.query_input_type, one.document_input_type, one.output_dimensionality) == ("query", "passage", 768)
    assert (one.sources, one.citations) == (("memory", "sessions"), "on")
    assert [(rule.action, rule.chat_type) for rule in one.scope.rules] == [("deny", "group"), ("deny", "channel")]
    assert (one.query.max_results, one.query.min_score) == (8, 0.3)
    assert one.query.hybrid.mmr.enabled
    assert one.query.hybrid.temporal_decay.enabled
    paths = ["~/wiki", {"path": "~/shared", "include": ["./*.md"]}]
    assert dotted(main.settings)["extra_paths"] == paths
    assert (two.provider, two.model) == ("ollama", "qwen3-embedding:0.6b")
    assert two.remote.base_url == "http://gpu-box.example:11435"
    assert (two.sources, two.scope.rules, two.query.max_results, two.query.min_score) == (("memory",), (), 12, 0.3)
    runbooks = {"path": "~/runbooks", "include": ["on-call/**/*.md"]}
    assert dotted(work.settings)["extra_paths"] == [*paths, runbooks]
    assert (three.provider, three.model, three.remote.base_url) == ("auto", None, None)
    assert any("github-copilot" in remark for remark in travel.remarks)
    assert three.scope.rules == (), "it has no transcripts that a group could see"
    assert (settings.cache.enabled, settings.store.vector.enabled) == (False, True)
    assert settings.store.vector.extension_path == Path("/usr/lib/sqlite/vec0.so")


#: Leaf of `memory.search` -> key of ours that holds its value, or word of the remark, where it is not called the same.
ANSWERS = {
    "inputType": "query_input_type",
    "rememberAcrossConversations": "sources",
    "experimental.sessionMemory": "sources",
    "remote.apiKey": "RECALLD_REMOTE__API_KEY",
    **{f"multimodal.{name}": "multimodal" for name in ("enabled", "modalities", "maxFileBytes")},
}


@pytest.mark.parametrize("leaf", [key for key, _ in leaves(memory_search(CURRENT))])
def test_no_leaf_of_memory_search_vanishes(leaf: str) -> None:
    value: Any = dict(leaves(memory_search(CURRENT)))[leaf]
    for part in reversed(leaf.split(".")):
        value = {part: value}
    done = Translation(leaves_of({"memory": {"search": value}}, {}), is_current=True, has_transcripts=True)
    snake = re.sub("[A-Z]", lambda sign: f"_{sign[0].lower()}", leaf)
    assert {ANSWERS.get(leaf, leaf), snake} & {*done.values, *" ".join(done.remarks).split()}


def test_a_file_of_march_is_taken_over_as_before(home: Path) -> None:
    main, work = found_with(home, MARCH, "notes", "work", ".openclaw/agents/main/sessions").memories
    one, two = written(home, main, work).agents
    assert (one.workspace, two.workspace) == (home / "notes", home / "work")
    assert (one.provider, one.fallback, two.provider) == ("gemini", "local", "ollama")
    assert (two.model, two.extra_paths) == ("gemini-embedding-001", (str(home / "wiki"), str(home / "runbooks")))
    assert (one.sources, one.scope.rules) == (("memory", "sessions"), ())
    assert (one.query.hybrid.mmr.enabled, one.query.hybrid.temporal_decay.enabled) == (True, False)
    assert [remark for remark in main.remarks if "not copied" in remark]


def test_a_half_migrated_file_keeps_both_halves_and_prefers_the_newer(home: Path) -> None:
    march, current = read_json5(MARCH.read_text()), read_json5(CURRENT.read_text())
    mixed = {
        "agents": {**march["agents"], "entries": {"main": {"memory": {"search": {"query": {"maxResults": 3}}}}}},
        "memory": {"search": {"provider": "voyage"}, "citations": current["memory"]["citations"]},
    }
    file = home / "mixed.json"
    file.write_text(json.dumps(mixed))
    main, work = found_with(home, file, "notes", "work").memories
    one, two = written(home, main, work).agents
    assert (one.provider, two.provider) == ("voyage", "ollama")
    assert (one.query.max_results, two.query.max_results, one.query.min_score) == (3, 8, 0.3)
    assert one.chunking.tokens == 500
    assert one.workspace == home / "notes"


@pytest.mark.long
def test_todays_openclaw_accepts_the_file_and_has_no_leaf_beside_it(home: Path, pytestconfig: pytest.Config) -> None:
    program = npm.openclaw(pytestconfig, home)
    variables = {"HOME": str(home), "OPENCLAW_STATE_DIR": str(home / "state"), "OPENCLAW_CONFIG_PATH": str(CURRENT)}

    def run(*arguments: str) -> str:
        ended = subprocess.run([*program, *arguments], env=variables, capture_output=True, text=True, timeout=300)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    assert "Config valid" in run("config", "validate")
    schema = json.loads(run("config", "schema"))["properties"]["memory"]["properties"]["search"]
    theirs = {key for key, _ in leaves(properties(schema))}
    assert theirs == {key for key, _ in leaves(memory_search(CURRENT))}
    assert len(theirs) == 26


def properties(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema as the tree that it describes."""
    return {
        name: properties(below) if below.get("type") == "object" and "properties" in below else None
        for name, below in schema["properties"].items()
    }
