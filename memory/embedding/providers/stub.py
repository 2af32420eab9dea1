"""A provider without a model: deterministic, fast, and as clever as counting words."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from memory.embedding.providers.provider import EmbeddingProvider, Embeddings, Matrix, ProviderLimits, clean
from schemas.errors import Permanent
from schemas.lazy_module import LazyModule

if TYPE_CHECKING:
    import numpy as np
else:
    np = LazyModule("numpy")

_TOKEN = re.compile(r"[a-z0-9_]+|[\u3400-\u9fff\u3040-\u30ff\uac00-\ud7af]|[^\W_]+")

#: Requests whose texts are remembered, at most.
_REMEMBERED = 1000

T = TypeVar("T")


class StubProvider(EmbeddingProvider):
    """Hashed bag of words (and of CJK bigrams) as unit vectors.

    For tests and for trying things out: only texts that share words are near each other. `requests` and `inputs` are
    counts; `batches` and `queries` hold the latest texts in order.
    """

    name = "stub"

    def __init__(self, *, dimensions: int = 64, limits: ProviderLimits | None = None) -> None:
        self.model = f"hashed-words-{dimensions}"
        self.dimensions = dimensions
        self.identity = json.dumps({"dimensions": dimensions, "provider": "stub"}, separators=(",", ":"))
        self.limits = limits or ProviderLimits(
            inputs=256, tokens=100_000, input_bytes=8191, concurrency=2, chunks_per_second=20_000
        )
        self.batches: list[list[str]] = []
        self.queries: list[str] = []
        self.requests = 0
        self.inputs = 0
        self._lock = threading.Lock()

    def embed_documents(self, texts: Sequence[str]) -> Embeddings:
        with self._lock:
            self.requests += 1
            self.inputs += len(texts)
            _remember(self.batches, list(texts))
        return Embeddings(self._embed(texts))

    def embed_query(self, text: str) -> Embeddings:
        if not text.strip():
            raise Permanent("there is nothing to embed in an empty query")
        with self._lock:
            _remember(self.queries, text)
        return Embeddings(self._embed([text]))

    def _embed(self, texts: Sequence[str]) -> Matrix:
        matrix = np.zeros((len(texts), self.dimensions), dtype=np.float32)
        for row, text in enumerate(texts):
            for term in _terms(text):
                digest = hashlib.blake2b(term.encode(), digest_size=8).digest()
                place = int.from_bytes(digest[:4], "little") % self.dimensions
                matrix[row, place] += 1.0 if digest[4] & 1 else -1.0
            if not matrix[row].any():
                matrix[row, len(text) % self.dimensions] = 1.0
        unit: Matrix = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
        return unit


def _remember(texts: list[T], text: T) -> None:
    texts.append(text)
    if len(texts) > _REMEMBERED:
        del texts[: _REMEMBERED // 2]


def _terms(text: str) -> list[str]:
    words = _TOKEN.findall(clean(text).lower())
    pairs = [a + b for a, b in itertools.pairwise(words) if len(a) == len(b) == 1 and a > "\u3000" < b]
    return words + pairs
