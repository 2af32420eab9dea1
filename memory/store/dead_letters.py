"""Dead letters of documents with refused chunks.

Those of unreadable documents are `memory.store.writer.DocumentFailure`. `memory.store.sqlite.transaction` writes the
rows, `memory.documents.comparison` knows the dropped documents, and `recalld.commands.dead` lists, retries and drops.
"""

from __future__ import annotations

from collections.abc import Sequence

from memory.store.reader import StoredChunk
from schemas.documents import DocumentKey, FileStat
from schemas.status import DeadLetter

#: `DeadLetter.error_class` of a document that is indexed, some of its chunks without vectors for good.
EMBEDDING_REFUSED = "EmbeddingRefused"

#: Stat that no file has: the next job reads the document in any case.
FORGOTTEN = FileStat(size=-1, mtime_ns=-1, inode=0)


def refusal_letter(
    key: DocumentKey, refused: Sequence[StoredChunk], before: DeadLetter | None, *, fresh: bool, now: float
) -> DeadLetter | None:
    """Return the letter of a document after a commit, None without refused chunks.

    `refused` are its refused chunks in order, `before` is its present letter, `fresh` is True if this commit added a
    refusal. Otherwise the letter keeps its times and attempts.
    """
    if not refused:
        return None
    earlier = before if before is not None and before.error_class == EMBEDDING_REFUSED else None
    return DeadLetter(
        source=key.source,
        path=key.path,
        reason=_reason(refused),
        error_class=EMBEDDING_REFUSED,
        attempts=earlier.attempts + fresh if earlier is not None else 1,
        first_at=earlier.first_at if earlier is not None else now,
        last_at=earlier.last_at if earlier is not None and not fresh else now,
    )


def lines_of(start_line: int, end_line: int) -> str:
    """Return lines for a message: "line 12" or "lines 12-40"."""
    return f"line {start_line}" if start_line == end_line else f"lines {start_line}-{end_line}"


def _reason(refused: Sequence[StoredChunk]) -> str:
    first, *more = refused
    remainder = f"; and {len(more)} more chunk{'' if len(more) == 1 else 's'}" if more else ""
    return f"{lines_of(first.start_line, first.end_line)}: {first.refusal}{remainder}"
