"""Models of the user's own as a folder with an ONNX export, as optimum and sentence-transformers write it.

The export's own files say what is done before and after the graph: the tokenizer, the most tokens, the prompts of
queries and documents, and how the vectors of tokens become one. Vectors are brought to unit length on arrival
(`memory.embedding.vectors`), whether or not the export does so.

The graph is run by onnxruntime and the tokenizer by tokenizers, without fastembed: that knows two of the three ways to
pool, wants to be told which one instead of reading it, and brings nine further packages.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import secrets
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from memory.embedding.local import MOST_TOKENS, THREADS, LocalProvider, UnusableModel
from memory.embedding.provider import Matrix, ProviderLimits
from schemas.errors import Permanent

#: Names of a graph in an export, the one that is taken first.
_GRAPHS = ("model.onnx", "model_quantized.onnx", "model_int8.onnx", "model_uint8.onnx", "model_fp16.onnx")

_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")

_POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "lasttoken",
}

#: Inputs of a graph that a text alone decides.
_INPUTS = frozenset({"input_ids", "attention_mask", "token_type_ids", "position_ids"})

#: An output with one vector for each text, and those with one for each token.
_POOLED = "sentence_embedding"
_TOKENS = ("last_hidden_state", "token_embeddings")

_EXPORT = "optimum-cli export onnx --task feature-extraction --model {folder} {folder}/onnx"


@dataclass(frozen=True, slots=True)
class OnnxExport:
    """What a folder says of its model.

    `tokens` is the most that the model reads of a text. `pooling` is cls, mean, lasttoken, or graph where only the
    graph itself can make the vectors. The prompts stand before every text.
    """

    graph: Path
    tokenizer: Path
    dimensions: int
    tokens: int
    pooling: str
    query_prompt: str
    document_prompt: str

    def digest(self, kept: Path | None) -> str:
        """Return a digest of everything that decides the vectors; `kept` as in `content_digest`. Not the folder."""
        # Weights beyond 2 GB are in files beside it: model.onnx_data, model.onnx.data.
        parts = sorted(path for path in self.graph.parent.iterdir() if path.name.startswith(self.graph.name))
        facts = asdict(self) | {
            "graph": [[part.name, content_digest(part, kept)] for part in parts],
            "tokenizer": content_digest(self.tokenizer, kept),
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def read_export(folder: Path) -> OnnxExport:
    """Return what a folder with an ONNX export says of its model; the graph itself is not opened.

    Raises:
        UnusableModel: something is missing, or asks for what is not done here.
    """
    graph = _graph(folder)

    def facts(name: str) -> dict[str, Any]:
        found: dict[str, Any] = _json(folder / name) or _json(graph.parent / name)
        return found

    tokenizer = next((path for path in (folder, graph.parent) if (path / "tokenizer.json").is_file()), None)
    if tokenizer is None:
        raise UnusableModel(f"{folder} has no tokenizer.json", "copy it from where the model comes from")
    config, modules = facts("config.json"), _modules(folder)
    pooling = _json(folder / modules.get("Pooling", "1_Pooling") / "config.json")
    dense = _json(folder / modules["Dense"] / "config.json") if "Dense" in modules else {}
    widths = (dense.get("out_features"), pooling.get("word_embedding_dimension"), config.get("hidden_size"))
    dimensions = next((width for width in (*widths, config.get("dim")) if isinstance(width, int) and width > 0), None)
    if dimensions is None:
        raise UnusableModel(
            f"neither config.json nor 1_Pooling/config.json in {folder} says how many dimensions the model has",
            "copy config.json from where the model comes from",
        )
    sentence = facts("config_sentence_transformers.json")
    prompts = sentence["prompts"] if isinstance(sentence.get("prompts"), dict) else {}
    usual = prompts.get(sentence.get("default_prompt_name")) or ""
    documents = (prompts.get(name) for name in ("document", "passage", "corpus"))
    return OnnxExport(
        graph=graph,
        tokenizer=tokenizer / "tokenizer.json",
        dimensions=dimensions,
        tokens=_most_tokens(config, facts("sentence_bert_config.json"), facts("tokenizer_config.json")),
        pooling="graph" if "Dense" in modules else _pooling(folder, pooling, has_prompts=any(prompts.values())),
        query_prompt=str(prompts.get("query") or usual),
        document_prompt=str(next(filter(None, documents), usual)),
    )


class OnnxProvider(LocalProvider):
    """A model in a folder. One text at a time: padding costs, and a quantised graph answers differently beside others.

    `name` is what status shows, `identity` tells the model from others.
    """

    def __init__(self, export: OnnxExport, *, name: str, identity: dict[str, object]) -> None:
        super().__init__(
            model=name,
            dimensions=export.dimensions,
            # The rate is that of a model of middle size; what is measured takes its place.
            limits=ProviderLimits(inputs=8, tokens=2_000, input_bytes=8191, concurrency=THREADS, chunks_per_second=2.0),
            package="onnxruntime",
            extra="onnx",
            identity={"dimensions": export.dimensions, **identity},
        )
        self._export = export

    def _load(self, module: Any) -> Any:
        export = self._export
        options = module.SessionOptions()
        # Requests run beside each other; what goes wrong is raised, not printed as well.
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        tokenizers = importlib.import_module("tokenizers")
        try:
            tokenizer = tokenizers.Tokenizer.from_file(str(export.tokenizer))
            tokenizer.enable_truncation(max_length=export.tokens)
            tokenizer.no_padding()
        except Exception as error:
            raise _unusable(export.tokenizer, "no tokenizer", error) from error
        try:
            session = module.InferenceSession(str(export.graph), options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise _unusable(export.graph, "no ONNX graph", error) from error
        graph = _Graph(session, tokenizer, export)
        try:
            vector = graph.vector("load the weights")
        except UnusableModel:
            raise
        except Exception as error:
            raise _unusable(export.graph, "no graph that embeds a text", error) from error
        if vector.shape != (export.dimensions,):
            raise UnusableModel(
                f"{export.graph} makes vectors of the shape {vector.shape}, and its folder says {export.dimensions} "
                "dimensions",
                "copy config.json and 1_Pooling/config.json from where the graph comes from",
            )
        if not np.isfinite(vector).all():
            raise UnusableModel(f"the vectors of {export.graph} are no numbers", "export or fetch the model again")
        return graph

    def _encode(self, model: Any, texts: list[str], *, query: bool) -> Matrix:
        prompt = self._export.query_prompt if query else self._export.document_prompt
        return np.stack([model.vector(prompt + text) for text in texts])


class _Graph:
    """A loaded graph with its tokenizer. Thread-safe."""

    def __init__(self, session: Any, tokenizer: Any, export: OnnxExport) -> None:
        self._session, self._tokenizer, self._pooling = session, tokenizer, export.pooling
        self._inputs = {
            field.name: np.int32 if field.type == "tensor(int32)" else np.int64 for field in session.get_inputs()
        }
        outputs = [field.name for field in session.get_outputs()]
        self._output = next((name for name in (_POOLED, *_TOKENS) if name in outputs), outputs[0])
        unknown = sorted(set(self._inputs) - _INPUTS)
        if unknown:
            raise UnusableModel(
                f"{export.graph} asks for {unknown[0]}, which a text alone does not give",
                "export it again with --task feature-extraction",
            )
        if export.pooling == "graph" and self._output != _POOLED:
            raise UnusableModel(
                f"the model of {export.graph} has a Dense layer, which the graph does not",
                f"name an export whose graph has the output {_POOLED}",
            )

    def vector(self, text: str) -> Matrix:
        """Return the vector of one text; shape (dimensions,)."""
        encoded = self._tokenizer.encode(text)
        if not encoded.ids:
            raise Permanent("the model's tokenizer finds nothing in it")
        count = len(encoded.ids)
        given = {
            "input_ids": encoded.ids,
            "attention_mask": [1] * count,
            "token_type_ids": encoded.type_ids,
            "position_ids": range(count),
        }
        feed = {name: np.array([given[name]], dtype=kind) for name, kind in self._inputs.items()}
        [[found]] = self._session.run([self._output], feed)
        found = np.asarray(found, dtype=np.float32)
        if found.ndim == 1 or self._pooling == "graph":
            return found
        if self._pooling == "mean":
            return np.asarray(found.mean(axis=0), dtype=np.float32)
        return np.asarray(found[0 if self._pooling == "cls" else -1], dtype=np.float32)


def content_digest(file: Path, kept: Path | None) -> str:
    """Return the SHA-256 of a file, in hex, read once as long as its inode, size and time stay what they are.

    `kept` is a folder where digests are kept for other processes; None keeps them in this one.

    Raises:
        UnusableModel: the file cannot be read.
    """
    try:
        stat = file.stat()
        return _digest(file, f"{stat.st_dev}-{stat.st_ino}-{stat.st_size}-{stat.st_mtime_ns}", kept)
    except OSError as error:
        raise UnusableModel(f"{file} cannot be read ({error.strerror})", "see that its folder is whole") from error


@lru_cache(maxsize=64)
def _digest(file: Path, stamp: str, kept: Path | None) -> str:
    note = kept / "digests" / stamp if kept is not None else None
    if note is not None and note.is_file():
        return note.read_text("ascii")
    with file.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    if note is not None:
        with suppress(OSError):  # a home that cannot be written reads the file again
            note.parent.mkdir(parents=True, exist_ok=True)
            draft = note.with_name(f"{stamp}.{secrets.token_hex(4)}.tmp")
            draft.write_text(digest, "ascii")
            os.replace(draft, note)  # noqa: PTH105 - both are paths of one folder
    return digest


def _graph(folder: Path) -> Path:
    found = [*sorted(folder.glob("*.onnx")), *sorted((folder / "onnx").glob("*.onnx"))]
    graph = next((path for name in _GRAPHS for path in found if path.name == name), None)
    if graph is not None or len(found) == 1:
        return graph or found[0]
    if found:
        names = ", ".join(path.name for path in found)
        raise UnusableModel(f"{folder} has several graphs ({names})", "keep one, or call one model.onnx")
    if any(next(folder.glob(pattern), None) for pattern in _WEIGHTS):
        command = _EXPORT.format(folder=folder)
        raise UnusableModel(f"{folder} has weights but no ONNX export", f"make one: {command}")
    raise UnusableModel(f"{folder} has neither model.onnx nor onnx/model.onnx", "name a folder with an ONNX export")


def _modules(folder: Path) -> dict[str, str]:
    """Return the folder of each kind of module, "Pooling" and "Dense" among them."""
    listed = _json(folder / "modules.json", kind=list)
    entries = [entry for entry in listed if isinstance(entry, dict)]
    return {str(entry.get("type")).rpartition(".")[2]: str(entry.get("path", "")) for entry in entries}


def _pooling(folder: Path, said: dict[str, Any], *, has_prompts: bool) -> str:
    wanted = [name for name, value in said.items() if name.startswith("pooling_mode") and value is True]
    if not wanted:
        wanted = [str(said["pooling_mode"])] if isinstance(said.get("pooling_mode"), str) else []
    known = _POOLINGS | {name: name for name in _POOLINGS.values()}
    if len(wanted) > 1 or any(name not in known for name in wanted) or (has_prompts and not _includes_prompt(said)):
        raise UnusableModel(
            f"{folder} pools its vectors by {', '.join(wanted)}, which is not done here",
            f"name an export whose graph has the output {_POOLED}, or another model",
        )
    # sentence-transformers does the same with a model that does not say.
    return known[wanted[0]] if wanted else "mean"


def _includes_prompt(said: dict[str, Any]) -> bool:
    return said.get("include_prompt") is not False


def _most_tokens(config: dict[str, Any], sentence: dict[str, Any], tokenizer: dict[str, Any]) -> int:
    positions = config.get("max_position_embeddings")
    if isinstance(positions, int) and "roberta" in str(config.get("model_type")):
        positions -= 2  # the first two of its positions are never used
    said = (sentence.get("max_seq_length"), tokenizer.get("model_max_length"), positions)
    return min([MOST_TOKENS, *(number for number in said if isinstance(number, int) and number > 0)])


def _json(path: Path, *, kind: type = dict) -> Any:
    """Return the JSON of a file; an empty `kind` where there is no file."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return kind()
    except (OSError, ValueError) as error:
        raise UnusableModel(f"{path} cannot be read ({error})", "copy it from where the model comes from") from error
    if not isinstance(found, kind):
        raise UnusableModel(f"{path} is not of the usual form", "copy it from where the model comes from")
    return found


def _unusable(path: Path, what: str, error: Exception) -> UnusableModel:
    words = " ".join(str(error).split())[:200]
    return UnusableModel(f"{path} is {what} ({words})", "export or fetch the model again")
