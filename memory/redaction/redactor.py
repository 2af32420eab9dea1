"""Masks in place of the secrets of a text.

A mask is `[redacted:<kind>]`. It is stable, so that a text gives the same chunks each time, and reveals nothing of the
secret but its kind. Texts are UTF-8 bytes for the rules, which see one kind of string in every language.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from memory.redaction.assignments import find_assignments, find_named
from memory.redaction.credentials import find_credentials
from memory.redaction.tokens import find_aws_secrets, find_tokens
from memory.redaction.user_patterns import INDEXING, PatternBudget, UserPatterns
from memory.redaction.values import Span

if TYPE_CHECKING:
    from schemas.settings import MemorySettings

#: Counted up when a rule changes: indexes are built anew then.
REDACTION_VERSION = 6

#: An earlier mask. Rules see NUL in its place: no secret and no label contains NUL.
_MASK = re.compile(rb"\[redacted:[a-z]+(?:-[a-z]+)*\]")

#: Part of a secret that is replaced in each line: all but the blanks around it, so that line ends stay.
_LINE_PART = re.compile(rb"[^\s\0](?:[^\r\n\0]*[^\s\0])?")


def redact(text: str, find_patterns: UserPatterns | None = None) -> str:
    """Return the text with masks in place of the secrets that the built-in rules and the user's patterns find.

    Redaction is idempotent and keeps the number of lines and their ends. It takes time linear in the size of the text,
    besides the time of the patterns, which has a budget.

    Raises:
        PatternTooCostly: a pattern used up the budget; the text must not be used.
    """
    # A mask may uncover another secret behind it.
    while (redacted := _once(text, find_patterns)) != text:
        text = redacted
    return text


def redactor_for(memory: MemorySettings, *sources: str, budget: PatternBudget = INDEXING) -> Callable[[str], str]:
    """Return the function that masks secrets in the texts of one document or question.

    It changes nothing if redaction is switched off for each of the sources ("memory", "sessions"). Its texts share the
    budget. It raises the errors of `redact`.
    """
    switched_on = {"memory": memory.redaction.memory, "sessions": memory.redaction.sessions}
    if not any(switched_on[source] for source in sources):
        return str
    patterns = memory.redaction.patterns
    return partial(redact, find_patterns=UserPatterns(patterns, budget)) if patterns else redact


def redaction_facts(memory: MemorySettings) -> list[Any]:
    """Return the settings that decide the redaction of an index's texts, as JSON; patterns as a digest."""
    patterns = json.dumps(memory.redaction.patterns, ensure_ascii=True).encode()
    digest = hashlib.blake2b(patterns, digest_size=8).hexdigest() if memory.redaction.patterns else ""
    return [REDACTION_VERSION, memory.redaction.memory, memory.redaction.sessions, digest]


def _once(text: str, find_patterns: UserPatterns | None) -> str:
    data = text.encode("utf-8", "surrogatepass")
    without_masks = _MASK.sub(lambda mask: b"\0" * len(mask[0]), data)
    lowered = without_masks.lower()
    # The first rule that finds a secret names it, so the most specific rules come first.
    spans = [
        *find_tokens(without_masks),
        *find_credentials(without_masks, lowered),
        *find_assignments(without_masks, lowered),
        *find_named(lowered),
        *find_aws_secrets(without_masks),
        *(find_patterns(text, data) if find_patterns is not None else ()),
    ]
    return _masked(data, without_masks, spans).decode("utf-8", "surrogatepass") if spans else text


def _masked(data: bytes, without_masks: bytes, spans: Iterable[Span]) -> bytes:
    """Return the text with masks over the spans. Overlapping spans become one, of the kind that begins first."""
    joined: list[Span] = []
    for span in sorted(spans, key=attrgetter("start")):  # of equal beginnings, the first rule's comes first
        if joined and span.start < joined[-1].end:
            joined[-1] = joined[-1]._replace(end=max(joined[-1].end, span.end))
        else:
            joined.append(span)
    parts: list[bytes] = []
    done = 0
    for span in joined:
        for part in _LINE_PART.finditer(without_masks, span.start, span.end):
            parts += [data[done : part.start()], f"[redacted:{span.kind}]".encode()]
            done = part.end()
    return b"".join([*parts, data[done:]])
