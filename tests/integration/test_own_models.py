"""A model of one's own from the settings to a search, fetched by the command; and the prefixes of model families."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from memory.embedding.providers.model_catalogue import CATALOGUE
from recalld.settings.load import load
from schemas.conditions import ConditionCode
from tests.commanding import CommandLine
from tests.daemon import Daemon
from tests.embedding_server import EmbeddingServer
from tests.model_hub import ModelHub
from tests.quiet_health import QuietHealth
from tests.serving import running, search
from tests.tiny_model import write_model
from tests.unit.memory.embedding.providers.test_gguf_model import write_gguf, write_stand_in
from tests.waiting import wait_until


@pytest.fixture
def notes(commands: CommandLine, workspace: Path) -> CommandLine:
    """Commands of an agent with two notes; the provider is what RECALLD_LOCAL__MODEL_PATH names."""
    config = workspace.parent / "recalld.toml"
    config.write_text(f'provider = "local"\n[[agents]]\nid = "main"\nworkspace = "{workspace}"\n')
    (workspace / "memory" / "pets.md").write_text("the cat sleeps\n", "utf-8")
    (workspace / "memory" / "house.md").write_text("the boiler valve\n", "utf-8")
    return commands


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[ModelHub]:
    """A hub with one model, which the catalogue knows as `tiny`."""
    with ModelHub(write_model(tmp_path / "published")) as running:
        CATALOGUE["tiny"] = running.model()
        yield running
        del CATALOGUE["tiny"]


def found(home: Path, query: str) -> tuple[str, list[str]]:
    """Return the mode of a search by the query service, and the notes that it found."""
    settings = load(home=str(home), environment=dict(os.environ)).settings
    with running(settings) as client:
        answer = search(client, query, minScore=0)
    return answer["mode"], [result["path"] for result in answer["results"]]


def test_a_folder_is_indexed_with_and_found_by_meaning(notes: CommandLine, home: Path, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "models" / "mine", prompts={"query": "query: ", "document": "passage: "})
    notes.set("RECALLD_LOCAL__MODEL_PATH", str(folder))
    body = notes.agent("index")
    assert (body["files"], body["vectorsReady"], body["code"]) == (2, 2, None)
    assert found(home, "feline naps") == ("hybrid", ["memory/pets.md", "memory/house.md"])
    status = notes.agent("status")
    assert (status["provider"], status["model"], status["ok"]) == ("local", "mine", True)
    # The folder moves: nothing is embedded again.
    moved = folder.rename(tmp_path / "elsewhere")
    notes.set("RECALLD_LOCAL__MODEL_PATH", str(moved))
    assert notes.agent("index", "--dry-run")["toEmbed"] == 0
    assert found(home, "tap heating")[1][0] == "memory/house.md"


def test_a_hostile_folder_is_a_condition_with_its_remedy_and_keywords_go_on(notes: CommandLine, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "mine")
    (folder / "tokenizer.json").unlink()
    notes.set("RECALLD_LOCAL__MODEL_PATH", str(folder))
    code, out, err = notes.run("index", "--json")
    assert "Traceback" not in out + err
    assert (code, json.loads(out)["agents"][0]["code"]) == (4, ConditionCode.VECTORS_UNAVAILABLE)
    [trouble] = json.loads(notes.run("status", "--json")[1])["agents"][0]["troubles"]
    assert (trouble["part"], trouble["code"]) == ("embedding", ConditionCode.VECTORS_UNAVAILABLE)
    assert str(folder) in trouble["message"]
    assert found(notes.home, "cat") == ("keyword", ["memory/pets.md"])


# The command ----------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_model_is_pulled_set_and_searched_with(notes: CommandLine, hub: ModelHub, server: EmbeddingServer) -> None:
    notes.set("HF_ENDPOINT", hub.url)
    notes.set("RECALLD_LOCAL__MODEL_PATH", str(write_model(notes.home.parent / "before", seed=3)))
    notes.say("index")
    code, out, err = notes.run("model", "pull", "tiny")
    assert (code, err.count("\r")) == (0, 0), "no bar where there is no terminal"
    assert 'model_path = "tiny"' in out
    assert "index --dry-run" in out
    assert (notes.home / "cache" / "models" / "tiny-0123456789ab" / "model.onnx").is_file()
    asked = len(hub.ranges)
    notes.say("model", "pull", "tiny")
    assert len(hub.ranges) == asked

    notes.set("RECALLD_LOCAL__MODEL_PATH", "tiny")
    assert "2 texts to embed" in notes.say("index", "--dry-run")
    assert notes.agent("index")["vectorsReady"] == 2
    assert found(notes.home, "feline naps")[1][0] == "memory/pets.md"
    assert notes.agent("status")["model"] == "tiny"
    assert server.requests == 0


def test_what_cannot_be_pulled_is_one_sentence_and_the_bundled_model_goes_on(notes: CommandLine, hub: ModelHub) -> None:
    notes.set("HF_ENDPOINT", "http://127.0.0.1:1")
    code, _, err = notes.run("model", "pull", "bekko-a8m")
    assert code == 1
    assert "bundled" in err
    assert "Traceback" not in err
    hub.spoils = True
    code, _, err = notes.run("model", "pull", "tiny", "--hub", hub.url)
    assert (code, "SHA-256" in err) == (1, True)
    assert notes.run("model", "pull", "no-such-model")[0] == 2
    code, _, err = notes.run("model", "pull", "stella-400M")
    assert (code, "optimum-cli" in err) == (1, True)
    assert not [path for path in (notes.home / "cache" / "models").iterdir() if path.is_dir()]
    assert notes.agent("index", "--dry-run")["model"] == "multilingual-use-v3"


@pytest.fixture
def llama_cpp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install the stand-in for llama-cpp-python."""
    monkeypatch.syspath_prepend(write_stand_in(tmp_path))
    sys.modules.pop("llama_cpp", None)
    yield
    sys.modules.pop("llama_cpp", None)


