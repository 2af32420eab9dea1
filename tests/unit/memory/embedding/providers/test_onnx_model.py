"""A folder with an ONNX export: what it says of itself is done, and what it lacks is one sentence."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from memory.embedding.providers.onnx_model import OnnxProvider, content_digest, read_export
from memory.embedding.providers.provider import ProviderUnavailable
from memory.embedding.selection import choice_for_identity, choose_provider
from schemas.settings import Credentials, MemorySettings
from tests.tiny_model import DIMENSIONS, table, words, write_model

PROMPTS = {"query": "query: ", "document": "passage: "}


def provider_of(folder: Path) -> OnnxProvider:
    export = read_export(folder)
    return OnnxProvider(export, name=folder.name, identity={"digest": export.digest(None)})


def identity_of(folder: Path) -> str:
    return provider_of(folder).identity


def vector_of(*names: str) -> np.ndarray:
    """The mean of these words' vectors, between the tokens that begin and end a text."""
    rows, known = table(), words()
    return np.mean([rows[known[name]] for name in ("[CLS]", *names, "[SEP]")], axis=0)


@pytest.mark.parametrize("graph", ["model.onnx", "onnx/model.onnx", "onnx/model_quantized.onnx", "onnx/model_q4.onnx"])
def test_the_graph_is_found_where_exports_put_it(tmp_path: Path, graph: str) -> None:
    provider = provider_of(write_model(tmp_path, graph=graph))
    assert provider.embed_query("cat sofa").vectors == pytest.approx(vector_of("cat", "sofa")[None], abs=1e-5)
    assert provider.embed_documents([]).vectors.shape == (0, DIMENSIONS)


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ("graph", lambda: vector_of("boiler", "cat")),
        ("mean_tokens", lambda: vector_of("boiler", "cat")),
        (None, lambda: vector_of("boiler", "cat")),
        ("cls_token", lambda: table()[words()["[CLS]"]]),
        ("lasttoken", lambda: table()[words()["[SEP]"]]),
    ],
)
def test_vectors_of_tokens_become_one_as_the_export_says(
    tmp_path: Path, pooling: str | None, expected: Callable[[], np.ndarray]
) -> None:
    # A graph that pools by itself is taken at its word.
    options = {"output": "sentence_embedding", "pooling": "cls_token"} if pooling == "graph" else {"pooling": pooling}
    provider = provider_of(write_model(tmp_path, **options))
    assert provider.embed_query("boiler cat").vectors[0] == pytest.approx(expected(), abs=1e-5)


def test_queries_and_documents_get_their_own_prompts(tmp_path: Path) -> None:
    provider = provider_of(write_model(tmp_path, prompts=PROMPTS))
    assert provider.embed_query("cat").vectors[0] == pytest.approx(vector_of("query:", "cat"), abs=1e-5)
    assert provider.embed_documents(["cat"]).vectors[0] == pytest.approx(vector_of("passage:", "cat"), abs=1e-5)


@pytest.mark.parametrize(
    ("name", "prompts", "settings", "expected"),
    [
        ("e5-small-v2", None, {}, ("query: ", "passage: ")),
        ("e5-small-v2", None, {"query_prefix": "", "document_prefix": "text: "}, ("", "text: ")),
        ("e5-small-v2", {"query": "find: "}, {}, ("find: ", "")),
        ("mine", None, {}, ("", "")),
    ],
)
def test_where_an_export_names_no_prompts_its_family_does_and_settings_replace_both(
    tmp_path: Path, name: str, prompts: dict | None, settings: dict, expected: tuple[str, str]
) -> None:
    folder = write_model(tmp_path / name, prompts=prompts)
    local = {"provider": "local", "local": {"model_path": str(folder)}}
    memory = MemorySettings.model_validate({**local, **settings})
    made = choose_provider(memory, Credentials()).provider
    assert made is not None
    bare = read_export(folder)
    wanted = replace(bare, query_prompt=expected[0], document_prompt=expected[1])
    assert json.loads(made.identity)["digest"] == wanted.digest(None)
    again = choice_for_identity(made.identity, memory, Credentials())
    assert again.provider is not None
    assert again.provider.identity == made.identity


# Identity -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 8},
        {"prompts": {"query": "", "document": "passage: "}},
        {"prompts": {"query": "query: ", "document": "text: "}},
        {"pooling": "cls_token"},
        {"tokens": 32},
        {"inputs": ("input_ids",)},
    ],
)
def test_whatever_changes_the_vectors_is_another_model(tmp_path: Path, change: dict) -> None:
    given = {"prompts": PROMPTS, **change}
    assert identity_of(write_model(tmp_path / "a", prompts=PROMPTS)) != identity_of(
        write_model(tmp_path / "b", **given)
    )


