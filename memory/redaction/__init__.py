"""Takes secrets out of texts before anything else sees them."""

from memory.redaction.pattern_budgets import ASKING, REWRITING, PatternsUnanswered, PatternTooCostly
from memory.redaction.redactor import (
    REDACTION_VERSION,
    Redactor,
    query_redactor,
    redact,
    redaction_facts,
    redactor_for,
)

__all__ = [
    "ASKING",
    "REDACTION_VERSION",
    "REWRITING",
    "PatternTooCostly",
    "PatternsUnanswered",
    "Redactor",
    "query_redactor",
    "redact",
    "redaction_facts",
    "redactor_for",
]