@pytest.mark.long
@pytest.mark.usefixtures("llama_cpp")
def test_a_file_of_the_hub_is_pulled_by_its_name_and_searched_with(notes: CommandLine, hub: ModelHub) -> None:
    name = "hf:people/tiny/tiny.gguf"
    write_gguf(hub.folder / "tiny.gguf")
    notes.set("HF_ENDPOINT", hub.url)
    notes.set("RECALLD_LOCAL__MODEL_PATH", name)
    code, out, _ = notes.run("index", "--json")
    assert (code, f"`recalld model pull {name}`" in out) == (4, True)
    code, out, err = notes.run("model", "pull", name)
    assert (code, f'model_path = "{name}"' in out, "not pinned by recalld" in err) == (0, True, True)
    assert notes.agent("index")["vectorsReady"] == 2
    status = notes.agent("status")
    assert (status["model"], status["ok"], status["mode"]) == ("tiny", True, "hybrid")
    assert notes.run("model", "pull", "hf:people/tiny/../tiny.gguf")[0] == 2
    write_gguf(notes.home / "cache" / "models" / "hf" / "people" / "tiny" / "tiny.gguf" / "tiny.gguf", "other=fact")
    [trouble] = json.loads(notes.run("status", "--json")[1])["agents"][0]["troubles"]
    assert "tiny.gguf is not what was fetched" in trouble["message"]


def test_a_start_pulls_a_missing_model_only_where_the_settings_let_it(notes: CommandLine, hub: ModelHub) -> None:
    write_gguf(hub.folder / "tiny.gguf")
    notes.set("HF_ENDPOINT", hub.url)
    notes.set("RECALLD_LOCAL__MODEL_PATH", "hf:people/tiny/tiny.gguf")
    file = notes.home / "cache" / "models" / "hf" / "people" / "tiny" / "tiny.gguf" / "tiny.gguf"
    # Without its workspace the command ends before it starts anything.
    notes.workspace.rename(notes.workspace.with_name("away"))
    for allowed, is_there in (("false", False), ("true", True)):
        notes.set("RECALLD_LOCAL__PULL", allowed)
        code, _, err = notes.run("up", "--port", "0")
        assert (code, "workspace" in err, file.is_file()) == (2, True, is_there)


# The bundled model in place of a missing one


