"""Lines of MEMORY.md and USER.md that reach a prompt without a search: standing instructions, and lines with triggers.

    ## Preferences                          the section is standing, like "Rules" (偏好, 规则)
    - Answer in metric units <!-- always -->
    - The deploy password is in the vault <!-- trigger: deploy, 部署 --> <!-- importance: 9 -->
    - Use pnpm here <!-- always --> <!-- project: github.com/acme/shop -->

A comment on a heading is about its section, a comment on a line about the line, and one alone on a line about the
paragraph below it. Lines inherit projects. A comment that begins with "project" and cannot be read hides its lines.

Pure, and linear in the text. `memory.context.injection` finds the lines whose triggers a prompt meets.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Self

#: Curated files, by the names under which they are read.
CURATED_FILES = ("MEMORY.md", "USER.md")

#: Characters of a line with triggers that are embedded.
MEANING_CHARACTERS = 2_000

#: Headings whose sections are standing instructions, in lower case.
STANDING_HEADINGS = frozenset({"preferences", "rules", "偏好", "喜好", "规则", "規則"})

#: Importance of a line that names none, of 1 to 10, and the digits that are read of one.
_IMPORTANCE, _DIGITS = 5, 2

#: Sets of projects that a line inherits at most. A prompt names fewer projects.
_MOST_SETS = 8

#: Projects of a directive that cannot be read: no prompt is about one of them.
_UNREADABLE: frozenset[str] = frozenset()

#: Characters of lines that say nothing: blank lines, rules, fences, borders of tables.
_STRUCTURE = " \t-*_=`~|:#>"

#: Levels of headings, and fences of code, which may be longer.
_LEVELS, _FENCES = 6, ("```", "~~~")


@dataclass(frozen=True, slots=True)
class Directives:
    """Meaning of a line's comments: standing or triggered, and from 1 to 10.

    The line is for prompts that are about a project of each set in `projects`.
    """

    is_standing: bool = False
    triggers: tuple[str, ...] = ()
    importance: int = _IMPORTANCE
    projects: frozenset[frozenset[str]] = frozenset()

    def are_for(self, repositories: Collection[str]) -> bool:
        """Return True if the line is for prompts about these repositories, named as by `repository_of`."""
        return not any(project.isdisjoint(repositories) for project in self.projects)

    def inside(self, outer: Directives) -> Directives:
        """Return the directives of a line that stands in a section or paragraph with directives."""
        if self is _NO_DIRECTIVES:
            return outer
        projects = self.projects | outer.projects
        return replace(
            self,
            is_standing=self.is_standing or (outer.is_standing and not self.triggers),
            projects=projects if len(projects) <= _MOST_SETS else frozenset({_UNREADABLE}),
        )


_NO_DIRECTIVES = Directives()


@dataclass(frozen=True, slots=True)
class CuratedBlock:
    """Lines `start` to `end` (1-based) of a curated file, without their comments."""

    path: str
    start: int
    end: int
    text: str
    directives: Directives

    @property
    def source(self) -> str:
        """Return the citation of the block."""
        return f"{self.path}#L{self.start}-L{self.end}"

    @property
    def meaning(self) -> str | None:
        """Return the text that stands for the block when meanings are compared, None without triggers."""
        words = ", ".join(self.directives.triggers)
        return f"{words}: {self.text}"[:MEANING_CHARACTERS] if words else None


@dataclass(frozen=True, slots=True)
class CuratedFile:
    """Revision of a curated file: its blocks with directives, and all its lines with theirs, between line ends."""

    path: str
    blocks: tuple[CuratedBlock, ...]
    lines: tuple[tuple[Directives, str], ...]

    @classmethod
    def of(cls, text: str, *, path: str) -> Self:
        """Read the text of a curated file."""
        blocks, lines = [], []
        for _, group in groupby(_directed_lines(text), key=lambda line: id(line[2])):
            numbers, words, (directives, *_) = zip(*group, strict=True)
            lines.append((directives, _bare(words)))
            if directives is not _NO_DIRECTIVES and any(map(_says_something, words)):
                blocks.append(CuratedBlock(path, numbers[0], numbers[-1], "\n".join(words).strip("\n"), directives))
        return cls(path, tuple(blocks), tuple(lines))

    def lines_for(self, repositories: Collection[str], *, but: Iterable[CuratedBlock]) -> Callable[[str], str]:
        """Return the function that reduces a passage to the lines that prompts about these repositories may get.

        An index may hold another revision. So each line of the passage must be a visible line of this revision; the
        first and the last may be parts of such lines. Lines with the words of a hidden line, or of a block in `but`,
        are left out, and so are comments. A passage with headings alone becomes "".
        """
        visible = "".join(text for directives, text in self.lines if directives.are_for(repositories))
        withheld = [text for directives, text in self.lines if not directives.are_for(repositories)]
        hidden = "".join([*withheld, *(_bare(block.text.split("\n")) for block in but)])

        def reduced(passage: str) -> str:
            lines, remaining = [_read(line)[0] for line in passage.split("\n")], []
            for number, words in enumerate(lines):
                line = _bare([words])
                part = words.strip() if number in (0, len(lines) - 1) else line
                if not words.strip(_STRUCTURE) or (part in visible and line not in hidden):
                    remaining.append(words)
            return "\n".join(remaining).strip("\n") if any(map(_says_something, remaining)) else ""

        return reduced


def curated_blocks(text: str, *, path: str) -> list[CuratedBlock]:
    """Return the blocks with directives of a curated file, in its order."""
    return list(CuratedFile.of(text, path=path).blocks)


def unreadable_directives(text: str) -> list[int]:
    """Return the numbers of a curated file's lines with a project directive that cannot be read."""
    lines = enumerate(text.split("\n"), start=1)
    return [number for number, line in lines if _UNREADABLE in _read(line)[1].projects]


