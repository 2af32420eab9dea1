"""What is remembered of a dead letter that was retried, until its document is read or fails again: since when it fails,
and how often it did. Pure; a store keeps it in its entry `RETRIED` of `meta`."""

from __future__ import annotations

import json
from typing import Any

from memory.store.reader import DeadLetterRow
from schemas.documents import DocumentKey

#: Entry of `meta`: a JSON array of [source, path, error class, attempts, Unix time of the first failure].
RETRIED = "retried"

#: Letters that are remembered; of more, the ones that were retried last.
MOST_RETRIED = 1000


def remembered(raw: str | None, letter: DeadLetterRow) -> str:
    """The entry with a letter that is about to be removed."""
    rest = [one for one in _read(raw) if one[:2] != [letter.key.source, letter.key.path]]
    row = [letter.key.source, letter.key.path, letter.error_class, letter.attempts, letter.first_at]
    return json.dumps([*rest, row][-MOST_RETRIED:])


def taken(raw: str | None, key: DocumentKey) -> tuple[str, DeadLetterRow] | None:
    """The entry without a document, and the letter that it had; None when it had none."""
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
