"""Globs over paths, as in .gitignore.

*       anything within one component; `?` one character, `[a-z]` one of these, `[!a-z]` one of the others
**      any number of components
x       (no slash) a file or folder of that name at any depth; a folder stands for all that is in it
a/x     (with a slash) that file or folder, from the beginning of the path
x/      the folder alone, with all that is in it
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_MAX_CHARS = 1_000

#: Rest of a set after its [, and the characters in a set that have another meaning in a regular expression.
_SET = re.compile(r"(?P<negated>[!^]?)(?P<signs>[^/][^]/]*)\]")
_SPECIAL = re.compile(r"[][^&|~\\]")


@dataclass(frozen=True, slots=True)
class Globs:
    """Filter of paths by `include` and `exclude`, compiled once. Without `include`, all other paths pass."""

    include: _Union | None
    exclude: _Union | None

    def admits(self, path: str, *, skip: int = 0) -> bool:
        """Return True if a path passes. Globs without a slash ignore the first `skip` characters."""
        if self.include is not None and not self.include.matches(path, skip):
            return False
        return self.exclude is None or not self.exclude.matches(path, skip)

    def closes(self, folder: str, *, skip: int = 0) -> bool:
        """Return True if everything in a folder is excluded."""
        return self.exclude is not None and self.exclude.matches(folder + "/", skip)


@dataclass(frozen=True, slots=True)
class _Union:
    """Globs of which one must match: `anchored` ones at the beginning of the path, `floating` ones at any depth."""

    anchored: re.Pattern[str] | None
    floating: re.Pattern[str] | None

    def matches(self, path: str, skip: int) -> bool:
        if self.anchored is not None and self.anchored.match(path):
            return True
        return self.floating is not None and self.floating.search(path[skip:]) is not None


def compiled(include: Sequence[str], exclude: Sequence[str]) -> Globs | None:
    """Return the globs as one value; None when there are none.

    Raises:
        ValueError: a pattern is no glob. The message has the pattern and the reason.
    """
    return Globs(_union(include), _union(exclude)) if include or exclude else None


def _union(globs: Sequence[str]) -> _Union | None:
    if not globs:
        return None
    expressions: dict[bool, list[str]] = {True: [], False: []}
    for glob in globs:
        expressions["/" in glob.rstrip("/")].append(_expression(glob))
    anchored, floating = expressions[True], expressions[False]
    return _Union(
        re.compile("|".join(anchored), re.DOTALL) if anchored else None,
        re.compile(f"(?:^|/)(?:{'|'.join(floating)})", re.DOTALL) if floating else None,
    )


def _expression(glob: str) -> str:
    """Return the regular expression of one glob. It also matches documents in a folder that the glob names."""
    text = glob.removeprefix("./")
    end = r"/" if text.endswith("/") else r"(?:/|\Z)"
    text = text.rstrip("/")
    while text.endswith("/**"):
        text, end = text[:-3].rstrip("/"), "/"
    if not text or len(text) > _MAX_CHARS or "\0" in text:
        raise ValueError(f"{glob[:60]!r} is no glob: write a name or a path, such as drafts/ or memory/2025-*.md")
    if text.startswith("!"):
        raise ValueError(f"{glob!r} begins with an exclamation mark: write what is to count under include")
    components = text.split("/")
    if ".." in components:
        raise ValueError(f"{glob!r} has a component '..', which no path of a document has")
    *folders, last = components
    above = "".join("(?:[^/]*/)*" if folder == "**" else _component(folder, glob) + "/" for folder in folders)
    return f"{above}{_component(last, glob)}{end}"


def _component(text: str, glob: str) -> str:
    parts = []
    rest = re.sub(r"\*+", "*", text)
    while rest:
        sign, rest = rest[0], rest[1:]
        if sign == "*":
            parts.append("[^/]*")
        elif sign == "?":
            parts.append("[^/]")
        elif sign == "[":
            match = _SET.match(rest)
            if match is None:
                raise ValueError(f"{glob!r} has a [ without a ]: close it, or write [[] for the sign itself")
            rest = rest[match.end() :]
            signs = _SPECIAL.sub(r"\\\g<0>", match["signs"])
            parts.append(f"(?!/)[{'^' if match['negated'] else ''}{signs}]")
        else:
            parts.append(re.escape(sign))
    expression = "".join(parts)
    try:
        re.compile(expression)
    except re.error:
        raise ValueError(f"{glob!r} has a range in [ ] that runs backwards: turn it around") from None
    return expression
