"""The one interface of everything that turns text into vectors."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from memory.chunking.sentences import letters_by_script
from schemas.errors import Terminal

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")

#: A batch of embeddings: float32, shape (texts, dimensions).
Matrix: TypeAlias = "npt.NDArray[np.float32]"


@dataclass(frozen=True, slots=True)
class Embeddings:
    """Answer of a provider: `vectors`, float32, shape (texts, dimensions), raw: not yet checked or normalised.

    `tokens` is the provider's count, which it bills; None without one.
    """

    vectors: Matrix
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ProviderLimits:
    """Bounds of one request, and of requests a minute. Tokens are estimates (see `estimate_tokens`).

    `input_bytes` (of UTF-8) bounds one input: a byte is never less than a token, so an input within it is within
    the provider's limit of tokens. `chunks_per_second` is the expected rate before the first measurement: it decides
    whether a document waits for its vectors. `requests_per_minute` and `tokens_per_minute` bound all users of the
    account together; None is unbounded.
    """

    inputs: int
    tokens: int
    input_bytes: int
    concurrency: int
    chunks_per_second: float
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None


class ProviderUnavailable(Terminal):
    """Provider or model that is unavailable: the `reason`, and the `remedy` for a person."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(f"{reason}; {remedy}")
        self.reason = reason
        self.remedy = remedy


class EmbeddingProvider(ABC):
    """Turns texts into vectors. Thread-safe. Constructing one neither connects nor loads a model.

    Status shows `name` and `model`. `identity` names, without secrets, everything that decides the numbers of a vector
    (provider, model, requested dimensions, endpoint, input types). It goes into the index fingerprint and the cache
    key, and is the same in every process. `account` identifies the account whose limits requests count against: a
    digest of endpoint and key, "" without a limit, as for a model on this machine. `address` is the endpoint's address
    without secrets, for messages. `scripts` are those that the model reads (`letters_by_script`), None for all.
    """

    name: str
    model: str
    identity: str
    limits: ProviderLimits
    account: str = ""
    address: str = ""
    scripts: frozenset[str] | None = None

    @abstractmethod
    def embed_documents(self, texts: Sequence[str]) -> Embeddings:
        """Embed texts to be stored, in order.

        Raises:
            Transient: rate limit, overload, time-out, broken connection; `retry_after` when the provider said so.
            Permanent: the request can never work as it is (an input too long, refused content).
            Terminal: key refused, quota exhausted, model unknown.
        """

    @abstractmethod
    def embed_query(self, text: str) -> Embeddings:
        """Embed one query; vectors of shape (1, dimensions). Raises like `embed_documents`."""

    def unread_script(self, text: str) -> str | None:
        """Return the script of a text that the model cannot read; None for a text that it reads.

        The larger part of the letters decides. A text without letters is read.
        """
        if self.scripts is None or text.isascii():
            return None
        letters = letters_by_script(text)
        unread = {script: count for script, count in letters.items() if script not in self.scripts}
        if 2 * sum(unread.values()) <= letters.total():
            return None
        return max(unread, key=unread.__getitem__).capitalize()

    def reach(self, *, seconds: float) -> None:  # noqa: B027 - a model on this machine is there
        """Send the endpoint a request without key and text. Any answer will do.

        Raises:
            Transient: no connection, or no answer within `seconds`.
        """

    def warm_up(self) -> None:  # noqa: B027 - nothing to load is a valid answer
        """Load the parts that the first call would load. May take seconds."""

    def close(self) -> None:  # noqa: B027 - most hold no connections
        """Let go of connections."""


def clean(text: str) -> str:
    """Replace lone surrogates (no UTF-8 can hold them) by U+FFFD and NUL (it ends a C string) by a space."""
    if "\0" in text:
        text = text.replace("\0", " ")
    if not text.isascii():
        text = _LONE_SURROGATE.sub("\ufffd", text)
    return text


def cut_to_bytes(text: str, limit: int) -> str:
    """Return the longest start of a clean text that takes at most `limit` bytes of UTF-8."""
    if len(text) * 4 <= limit:
        return text
    data = text.encode()
    return text if len(data) <= limit else data[:limit].decode(errors="ignore")
