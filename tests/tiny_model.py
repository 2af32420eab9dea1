"""A model in a folder, as optimum and sentence-transformers export it, small enough to be made in a test.

A text's vector comes from its words' vectors; words that mean the same have the same one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, pre_tokenizers, processors

DIMENSIONS = 32

#: Each line is one meaning.
MEANINGS = (
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "cat feline",
    "dentist tooth",
    "friday weekday",
    "sofa couch",
    "sleeps naps",
    "boiler heating",
    "valve tap",
    "query:",
    "passage:",
)


def table(seed: int = 7) -> np.ndarray:
    """The vector of every word; shape (words, DIMENSIONS)."""
    meanings = np.random.default_rng(seed).normal(size=(len(MEANINGS), DIMENSIONS)).astype(np.float32)
    meanings[0] = 0.001  # a word that is not known says nothing
    return np.stack([meanings[number] for number, line in enumerate(MEANINGS) for _ in line.split()])


def words() -> dict[str, int]:
    """The number of every word."""
    return {word: number for number, word in enumerate(word for line in MEANINGS for word in line.split())}


def write_model(
    folder: Path,
    *,
    graph: str = "onnx/model.onnx",
    inputs: tuple[str, ...] = ("input_ids", "attention_mask", "token_type_ids"),
    output: str = "last_hidden_state",
    pooling: str | None = "mean_tokens",
    prompts: dict[str, str] | None = None,
    tokens: int = 64,
    hidden_size: int = DIMENSIONS,
    seed: int = 7,
    vectors: np.ndarray | None = None,
) -> Path:
    """Write the folder. With the output `sentence_embedding` the graph takes the mean itself."""
    path = folder / graph
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_graph(inputs, output, table(seed) if vectors is None else vectors))
    _tokenizer().save(str(folder / "tokenizer.json"))
    _write(folder / "config.json", {"model_type": "bert", "hidden_size": hidden_size, "max_position_embeddings": 512})
    _write(folder / "sentence_bert_config.json", {"max_seq_length": tokens})
    _write(folder / "modules.json", [{"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}])
    if pooling is not None:
        modes = {f"pooling_mode_{name}": name == pooling for name in ("cls_token", "mean_tokens", "max_tokens")}
        facts = {"word_embedding_dimension": hidden_size, **modes, f"pooling_mode_{pooling}": True}
        _write(folder / "1_Pooling" / "config.json", facts)
    if prompts is not None:
        _write(folder / "config_sentence_transformers.json", {"prompts": prompts, "default_prompt_name": None})
    return folder


def _write(path: Path, facts: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(facts), "utf-8")


def _tokenizer() -> Tokenizer:
    known = words()
    tokenizer = Tokenizer(models.WordLevel(known, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(".", "removed")]
    )
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", known["[SEP]"]), ("[CLS]", known["[CLS]"]))
    return tokenizer


def _graph(inputs: tuple[str, ...], output: str, vectors: np.ndarray) -> bytes:
    shape = ["batch", "length"]
    given = [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name in inputs]
    axes = numpy_helper.from_array(np.array([2], dtype=np.int64), "axes")
    one = numpy_helper.from_array(np.array([1], dtype=np.int64), "one")
    nodes = [helper.make_node("Gather", ["table", "input_ids"], ["found"])]
    last = "found"
    for name in inputs[1:]:
        # Every other input counts, as nothing where it is right: the mask is 1, and the rest is multiplied by 0.
        nodes.append(helper.make_node("Cast", [name], [f"{name}_float"], to=TensorProto.FLOAT))
        nodes.append(helper.make_node("Unsqueeze", [f"{name}_float", "axes"], [f"{name}_wide"]))
        if name == "attention_mask":
            nodes.append(helper.make_node("Mul", [last, f"{name}_wide"], [f"with_{name}"]))
        else:
            nodes.append(helper.make_node("Mul", [f"{name}_wide", "zero"], [f"{name}_no"]))
            nodes.append(helper.make_node("Add", [last, f"{name}_no"], [f"with_{name}"]))
        last = f"with_{name}"
    pooled = output == "sentence_embedding"
    if pooled:
        nodes.append(helper.make_node("ReduceMean", [last, "one"], [output], keepdims=0))
    else:
        nodes.append(helper.make_node("Identity", [last], [output]))
    width = int(vectors.shape[1])
    made = helper.make_tensor_value_info(
        output, TensorProto.FLOAT, ["batch", width] if pooled else ["batch", "length", width]
    )
    zero = numpy_helper.from_array(np.array(0, dtype=np.float32), "zero")
    constants = [numpy_helper.from_array(vectors, "table"), axes, one, zero]
    graph = helper.make_graph(nodes, "tiny", given, [made], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    return model.SerializeToString()
