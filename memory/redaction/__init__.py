"""Redaction: masks in place of secrets, before any other part sees a text."""

from memory.redaction.redactor import REDACTION_VERSION, redact, redaction_facts, redactor_for
from memory.redaction.user_patterns import ASKING, REWRITING, PatternTooCostly, is_costly

__all__ = [
    "ASKING",
    "REDACTION_VERSION",
    "REWRITING",
    "PatternTooCostly",
    "is_costly",
    "redact",
    "redaction_facts",
    "redactor_for",
]
