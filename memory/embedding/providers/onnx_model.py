"""Models of the user's own as a folder with an ONNX export, as optimum and sentence-transformers write it.

The files of the export describe the steps around the graph: the tokenizer, the most tokens, the prompts of queries and
documents, and the pooling of the vectors of tokens. All vectors get unit length on arrival (`vectors`).

onnxruntime and tokenizers are used without fastembed. That has to be told how to pool instead of reading it, cannot
take the last token, and brings nine further packages.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memory.embedding.providers.local import MOST_TOKENS, THREADS, LocalProvider
from memory.embedding.providers.provider import Matrix, ProviderLimits, ProviderUnavailable
from memory.http.private_folders import open_to_others
from memory.http.whole_files import write_whole
from schemas.errors import Permanent
from schemas.lazy_module import LazyModule

if TYPE_CHECKING:
    import numpy as np
else:
    np = LazyModule("numpy")

#: Names of a graph in an export, in the order of preference.
_GRAPHS = ("model.onnx", "model_quantized.onnx", "model_int8.onnx", "model_uint8.onnx", "model_fp16.onnx")

#: Ways to pool, by their names in exports of sentence-transformers before and since version 6.
_POOLINGS = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean", "pooling_mode_lasttoken": "lasttoken"}
_POOLINGS |= {name: name for name in _POOLINGS.values()}

#: Inputs of a graph that a text alone decides.
_INPUTS = frozenset({"input_ids", "attention_mask", "token_type_ids", "position_ids"})

#: The output with one vector for each text, and those with one for each token.
_POOLED = "sentence_embedding"
_OUTPUTS = (_POOLED, "last_hidden_state", "token_embeddings")

#: Name of the GPU in onnxruntime.
_GPU = "CUDAExecutionProvider"

_AGAIN = "copy it from where the model comes from"


@dataclass(frozen=True, slots=True)
class OnnxExport:
    """Facts that a folder states about its model.

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

    def digest(self, cache: Path | None) -> str:
        """Return a digest of everything that decides the vectors, which its place does not; `cache` as below."""
        # Weights beyond 2 GB are in files beside it: model.onnx_data, model.onnx.data.
        parts = sorted(path for path in self.graph.parent.iterdir() if path.name.startswith(self.graph.name))
        contents = {"graph": [content_digest(part, cache) for part in parts]}
        facts = asdict(self) | contents | {"tokenizer": content_digest(self.tokenizer, cache)}
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def read_export(folder: Path) -> OnnxExport:
    """Return the facts about the model in a folder with an ONNX export; the graph itself is not opened.

    Raises:
        ProviderUnavailable: something is missing, or asks for a step that is not supported.
    """
    graph = _graph(folder)

    def facts(name: str) -> dict[str, Any]:
        content: dict[str, Any] = _json(folder / name) or _json(graph.parent / name)
        return content

    tokenizer = next((path for path in (folder, graph.parent) if (path / "tokenizer.json").is_file()), None)
    if tokenizer is None:
        raise ProviderUnavailable(f"{folder} has no tokenizer.json", _AGAIN)
    listed = [module for module in _json(folder / "modules.json", kind=list) if isinstance(module, dict)]
    modules = {str(module.get("type")).rpartition(".")[2]: str(module.get("path")) for module in listed}
    pooling = _json(folder / modules.get("Pooling", "1_Pooling") / "config.json")
    dense = _json(folder / modules["Dense"] / "config.json") if "Dense" in modules else {}
    config = facts("config.json")
    widths = [dense.get("out_features"), pooling.get("embedding_dimension"), pooling.get("word_embedding_dimension")]
    widths += [config.get("hidden_size"), config.get("dim")]
    dimensions = next((width for width in widths if isinstance(width, int) and width > 0), None)
    if dimensions is None:
        raise ProviderUnavailable(f"no config.json in {folder} says how many dimensions the model has", _AGAIN)
    sentence = facts("config_sentence_transformers.json")
    prompts = sentence["prompts"] if isinstance(sentence.get("prompts"), dict) else {}
    default = prompts.get(sentence.get("default_prompt_name")) or ""
    documents = (prompts.get(name) for name in ("document", "passage", "corpus"))
    tokens = [facts("sentence_bert_config.json").get("max_seq_length")]
    tokens += [facts("tokenizer_config.json").get("model_max_length"), config.get("max_position_embeddings")]
    if isinstance(tokens[-1], int) and "roberta" in str(config.get("model_type")):
        tokens[-1] -= 2  # its first two positions are never used
    return OnnxExport(
        graph=graph,
        tokenizer=tokenizer / "tokenizer.json",
        dimensions=dimensions,
        tokens=min([MOST_TOKENS, *(number for number in tokens if isinstance(number, int) and number > 0)]),
        pooling="graph" if "Dense" in modules else _pooling(folder, pooling),
        query_prompt=str(prompts.get("query") or default),
        document_prompt=str(next(filter(None, documents), default)),
    )


