"""Consents to the cost of embedding old texts, and their use, in a file of the home for each agent.

Texts of documents that are saved while recalld runs need none. A file has a JSON object a line: a grant of tokens for a
provider's identity, `unasked` if these are few, or a release of texts, whose tokens are negative.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memory.embedding.prices import is_free
from memory.embedding.providers.provider import EmbeddingProvider
from memory.store.reader import StoreReader
from schemas.settings import MemorySettings, Settings

#: US dollars for a million tokens where the price is not known, for `cost.ask_above` alone.
ASSUMED_PRICE = 0.1

#: Entry of a generation's `meta`: the held chunks, as `HeldTexts`.
HELD = "held"

_DAY_SECONDS = 86_400


def needs_consent(settings: Settings, memory: MemorySettings, provider: EmbeddingProvider | None) -> bool:
    """Return True if embedding old texts costs money. A budget, as each tenant of a fleet has one, is a consent."""
    is_budgeted = settings.store.url is not None or settings.cost.tokens_per_day is not None
    return not is_budgeted and (provider is None or not is_free(memory, provider))


@dataclass(frozen=True, slots=True)
class Consents:
    """Consents of one agent. Work of at most `ask_above` dollars a day (UTC) needs none."""

    path: Path
    ask_above: float

    @classmethod
    def of(cls, settings: Settings, agent: str) -> Consents:
        """Return the consents of an agent of the settings."""
        return cls(settings.home / "consents" / f"{agent}.jsonl", settings.cost.ask_above)

    @property
    def version(self) -> int:
        """Return a number that grows with every line."""
        with suppress(OSError):
            return self.path.stat().st_size
        return 0

    def grant(self, identity: str, tokens: int, *, unasked: bool = False) -> None:
        """Let so many tokens be embedded for this identity, those included that a former grant left."""
        if (more := tokens - self.remaining(identity)) > 0:
            self._append({"identity": identity, "tokens": more, "unasked": unasked})

    def use(self, identity: str, tokens: float) -> None:
        """Record a release before it happens: a crash between the two loses its consent, and pays nothing twice."""
        self._append({"identity": identity, "tokens": -tokens})

    def remaining(self, identity: str) -> float:
        """Return the granted tokens of an identity that no release has used."""
        return sum(float(line["tokens"]) for line in self._lines() if line["identity"] == identity)

    def allows_unasked(self, tokens: float, price: float | None) -> bool:
        """Return True if so many tokens more may be granted today without a consent."""
        today = time.time() // _DAY_SECONDS
        unasked = (line for line in self._lines() if line.get("unasked") and line["time"] // _DAY_SECONDS == today)
        total = tokens + sum(float(line["tokens"]) for line in unasked)
        return total * (ASSUMED_PRICE if price is None else price) / 1e6 <= self.ask_above

    def _lines(self) -> Iterator[Mapping[str, Any]]:
        with suppress(FileNotFoundError):
            for line in self.path.read_text("utf-8", errors="replace").splitlines():
                with suppress(ValueError):  # the end of a line that a crash cut off
                    yield json.loads(line)

    def _append(self, line: Mapping[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with os.fdopen(os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab") as file:
            # The newline comes first: a line that a crash cut off spoils no other one.
            file.write(f"\n{json.dumps({'time': time.time(), **line})}".encode())
            file.flush()
            os.fsync(file.fileno())


@dataclass(frozen=True, slots=True)
class HeldTexts:
    """Number of held chunks, and of different texts in them, with their tokens (estimated), as of a look.

    `consents` is the version of the consents at that time. Kept in `meta` for commands and status.
    """

    chunks: int
    texts: int
    tokens: int
    consents: int

    @classmethod
    def of(cls, reader: StoreReader) -> HeldTexts | None:
        """Return the last look at the held chunks; None without any, or if others are held by now."""
        noted = reader.meta(HELD)
        look = cls(**json.loads(noted)) if noted is not None else None
        return look if look is not None and look.chunks == reader.counts().vectors_held > 0 else None
