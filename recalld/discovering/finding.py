"""What was found: agents with their notes, transcripts and settings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from recalld.discovering.counting import NOTHING, Counted
from schemas.settings import AGENT_ID_PATTERN

_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_MAX_NAME_CHARS = 40


@dataclass(frozen=True, slots=True)
class Found:
    """One memory that recalld could keep.

    `name` is what a person picks it by and becomes the agent's id. `settings` are the agent's own, `shared` those that
    hold for all agents, both as nested tables in recalld's names. `remarks` are sentences about what was not taken
    over, and what to know.
    """

    name: str
    program: str
    title: str
    workspace: Path
    sessions: tuple[str, ...] = ()
    notes: Counted = NOTHING
    transcripts: Counted = NOTHING
    settings: Mapping[str, Any] = field(default_factory=dict)
    shared: Mapping[str, Any] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    @property
    def newest(self) -> float:
        """Unix time of the newest file, 0 when there is none."""
        return max(self.notes.newest or 0.0, self.transcripts.newest or 0.0)


@dataclass(frozen=True, slots=True)
class Discovery:
    """Everything that was found, and sentences about what could not be looked at."""

    found: tuple[Found, ...] = ()
    problems: tuple[str, ...] = ()

    def __add__(self, other: Discovery) -> Discovery:
        return Discovery(self.found + other.found, self.problems + other.problems)


def with_unique_names(found: Iterable[Found]) -> tuple[Found, ...]:
    """Every name an agent's id, and each once, however it is spelled; the first that wants one keeps it."""
    taken: set[str] = set()
    named = []
    for one in found:
        plain = _NOT_IN_A_NAME.sub("-", one.name).strip("-._")[:_MAX_NAME_CHARS].rstrip("-._") or one.program
        name, number = plain, 1
        while name.lower() in taken:
            number += 1
            name = f"{plain}-{number}"
        taken.add(name.lower())
        assert re.match(AGENT_ID_PATTERN, name)  # noqa: S101 - made so above
        named.append(replace(one, name=name))
    return tuple(named)
