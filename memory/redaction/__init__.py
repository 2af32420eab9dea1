"""Takes secrets out of texts before anything else sees them."""

from memory.redaction.redactor import (
    REDACTION_VERSION,
    Redactor,
    query_redactor,
    redact,
    redaction_facts,
    redactor_for,
)

__all__ = ["REDACTION_VERSION", "Redactor", "query_redactor", "redact", "redaction_facts", "redactor_for"]
