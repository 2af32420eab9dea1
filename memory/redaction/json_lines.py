"""Masks in place of the secrets of a transcript's line, which stays one line of the same JSON.

The rules look for labels in front of secrets, and in JSON a label is a key. So a short string is also redacted behind
its key, as in `key: string`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeAlias

Redact: TypeAlias = Callable[[str], str]

#: Characters of the longest string that may be a secret of its own.
_LONGEST_SECRET = 1_000


def redact_line(line: bytes, redact: Redact) -> bytes:
    """Return a line without its end, with masks in place of the secrets in its strings. Idempotent.

    Keys, numbers and the order stay. A line without secrets comes back as it is. A line that is no JSON is redacted as
    text, with U+FFFD for invalid UTF-8. `redact` is as `memory.redaction.redactor_for` returns it.
    """
    try:
        values = json.loads(line, object_pairs_hook=_unique)
        redacted = _redacted(values, "", redact)
    except (ValueError, RecursionError):
        return redact(line.decode(errors="replace")).encode()
    if redacted == values:
        return line
    try:
        return json.dumps(redacted, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return json.dumps(redacted, separators=(",", ":")).encode()


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object without the same key twice: only the last one would be looked at."""
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("an object with the same key twice")
    return members


def _redacted(value: object, label: str, redact: Redact) -> object:
    if isinstance(value, str):
        return _redacted_string(value, label, redact)
    if isinstance(value, list):
        return [_redacted(entry, label, redact) for entry in value]
    if isinstance(value, dict):
        return {key: _redacted(entry, key, redact) for key, entry in value.items()}
    return value


def _redacted_string(text: str, label: str, redact: Redact) -> str:
    masked = redact(text)
    if not label or not text or "\n" in label or len(text) > _LONGEST_SECRET:
        return masked
    # Where the label is masked as well, it is no label, as in `Bearer: ...`.
    prefix = f"{label}: "
    labelled = redact(prefix + masked)
    return labelled.removeprefix(prefix) if labelled.startswith(prefix) else masked
