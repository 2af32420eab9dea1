"""A text without its secrets."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memory.redaction.addresses import find_addresses
from memory.redaction.assignments import find_assignments
from memory.redaction.cookies import find_cookies
from memory.redaction.headers import find_headers
from memory.redaction.masking import mask_spans, without_masks
from memory.redaction.pattern_budgets import ASKING, INDEXING, PatternBudget
from memory.redaction.private_keys import find_private_keys
from memory.redaction.tokens import find_aws_secrets, find_tokens

if TYPE_CHECKING:
    from memory.redaction.pattern_finding import PatternFinder
    from schemas.settings import MemorySettings

#: Raised when a rule changes: indexes are built anew then.
REDACTION_VERSION = 3


@dataclass(frozen=True, slots=True)
class Redactor:
    """Masks what the built-in rules find, and the settings' patterns.

    Doing it again changes nothing; lines stay as many and where they were, their ends included; a text without
    secrets is returned as it is. Time is linear in the text's size; for what patterns take, there is a budget.
    """

    find_patterns: PatternFinder | None = None

    @classmethod
    def of(cls, patterns: Sequence[str], budget: PatternBudget = INDEXING) -> Redactor:
        """Return the redactor with these patterns, which settings have checked, on top of the built-in rules.

        With patterns it is for the texts of one document or question, which share the budget.
        """
        if not patterns:
            return _built_in
        # Most settings have none.
        from memory.redaction.pattern_finding import PatternFinder

        return cls(PatternFinder(patterns, budget))

    def __call__(self, text: str) -> str:
        """Return the text with a mask in place of each secret.

        Raises:
            PatternTooCostly, PatternsUnanswered: not without what patterns find, and they cannot be looked for.
        """
        # A mask may bring something to light that stood behind a secret: what is done is looked at again.
        while (redacted := self._once(text)) != text:
            text = redacted
        return text

    def _once(self, text: str) -> str:
        data = text.encode("utf-8", "surrogatepass")
        seen = without_masks(data)
        lowered = seen.lower()
        # In the order of what they know: it decides how a secret that several find is called.
        spans = [
            *find_private_keys(seen),
            *find_tokens(seen),
            *find_addresses(seen, lowered),
            *find_headers(seen, lowered),
            *find_cookies(seen, lowered),
            *find_assignments(seen, lowered),
            *find_aws_secrets(seen),
        ]
        if self.find_patterns is not None:
            spans += self.find_patterns(text, data)
        return mask_spans(data, spans).decode("utf-8", "surrogatepass") if spans else text


_built_in = Redactor()


def redact(text: str) -> str:
    """Return the text without what the built-in rules know for a secret. See `Redactor`."""
    return _built_in(text)


def redactor_for(memory: MemorySettings, source: str, *, budget: PatternBudget = INDEXING) -> Callable[[str], str]:
    """Return what takes the secrets out of the texts of one document of a source ("memory" or "sessions").

    Nothing, if that is switched off. What it raises: see `Redactor`.
    """
    switched_on = {"memory": memory.redaction.memory, "sessions": memory.redaction.sessions}[source]
    return Redactor.of(memory.redaction.patterns, budget) if switched_on else _unchanged


def query_redactor(memory: MemorySettings) -> Callable[[str], str]:
    """Return what takes the secrets out of one query: with either source redacted, so is what is asked of them."""
    switched_on = memory.redaction.memory or memory.redaction.sessions
    return Redactor.of(memory.redaction.patterns, ASKING) if switched_on else _unchanged


def redaction_facts(memory: MemorySettings) -> list[Any]:
    """Return what decides how an index's texts were redacted, as JSON; without the patterns' own words."""
    patterns = json.dumps(memory.redaction.patterns, ensure_ascii=True).encode()
    digest = hashlib.blake2b(patterns, digest_size=8).hexdigest() if memory.redaction.patterns else ""
    return [REDACTION_VERSION, memory.redaction.memory, memory.redaction.sessions, digest]


def _unchanged(text: str) -> str:
    return text
