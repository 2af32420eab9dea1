"""Names of documents, as every room and every message spells them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

#: The `source` of every transcript.
SESSIONS_SOURCE = "sessions"


class Lane(StrEnum):
    """Which queue carries a document's job."""

    LIVE = "live"
    BACKFILL = "backfill"


@dataclass(frozen=True, slots=True, order=True)
class DocumentKey:
    """One document of one agent.

    `source` is "memory" or "sessions". `path` is POSIX style: relative to the workspace for what lies
    inside it ("memory/2026-11-20.md"), absolute for documents of extra paths outside of it.
    """

    source: str
    path: str

    def encode(self) -> str:
        """One string, for the broker's hashes; paths cannot hold a NUL, so it separates."""
        return f"{self.source}\0{self.path}"

    @classmethod
    def decode(cls, text: str) -> DocumentKey:
        """The inverse of `encode`."""
        source, _, path = text.partition("\0")
        return cls(source, path)


@dataclass(frozen=True, slots=True)
class FileStat:
    """What `stat` says of a document. Equality with what the index remembers means: unchanged, do not read.

    `mtime_ns` is a fingerprint, compared for equality, never a clock.
    """

    size: int
    mtime_ns: int
    inode: int
