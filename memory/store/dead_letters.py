"""Dead letters of documents with refused chunks, and the memory of retried letters."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from memory.store.reader import DeadLetterRow, RefusedChunk
from schemas.documents import DocumentKey, FileStat

#: `DeadLetterRow.error_class` of a document that is indexed, some of its chunks without vectors for good.
EMBEDDING_REFUSED = "EmbeddingRefused"

#: Stat that no file has: the next job reads the document in any case.
FORGOTTEN = FileStat(size=-1, mtime_ns=-1, inode=0)


def refusal_letter(
    key: DocumentKey, refused: Sequence[RefusedChunk], before: DeadLetterRow | None, *, fresh: bool, now: float
) -> DeadLetterRow | None:
    """Return the letter of a document after a commit, None without refused chunks.

    `refused` are its refused chunks in order, `before` is its present letter, `fresh` is True if this commit added a
    refusal. Otherwise the letter keeps its times and attempts.
    """
    if not refused:
        return None
    known = before if before is not None and before.error_class == EMBEDDING_REFUSED else None
    return DeadLetterRow(
        key=key,
        reason=_reason(refused),
        error_class=EMBEDDING_REFUSED,
        attempts=known.attempts + fresh if known is not None else 1,
        first_at=known.first_at if known is not None else now,
        last_at=known.last_at if known is not None and not fresh else now,
    )


def lines_of(start_line: int, end_line: int) -> str:
    """Return lines for a message: "line 12" or "lines 12-40"."""
    return f"line {start_line}" if start_line == end_line else f"lines {start_line}-{end_line}"


def _reason(refused: Sequence[RefusedChunk]) -> str:
    first, *more = refused
    others = f"; and {len(more)} more chunk{'' if len(more) == 1 else 's'}" if more else ""
    return f"{lines_of(first.start_line, first.end_line)}: {first.reason}{others}"


#: Entry of `meta`: a JSON array of [source, path, error class, attempts, Unix time of the first failure].
RETRIED = "retried"

#: Number of remembered letters, the most recently retried ones.
MOST_RETRIED = 1000


def remembered(raw: str | None, letter: DeadLetterRow) -> str:
    """Return the entry with a letter that is about to be removed."""
    rest = [one for one in _read(raw) if one[:2] != [letter.key.source, letter.key.path]]
    row = [letter.key.source, letter.key.path, letter.error_class, letter.attempts, letter.first_at]
    return json.dumps([*rest, row][-MOST_RETRIED:])


def taken(raw: str | None, key: DocumentKey) -> tuple[str, DeadLetterRow] | None:
    """Return the entry without a document and the letter that it held; None without one."""
    rows = _read(raw)
    row = next((one for one in rows if one[:2] == [key.source, key.path]), None)
    if row is None:
        return None
    _, _, error_class, attempts, first_at = row
    letter = DeadLetterRow(
        key=key, reason="", error_class=error_class, attempts=attempts, first_at=first_at, last_at=first_at
    )
    return json.dumps([one for one in rows if one is not row]), letter


def _read(raw: str | None) -> list[list[Any]]:
    found: list[list[Any]] = json.loads(raw) if raw else []
    return found
