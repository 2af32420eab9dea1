"""The patterns that settings add to the rules."""

from __future__ import annotations

import json
from collections.abc import Sequence

from memory.redaction.masking import Span
from memory.redaction.pattern_budgets import INDEXING, PatternBudget
from memory.redaction.pattern_processes import PROCESSES


class PatternFinder:
    """Finds patterns (regular expressions that settings have checked) in the texts of one document or question.

    The budget is for all of these texts together. Called by one thread at a time.
    """

    def __init__(self, patterns: Sequence[str], budget: PatternBudget = INDEXING) -> None:
        self._patterns = json.dumps(patterns).encode()
        self._count = len(patterns)
        self._budget = budget
        self._left = budget.seconds

    def __call__(self, text: str, data: bytes) -> list[Span]:
        """Return what is secret by the patterns; `data` is the text's UTF-8, of which spans count the bytes.

        Of a match its groups are secret, or all of it if none took part. A match of nothing is none.

        Raises:
            PatternTooCostly: the budget is used up.
            PatternsUnanswered: nobody can look for them now.
        """
        self._left += self._budget.seconds_per_megabyte * len(data) / 1e6
        found, spent = PROCESSES.find(
            self._patterns, data, count=self._count, seconds=self._left, patience=self._budget.patience_seconds
        )
        self._left = max(0.001, self._left - spent)
        spans: list[Span] = []
        character = byte = 0
        for start, end in sorted({part for parts in found for part in zip(parts[::2], parts[1::2], strict=True)}):
            byte += _bytes(text[character:start])
            character = start
            spans.append(Span(byte, byte + _bytes(text[start:end]), "pattern"))
        return spans


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