def repository_of(address: str) -> str | None:
    """Return the repository of an address as host/owner/name in lower case; None for a local path.

    The address is a URL, has the form git@host:owner/name, or is such a name.
    """
    address = address.strip().lower().partition("?")[0].partition("#")[0]
    scheme, is_url, rest = address.rpartition("://")
    host, slash, name = rest.partition("/")
    host, colon, beside = host.rpartition("@")[2].partition(":")
    if colon and not is_url:  # else a port
        name = beside + slash + name
    name = name.strip("/").removesuffix(".git").strip("/")
    # A host of one letter is a drive of Windows.
    is_path = scheme == "file" or host[:1] in ("", ".", "~", "\\") or (colon and len(host) == 1)
    repository = f"{host}/{name}" if name else host
    return None if is_path or (is_url and not name) or len(repository.split()) > 1 else repository


def _directed_lines(text: str) -> Iterator[tuple[int, str, Directives]]:
    """Yield number, words and directives of each line, but for comments alone on a line."""
    sections: list[tuple[int, Directives]] = []
    paragraph, fence = _NO_DIRECTIVES, ""
    # Projects of comments alone on lines, until the text that they are about.
    waiting = _NO_DIRECTIVES
    for number, line in enumerate(text.split("\n"), start=1):
        words, directives = _read(line)
        rest = words.lstrip().lstrip("`~")
        run = words.lstrip()[: -len(rest) or None]
        if run.startswith(fence or _FENCES) and not (rest if fence else "`" in rest):
            fence = "" if fence else run
        # "# " begins a comment in code.
        level, title = _heading(words) if not fence or directives is not _NO_DIRECTIVES else (0, "")
        if level:
            directives, waiting, paragraph = directives.inside(waiting), _NO_DIRECTIVES, _NO_DIRECTIVES
            while sections and sections[-1][0] >= level:
                sections.pop()
        section = sections[-1][1] if sections else _NO_DIRECTIVES
        outer = section if paragraph is _NO_DIRECTIVES else paragraph
        if level:
            if title in STANDING_HEADINGS and not (section.is_standing or section.triggers):
                directives = replace(directives, is_standing=True)
            if directives is not _NO_DIRECTIVES:
                sections.append((level, directives.inside(section)))
                directives, outer = _NO_DIRECTIVES, sections[-1][1]
        elif words.strip():
            waiting = _NO_DIRECTIVES
        elif directives is not _NO_DIRECTIVES:
            paragraph = directives.inside(outer)
            waiting = Directives(projects=directives.projects).inside(waiting) if directives.projects else waiting
            continue
        elif not fence:
            paragraph, outer = waiting.inside(section) if waiting.projects else _NO_DIRECTIVES, section
        yield number, words, directives.inside(outer)


def _read(line: str) -> tuple[str, Directives]:
    """Return the words of a line without its comments, and the meaning of these."""
    if "<!--" not in line:
        return line.rstrip(), _NO_DIRECTIVES
    words, *comments = line.split("<!--")
    parts, values = [words], dict[str, str]()
    projects: set[str | None] = set()
    for comment in comments:
        body, end, rest = comment.partition("-->")
        name, _, value = (part.strip() for part in body.lstrip("-").partition(":"))
        name = name.lower()
        if name.startswith("project"):
            is_readable = name == "project" and end
            projects.update(map(repository_of, _listed(value) or [""]) if is_readable else [None])
        elif end and name in ("always", "trigger", "importance"):
            values[name] = value
        else:
            parts.append(f"<!--{comment}")
            continue
        parts[-1] = parts[-1].rstrip(" \t")
        parts.append(rest)
    words = "".join(parts).rstrip()
    if not values and not projects:
        return words, _NO_DIRECTIVES
    importance = values.get("importance", "")
    repositories = _UNREADABLE if None in projects else frozenset(project for project in projects if project)
    return words, Directives(
        is_standing="always" in values,
        triggers=tuple(_listed(values.get("trigger", ""))),
        importance=int(importance[:_DIGITS]) if importance.isdecimal() else _IMPORTANCE,
        projects=frozenset({repositories}) if projects else frozenset(),
    )


def _listed(names: str) -> list[str]:
    """Return the names between commas."""
    parts = names.replace("，", ",").replace("、", ",").split(",")
    return [name for part in parts if (name := part.strip())]


def _heading(words: str) -> tuple[int, str]:
    """Return level and title of a heading, in lower case; level 0 for other lines."""
    rest = words.lstrip("#")
    level = len(words) - len(rest)
    is_heading = 1 <= level <= _LEVELS and rest[:1] in ("", " ", "\t")
    return (level, rest.rstrip(" \t#").strip().lower()) if is_heading else (0, "")


def _says_something(words: str) -> bool:
    """Return True for a line that is neither a heading nor blank, a rule or the like."""
    return bool(words.strip(_STRUCTURE)) and not _heading(words)[0]


def _bare(lines: Iterable[str]) -> str:
    """Return lines without the white space around them, each between two line ends."""
    return "".join(f"\n{line.strip()}\n" for line in lines)
