"""What the doctor found: one sentence, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad it is. Only problems make the doctor's exit code 4."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One check's result.

    `message` is one sentence, `action` what to do about it. `heal`, where there is a remedy that loses nothing, does
    it and says what it did; `agent` is whose index it is about. `speaks_for` names parts of status' troubles that are
    the same thing in other words.
    """

    check: str
    level: Level
    message: str
    action: str | None = None
    agent: str | None = None
    heal: Callable[[], str] | None = None
    speaks_for: frozenset[str] = frozenset()

    @classmethod
    def fine(cls, check: str, message: str) -> Finding:
        """Nothing to do."""
        return cls(check, Level.OK, message)