@pytest.mark.parametrize(
    ("device", "offered", "used", "lacks"),
    [
        ("auto", False, False, False),
        ("auto", True, True, False),
        ("cuda", True, True, False),
        ("cuda", False, False, True),
        ("cpu", True, False, False),
    ],
)
def test_a_gpu_is_used_where_the_library_has_one_and_makes_no_other_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, offered: bool, used: bool, lacks: bool
) -> None:
    sessions: list[list[str]] = []
    on_processor = onnxruntime.InferenceSession

    def session(path: str, options: object, *, providers: list[str]) -> object:
        sessions.append(providers)
        return on_processor(path, options, providers=["CPUExecutionProvider"])

    gpu = ["CUDAExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "InferenceSession", session)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: gpu * offered + ["CPUExecutionProvider"])
    folder = write_model(tmp_path)
    local = {"provider": "local", "local": {"model_path": str(folder), "device": device}}
    made = choose_provider(MemorySettings.model_validate(local), Credentials()).provider
    assert isinstance(made, OnnxProvider)
    assert made.embed_query("cat").vectors[0] == pytest.approx(vector_of("cat"), abs=1e-5)
    assert sessions == [gpu * used + ["CPUExecutionProvider"]]
    assert (made.lacks_gpu(), made.identity) == (lacks, identity_of(folder))


# Folders that cannot be used --------------------------------------------------------------------------------


def lacking(folder: Path | str) -> str:
    """The sentence that status shows; at the choice, or when the model is loaded."""
    memory = MemorySettings.model_validate({"provider": "local", "local": {"model_path": str(folder)}})
    choice = choose_provider(memory, Credentials())
    if choice.lacking is not None:
        return str(choice.lacking)
    assert choice.provider is not None
    with pytest.raises(ProviderUnavailable) as raised:
        choice.provider.warm_up()
    return str(raised.value)


def spoil(name: str, content: str | bytes | None) -> Callable[[Path], None]:
    """Remove or replace one file of a folder."""

    def change(folder: Path) -> None:
        if content is None:
            (folder / name).unlink()
        else:
            (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    return change


def to_weights(folder: Path) -> None:
    (folder / "onnx" / "model.onnx").unlink()
    (folder / "model.safetensors").touch()


def add_graphs(folder: Path) -> None:
    (folder / "onnx" / "model.onnx").rename(folder / "onnx" / "model_a.onnx")
    (folder / "onnx" / "model_b.onnx").touch()


def ask_for_dense(folder: Path) -> None:
    dense = {"type": "sentence_transformers.models.Dense", "path": "2_Dense"}
    (folder / "modules.json").write_text(json.dumps([dense]))
    (folder / "2_Dense").mkdir()
    (folder / "2_Dense" / "config.json").write_text(json.dumps({"out_features": DIMENSIONS}))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (spoil("onnx/model.onnx", None), "has neither model.onnx nor onnx/model.onnx"),
        (to_weights, "has weights but no ONNX export; make one: optimum-cli export onnx"),
        (add_graphs, "several graphs (model_a.onnx, model_b.onnx)"),
        (spoil("tokenizer.json", None), "has no tokenizer.json"),
        (spoil("tokenizer.json", "{}"), "tokenizer.json cannot be used"),
        (spoil("onnx/model.onnx", b"\0garbage" * 100), "model.onnx cannot be used"),
        (spoil("onnx/model.onnx", b""), "model.onnx cannot be used"),
        (spoil("config.json", "{not json"), "config.json cannot be read"),
        (spoil("config.json", "[" * 100_000), "config.json cannot be read"),
        (spoil("config.json", "[]"), "config.json is not of the usual form"),
        (spoil("1_Pooling/config.json", '{"pooling_mode_max_tokens": true}'), "pooling_mode_max_tokens"),
        (ask_for_dense, "has a Dense layer"),
        (shutil.rmtree, "neither a known model, nor a folder, nor a .gguf file"),
        (partial(write_model, hidden_size=48), "vectors of 32 numbers, and its config.json says 48"),
        (partial(write_model, vectors=np.full_like(table(), np.nan)), "are no numbers"),
        (partial(write_model, inputs=("input_ids", "past_key_values.0.key")), "asks for past_key_values.0.key"),
    ],
)
def test_a_folder_that_cannot_be_used_is_one_sentence(
    tmp_path: Path, change: Callable[[Path], object], words: str
) -> None:
    folder = write_model(tmp_path / "mine")
    change(folder)
    said = lacking(folder)
    assert words in said
    assert "\n" not in said
    assert "Traceback" not in said


def test_digests_of_files_are_not_taken_from_a_folder_that_others_may_write(tmp_path: Path) -> None:
    (file := tmp_path / "model.gguf").write_bytes(b"weights")
    for name in ("made", "planted", "open"):
        (tmp_path / name / "digests").mkdir(parents=True)
    digest = content_digest(file, tmp_path / "made")
    [note] = (tmp_path / "made" / "digests").iterdir()
    for name in ("planted", "open"):
        (tmp_path / name / "digests" / note.name).write_text("planted")
    (tmp_path / "open").chmod(0o777)
    assert content_digest(file, tmp_path / "planted") == "planted"
    assert content_digest(file, tmp_path / "open") == digest
