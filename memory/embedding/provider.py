"""The one interface of everything that turns text into vectors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

#: A batch of embeddings: float32, shape (texts, dimensions).
Matrix = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ProviderLimits:
    """What one request may hold. Tokens are estimated (`memory.chunking.estimate_tokens`), bytes are UTF-8.

    `input_bytes` bounds one input: a byte is never less than a token, so an input within it is within
    the provider's limit of tokens. `chunks_per_second` is what one can expect before anything was
    measured: it decides whether a document waits for its vectors.
    """

    inputs: int
    tokens: int
    input_bytes: int
    concurrency: int
    chunks_per_second: float


class EmbeddingProvider(ABC):
    """Turns texts into vectors. Thread-safe. Constructing one neither connects nor loads a model.

    `name` and `model` are what status says. `identity` names, without secrets, everything that decides
    what numbers come back (provider, model, dimensions asked, endpoint, input types); it goes into the
    index fingerprint and the cache key, and is the same in every process.
    """

    name: str
    model: str
    identity: str
    limits: ProviderLimits

    @abstractmethod
    def embed_documents(self, texts: Sequence[str]) -> Matrix:
        """Embed texts to be stored, in order; raw numbers, not yet checked or normalised.

        Raises:
            Transient: rate limit, overload, time-out, broken connection; `retry_after` when the provider said so.
            Permanent: the request can never work as it is (an input too long, refused content).
            Terminal: key refused, quota exhausted, model unknown.
        """

    @abstractmethod
    def embed_query(self, text: str) -> Matrix:
        """Embed one query; shape (1, dimensions). Raises like `embed_documents`."""

    def warm_up(self) -> None:  # noqa: B027 - nothing to load is a valid answer
        """Load what the first call would load. May take seconds."""

    def close(self) -> None:  # noqa: B027 - most hold no connections
        """Let go of connections."""