class OnnxProvider(LocalProvider):
    """A model in a folder. One text at a time: padding costs, and a quantised graph answers differently beside others.

    `name` is shown in status, `identity` tells the model from others.
    """

    def __init__(self, export: OnnxExport, *, name: str, identity: dict[str, object], device: str = "cpu") -> None:
        super().__init__(
            model=name,
            dimensions=export.dimensions,
            # The rate is a guess for a model of middle size; a measurement replaces it.
            limits=ProviderLimits(inputs=8, tokens=2_000, input_bytes=8191, concurrency=THREADS, chunks_per_second=2.0),
            package="onnxruntime",
            extra="onnx",
            identity={"dimensions": export.dimensions, **identity},
        )
        self._export, self.device = export, device

    def _offers_gpu(self, module: Any) -> bool:
        return _GPU in module.get_available_providers()

    def _load(self, module: Any) -> Any:
        export = self._export
        options = module.SessionOptions()
        # Requests run beside each other; errors are raised, not printed as well.
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        path = export.tokenizer
        try:
            tokenizer = importlib.import_module("tokenizers").Tokenizer.from_file(str(path))
            tokenizer.enable_truncation(max_length=export.tokens)
            tokenizer.no_padding()
            path = export.graph
            gpu = [_GPU] if self.device != "cpu" and self._offers_gpu(module) else []
            session = module.InferenceSession(str(path), options, providers=[*gpu, "CPUExecutionProvider"])
            vector = _Graph(session, tokenizer, export).vector("load the weights")
        except ProviderUnavailable:
            raise
        except Exception as error:
            words = " ".join(str(error).split())[:200]
            raise ProviderUnavailable(f"{path} cannot be used ({words})", "export or fetch the model again") from error
        if vector.shape != (export.dimensions,):
            width, stated = " x ".join(map(str, vector.shape)), export.dimensions
            raise ProviderUnavailable(
                f"{path} makes vectors of {width} numbers, and its config.json says {stated}", _AGAIN
            )
        if not np.isfinite(vector).all():
            raise ProviderUnavailable(f"the vectors of {path} are no numbers", "export or fetch the model again")
        return _Graph(session, tokenizer, export)

    def _encode(self, model: Any, texts: list[str], *, query: bool) -> Matrix:
        prompt = self._export.query_prompt if query else self._export.document_prompt
        return np.stack([model.vector(prompt + text) for text in texts])


class _Graph:
    """A loaded graph with its tokenizer. Thread-safe."""

    def __init__(self, session: Any, tokenizer: Any, export: OnnxExport) -> None:
        self._session, self._tokenizer, self._pooling = session, tokenizer, export.pooling
        kinds = {field.name: field.type for field in session.get_inputs()}
        self._inputs = {name: np.int32 if kind == "tensor(int32)" else np.int64 for name, kind in kinds.items()}
        outputs = [field.name for field in session.get_outputs()]
        self._output = next((name for name in _OUTPUTS if name in outputs), outputs[0])
        unknown = sorted(set(self._inputs) - _INPUTS)
        if unknown:
            reason = f"{export.graph} asks for {unknown[0]}, which a text alone does not give"
            raise ProviderUnavailable(reason, "export it again with --task feature-extraction")
        if export.pooling == "graph" and self._output != _POOLED:
            reason = f"the model of {export.graph} has a Dense layer, and the graph has not"
            raise ProviderUnavailable(reason, f"name an export whose graph has the output {_POOLED}")

    def vector(self, text: str) -> Matrix:
        """Return the vector of one text; shape (dimensions,)."""
        encoded = self._tokenizer.encode(text)
        count = len(encoded.ids)
        if not count:
            raise Permanent("the model's tokenizer finds nothing in it")
        fields = {
            "input_ids": encoded.ids,
            "attention_mask": [1] * count,
            "token_type_ids": encoded.type_ids,
            "position_ids": range(count),
        }
        feed = {name: np.array([fields[name]], dtype=kind) for name, kind in self._inputs.items()}
        [[output]] = self._session.run([self._output], feed)
        rows = np.asarray(output, dtype=np.float32)
        if rows.ndim == 1:
            return rows
        pooled: Matrix = rows.mean(axis=0) if self._pooling == "mean" else rows[0 if self._pooling == "cls" else -1]
        return pooled


