"""The settings' redaction patterns, tried on lines that show which of them never ends."""

from __future__ import annotations

import re
from collections.abc import Iterator

from memory.redaction import REWRITING, PatternsUnanswered, PatternTooCostly, Redactor
from memory.redaction.pattern_budgets import PatternBudget
from recalld.doctor.finding import Finding, Level
from schemas.settings import Settings

#: Characters of a line that is tried, and what usual patterns are far from taking for it.
_LINE = 1000
_BUDGET = PatternBudget(seconds=0.2, seconds_per_megabyte=0.0, patience_seconds=5.0)

#: Parts of a pattern that lines are made of beside these, at most.
_MOST_PARTS = 12
_PARTS = ("a", "0", " ", "a ", "-", "=", "a.")


def pattern_findings(settings: Settings) -> Iterator[Finding]:
    """Try each list of patterns that an agent has, once."""
    lists = {agent.redaction.patterns: agent.id for agent in reversed(settings.agents) if agent.redaction.patterns}
    for patterns, agent in lists.items():
        try:
            slow = [place for place, pattern in enumerate(patterns, start=1) if is_slow(pattern)]
        except PatternsUnanswered as error:
            yield Finding("redaction", Level.WARNING, str(error), "run `recalld doctor` again", agent=agent)
            continue
        if not slow:
            yield Finding.fine("redaction", f"redaction.patterns of {agent}: all are quick")
        for place in slow:
            yield Finding(
                "redaction",
                Level.WARNING,
                f"pattern {place} of redaction.patterns of {agent} takes more than {_BUDGET.seconds} s of processor "
                f"time for one line of {_LINE:,} characters: documents with such lines are not indexed",
                REWRITING,
                agent=agent,
            )


def is_slow(pattern: str) -> bool:
    """Whether a line can be made, out of what the pattern mentions, that it takes far too long for.

    Raises:
        PatternsUnanswered: it could not be tried.
    """
    try:
        for line in _lines(pattern):
            Redactor.of([pattern], _BUDGET)(line)
    except PatternTooCostly:
        return True
    return False


def _lines(pattern: str) -> Iterator[str]:
    mentioned: list[str] = re.findall(r"\w+|[^\w\\]", pattern)
    for part in dict.fromkeys([*_PARTS, *mentioned, *"".join(mentioned)][: len(_PARTS) + _MOST_PARTS]):
        run = part * (_LINE // len(part))
        yield from (run, run + "!", run + "\x01 ")
