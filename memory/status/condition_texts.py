"""Sentences for conditions: what happened; what to do. The only module that turns a code into words."""

from __future__ import annotations

from schemas.conditions import Condition, ConditionCode

#: Code -> template. `{subject}` and the condition's params are filled in.
TEXTS: dict[ConditionCode, str] = {
    ConditionCode.VECTORS_UNAVAILABLE: "{documents} by keyword only: {reason}; {remedy}",
    ConditionCode.VECTORS_WAIT: "{chunks}: {reason}; the same command asks again",
    ConditionCode.INDEXING_STILL: (
        "nothing got on for {minutes} min, with {what} to come; `recalld status` says what holds it up"
    ),
    ConditionCode.MESSAGES_ALIKE: (
        "{subject}: {percent} % of the newest {messages} messages begin with \u201c{beginning}\u201d, as if a program "
        "wrote them; if so, report that beginning and the program's version to recalld"
    ),
    ConditionCode.PREFIXES_MISSING: (
        "the index was made without the prefixes that {model} is trained on, and finds better with them; "
        "`recalld rebuild` embeds {texts} again ({cost}, about {minutes} min; --dry-run says it exactly), and "
        '`query_prefix = ""` with `document_prefix = ""` in the settings keeps the index as it is'
    ),
    ConditionCode.TASK_TYPES_MISSING: (
        "the index was made without the task types by which {model} tells queries from documents, and finds better "
        "with them; `recalld rebuild` embeds {texts} again ({cost}, about {minutes} min; --dry-run says it exactly), "
        'and `provider = "gemini"` with `remote.base_url = "https://generativelanguage.googleapis.com/v1beta/openai"` '
        "keeps the index as it is"
    ),
}


def counted(number: int, noun: str) -> str:
    """Return "1 document", "2,000 documents"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def waiting_chunks(number: int) -> str:
    """Return "1 chunk waits for its vector", "2,000 chunks wait for their vectors"."""
    return f"{counted(number, 'chunk')} {'waits for its vector' if number == 1 else 'wait for their vectors'}"


def text_of(condition: Condition) -> str:
    """Return the condition's sentence in English.

    Raises:
        KeyError: a param that the sentence shows is missing, which is an error of the code that raised it.
    """
    return TEXTS[condition.code].format_map({"subject": condition.subject, **condition.params})