def content_digest(file: Path, cache: Path | None) -> str:
    """Return the SHA-256 of a file, in hex, read once while its inode, size and time stay the same.

    `cache` is a folder where digests are kept for other processes, unless other users may write it; None keeps them in
    this one.

    Raises:
        ProviderUnavailable: the file cannot be read.
    """
    try:
        stat = file.stat()
        return _digest(file, f"{stat.st_dev}-{stat.st_ino}-{stat.st_size}-{stat.st_mtime_ns}", cache)
    except OSError as error:
        raise ProviderUnavailable(f"{file} cannot be read ({error.strerror})", _AGAIN) from error


@lru_cache(maxsize=64)
def _digest(file: Path, stamp: str, cache: Path | None) -> str:
    shared = cache / "digests" if cache is not None else None
    note = shared / stamp if shared is not None and open_to_others(shared) is None else None
    if note is not None and note.is_file():
        return note.read_text("ascii")
    with file.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    if note is not None:
        with suppress(OSError):  # where it cannot be written, the file is read again
            write_whole(note, digest.encode())
    return digest


def _graph(folder: Path) -> Path:
    graphs = [*sorted(folder.glob("*.onnx")), *sorted((folder / "onnx").glob("*.onnx"))]
    graph = next((path for name in _GRAPHS for path in graphs if path.name == name), None)
    if graph is not None or len(graphs) == 1:
        return graph or graphs[0]
    if graphs:
        names = ", ".join(path.name for path in graphs)
        raise ProviderUnavailable(f"{folder} has several graphs ({names})", "keep one, or call one model.onnx")
    if any(folder.glob("*.safetensors")) or any(folder.glob("pytorch_model*.bin")):
        command = f"optimum-cli export onnx --task feature-extraction --model {folder} {folder}/onnx"
        raise ProviderUnavailable(f"{folder} has weights but no ONNX export", f"make one: {command}")
    raise ProviderUnavailable(
        f"{folder} has neither model.onnx nor onnx/model.onnx", "name a folder with an ONNX export"
    )


def _pooling(folder: Path, config: dict[str, Any]) -> str:
    flags = [name for name in config if name.startswith("pooling_mode_") and config[name] is True]
    mode = config.get("pooling_mode", flags)
    # Without a word of it sentence-transformers takes the mean, too.
    modes = [str(name) for name in (mode if isinstance(mode, list) else [mode])] or ["mean"]
    if len(modes) == 1 and modes[0] in _POOLINGS and config.get("include_prompt") is not False:
        return _POOLINGS[modes[0]]
    how = f"{', '.join(modes)}{'' if config.get('include_prompt', True) else ' without the prompt'}"
    raise ProviderUnavailable(
        f"{folder} pools by {how}, which is not done here", f"name a graph with the output {_POOLED}"
    )


def _json(path: Path, *, kind: type = dict) -> Any:
    """Return the JSON of a file; an empty `kind` where there is no file."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return kind()
    except (OSError, ValueError, RecursionError) as error:
        raise ProviderUnavailable(f"{path} cannot be read ({error})", _AGAIN) from error
    if not isinstance(content, kind):
        raise ProviderUnavailable(f"{path} is not of the usual form", _AGAIN)
    return content