def test_auto_without_its_model_takes_the_bundled_one_and_asks_no_service(
    commands: CommandLine, workspace: Path, tmp_path: Path
) -> None:
    folder, away = write_model(tmp_path / "mine"), tmp_path / "away"
    (workspace.parent / "recalld.toml").write_text(
        f'remote.base_url = "{commands.server.url}"\nlocal.model_path = "{folder}"\n'
        f'[[agents]]\nid = "main"\nworkspace = "{workspace}"\n'
    )
    commands.set("OPENAI_API_KEY", "sk-a-key")
    (workspace / "memory" / "pets.md").write_text("the cat sleeps\n", "utf-8")
    folder.rename(away)
    assert commands.agent("index")["vectorsReady"] == 1
    status = commands.agent("status")
    reason = f"local.model_path {folder} does not exist; the bundled model is used"
    assert (status["model"], status["providerReason"], status["ok"]) == ("multilingual-use-v3", reason, True)
    # It comes back, and is a change of model; it goes again, and its index waits for it.
    away.rename(folder)
    assert commands.agent("index")["vectorsReady"] == 1
    made = commands.agent("status")
    assert (made["model"], made["mode"]) == ("mine", "hybrid")
    folder.rename(away)
    (workspace / "memory" / "house.md").write_text("the boiler valve\n", "utf-8")
    code, out, _ = commands.run("index", "--json")
    body = json.loads(out)["agents"][0]
    assert (code, body["code"], body["files"]) == (4, ConditionCode.VECTORS_UNAVAILABLE, 2)
    kept = json.loads(commands.run("status", "--json")[1])["agents"][0]
    assert (kept["index"]["generation"], kept["mode"]) == (made["index"]["generation"], "keyword")
    assert [f"{folder} does not exist" in trouble["message"] for trouble in kept["troubles"]] == [True]
    assert found(commands.home, "boiler") == ("keyword", ["memory/house.md"])
    away.rename(folder)
    assert commands.agent("index")["vectorsReady"] == 2
    assert commands.agent("status")["index"]["generation"] == made["index"]["generation"]
    assert commands.server.requests == 0


@pytest.mark.long
def test_a_start_without_the_model_says_so_and_asks_no_service(
    home: Path, workspace: Path, server: EmbeddingServer, tmp_path: Path
) -> None:
    (workspace / "memory" / "pets.md").write_text("the cat sleeps\n", "utf-8")
    gone = tmp_path / "gone.gguf"
    settings = f'remote.base_url = "{server.url}"\nlocal.model_path = "{gone}"'
    with Daemon(home, workspace, provider="auto", config=settings, environment={"OPENAI_API_KEY": "sk"}) as daemon:
        assert f"local.model_path {gone} does not exist; the bundled model is used" in daemon.said()
        wait_until(lambda: daemon.status()["index"]["vectorsReady"] == 1)
        assert daemon.found("feline naps", "memory/pets.md")
    assert server.requests == 0


def test_a_gpu_that_the_library_lacks_is_advice(notes: CommandLine, tmp_path: Path) -> None:
    notes.set("RECALLD_LOCAL__MODEL_PATH", str(write_model(tmp_path / "mine")))
    notes.set("RECALLD_LOCAL__DEVICE", "cuda")
    assert notes.agent("index")["vectorsReady"] == 2
    status = notes.agent("status")
    advice = [(each["code"], each["params"]) for each in status["advice"]]
    assert (status["ok"], advice) == (True, [(ConditionCode.GPU_MISSING, {"package": "onnxruntime"})])


# Prefixes of a family


QUERY, DOCUMENT = "search_query: ", "search_document: "


def identity(status: dict[str, Any]) -> dict[str, str]:
    return dict(json.loads(json.loads(status["index"]["identity"])["embedding"]))


def asked(home: Path, server: EmbeddingServer, words: str) -> str:
    """Return what a search of the service sent."""
    before = server.requests
    settings = load(home=str(home)).settings
    with running(settings, QuietHealth()) as service:
        answer = service.post("/v1/search", json={"query": words}).json()
    assert answer["mode"] == "hybrid"
    (sent,) = server.log[before].inputs
    return sent


def test_a_new_index_has_them_on_both_sides_and_shows_none(commands: CommandLine, workspace: Path, home: Path) -> None:
    texts = ("The heron stands in the reeds.\n", "The otter swims in the brook.\n")
    for name, text in zip(("MEMORY.md", "memory/otter.md"), texts, strict=True):
        (workspace / name).write_text(text, "utf-8")
    (workspace.parent / "recalld.toml").write_text(
        f'provider = "openai-compatible"\nmodel = "nomic-embed-text"\nremote.base_url = "{commands.server.url}"\n'
        f'[[agents]]\nid = "main"\nworkspace = "{workspace}"\n'
    )
    done = commands.agent("index")
    assert done["vectorsReady"] == 2
    assert commands.server.texts == {DOCUMENT + text for text in texts}
    assert asked(home, commands.server, "a bird in reeds") == f"{QUERY}a bird in reeds"
    found = commands.json("search", "heron")["results"][0]
    assert DOCUMENT not in found["snippet"]
    made = identity(commands.agent("status"))
    assert (made["query_prefix"], made["document_prefix"]) == (QUERY, DOCUMENT)
