"""Lines of MEMORY.md and USER.md that reach a prompt without a search: standing instructions, and lines with triggers.

    ## Preferences                          the section is standing, like "Rules" (偏好, 规则)
    - Answer in metric units <!-- always -->
    - The deploy password is in the vault <!-- trigger: deploy, 部署 --> <!-- importance: 9 -->
    - Use pnpm here <!-- always --> <!-- project: github.com/acme/shop -->

A comment on a heading is about its section, a comment on a line about the line, and one alone on a line about the
paragraph below it. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from itertools import groupby

#: Curated files, by the names under which they are read.
CURATED_FILES = ("MEMORY.md", "USER.md")

#: Characters of a line with triggers that are embedded.
MEANING_CHARACTERS = 2_000

#: Headings whose sections are standing instructions, in lower case.
STANDING_HEADINGS = frozenset({"preferences", "rules", "偏好", "喜好", "规则", "規則"})

#: Importance of a line that names none, of 1 to 10.
_IMPORTANCE = 5

_COMMENT = re.compile(r"[ \t]*<!--\s*(always|trigger|importance|project)\s*(?::\s*([^>]*?))?\s*-->", re.IGNORECASE)
_HEADING = re.compile(r"(#{1,6})[ \t]+(.*?)[ \t#]*$")


@dataclass(frozen=True, slots=True)
class Marks:
    """Meaning of the comments of a line: standing or triggered, from 1 to 10, and only in these projects."""

    is_standing: bool = False
    triggers: tuple[str, ...] = ()
    importance: int = _IMPORTANCE
    projects: tuple[str, ...] = ()

    def are_for(self, projects: Collection[str]) -> bool:
        """Return True if the lines are for every prompt, or for prompts of one of these projects."""
        return not self.projects or not {project.lower() for project in projects}.isdisjoint(self.projects)


@dataclass(frozen=True, slots=True)
class CuratedBlock:
    """Lines `start` to `end` (1-based) of a curated file, without their comments."""

    path: str
    start: int
    end: int
    text: str
    marks: Marks

    @property
    def source(self) -> str:
        """Return the citation of the block."""
        return f"{self.path}#L{self.start}-L{self.end}"

    @property
    def meaning(self) -> str | None:
        """Return the text that stands for the block when meanings are compared, None without triggers."""
        words = ", ".join(self.marks.triggers)
        return f"{words}: {self.text}"[:MEANING_CHARACTERS] if words else None


def curated_blocks(text: str, *, path: str) -> list[CuratedBlock]:
    """Return the standing and the triggered blocks of a curated file, in its order."""
    blocks = []
    for _, group in groupby(_marked_lines(text), key=lambda line: id(line[2])):
        numbers, lines, (marks, *_) = zip(*group, strict=True)
        if any(line.strip() and not _HEADING.match(line) for line in lines):
            blocks.append(CuratedBlock(path, numbers[0], numbers[-1], "\n".join(lines).strip("\n"), marks))
    return blocks


def other_lines(text: str, *, first: int, hidden: Collection[int]) -> str:
    """Return a part of a curated file, from its line `first` on, without hidden lines and comments.

    A part with headings alone is "".
    """
    numbered = enumerate(text.split("\n"), start=first)
    lines = [_COMMENT.sub("", line).rstrip() for number, line in numbered if number not in hidden]
    says = any(line and not _HEADING.match(line) for line in lines)
    return "\n".join(lines).strip("\n") if says else ""


def _marked_lines(text: str) -> Iterator[tuple[int, str, Marks]]:
    """Yield number, words and marks of each line that has some, or stands in a section or paragraph that has."""
    section: tuple[int, Marks] | None = None
    paragraph: Marks | None = None
    for number, line in enumerate(text.split("\n"), start=1):
        words, own = _COMMENT.sub("", line).rstrip(), _marks_of(line)
        if heading := _HEADING.match(words):
            level, paragraph = len(heading[1]), None
            if section is not None and level <= section[0]:
                section = None
            if section is None and heading[2].strip().lower() in STANDING_HEADINGS:
                own = replace(own or Marks(), is_standing=True)
            if own is not None:
                section, own = (level, own), None
        elif not words.strip():
            paragraph = own
            if own is not None:
                continue
        if own is not None and not own.triggers and section is not None and section[1].is_standing:
            own = replace(own, is_standing=True)
        marks = own or paragraph or (section[1] if section is not None else None)
        if marks is not None:
            yield number, words, marks


def _marks_of(line: str) -> Marks | None:
    """Return the meaning of a line's comments, None without any."""
    if "<!--" not in line:
        return None
    found = {name.lower(): value or "" for name, value in _COMMENT.findall(line)}
    if not found:
        return None

    def values(name: str) -> tuple[str, ...]:
        return tuple(value for one in re.split("[,，、]", found.get(name, "")) if (value := one.strip()))

    importance = found.get("importance", "")
    return Marks(
        is_standing="always" in found,
        triggers=values("trigger"),
        importance=int(importance) if importance.isdecimal() else _IMPORTANCE,
        projects=tuple(project.lower() for project in values("project")),
    )
