"""Conditions: facts about recalld that a person should know. `memory.status.condition_texts` has their sentences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class ConditionCode(StrEnum):
    """Stable names of conditions. They are part of `--json`, HTTP answers and metrics."""

    #: No provider can be had with these settings: documents are found by keyword only.
    VECTORS_UNAVAILABLE = "vectors_unavailable"
    #: The provider does not embed for now: chunks wait.
    VECTORS_WAIT = "vectors_wait"
    #: A command left because nothing that it waited for got on.
    INDEXING_STILL = "indexing_still"
    #: Many messages of an agent begin alike: a program seems to write them.
    MESSAGES_ALIKE = "messages_alike"
    #: An index was made without the prefixes that its model's family wants: one with them finds better.
    PREFIXES_MISSING = "prefixes_missing"
    #: An index was made through Gemini's OpenAI-compatible API, which has no task types: one with them finds better.
    TASK_TYPES_MISSING = "task_types_missing"


@dataclass(frozen=True, slots=True)
class Condition:
    """One fact: `code` holds for `subject` (an agent, a file, an endpoint) since the Unix time `since`.

    `params` are the values that its sentence shows. No code reads the sentence.
    """

    code: ConditionCode
    subject: str
    since: float | None = None
    params: Mapping[str, str | int | float] = field(default_factory=dict)
