"""Roots of an agent's notes: the workspace's memory and the extra paths, and the names of their documents."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date

from schemas.globs import Globs

#: Folders that hold no notes, only a great many files. Hidden folders never count, either.
IGNORED_DIRECTORIES = frozenset(
    {
        ".git",
        ".hg",
        ".svn",
        ".pnpm-store",
        ".venv",
        ".tox",
        ".mypy_cache",
        ".ruff_cache",
        ".pytest_cache",
        ".obsidian",
        ".trash",
        ".Trash",
        "node_modules",
        "venv",
        "__pycache__",
        "__MACOSX",
        "$RECYCLE.BIN",
        "System Volume Information",
    }
)

#: The workspace's long-term memory: both spellings of one name, of which the first names what is one file, and what
#: is known of the user.
LONG_TERM_NAMES = ("MEMORY.md", "memory.md", "USER.md")

#: The workspace's folder of people: `users/<id>/USER.md` is what is known of one of them.
USERS_FOLDER = "users"

_SUFFIX = ".md"

#: 2026-03-01, 2026_03_01 (Logseq's journals) and 20260301, the last of this century and the one before.
_DATE = re.compile(
    r"(?<![0-9])(?:([0-9]{4})([-_])([0-9]{2})\2([0-9]{2})|((?:19|20)[0-9]{2})([0-9]{2})([0-9]{2}))(?![0-9])"
)


@dataclass(frozen=True, slots=True)
class Area:
    """Globs and the documents they hold for: those below `prefix`, by the rest of their paths, put after `lead`.

    Without a `prefix` they hold for all documents, by their whole paths.
    """

    globs: Globs
    prefix: str | None = None
    lead: str = ""

    def leaves_out(self, path: str, skip: int, *, is_folder: bool = False) -> bool:
        """Return True if the globs leave out a document or, with all that is in it, a folder."""
        if self.prefix:
            start = self.prefix if self.prefix.endswith("/") else self.prefix + "/"
            if not path.startswith(start):
                return False
            path = path[len(start) :]
        elif self.prefix is not None and path.startswith("/"):
            return False
        skip = skip if self.prefix is None else 0
        path = self.lead + path
        return self.globs.closes(path, skip=skip) if is_folder else not self.globs.admits(path, skip=skip)


@dataclass(frozen=True, slots=True)
class Root:
    """Place of documents: `folder` (configured, may be reached through links) and `below` it (never through links).

    `names`: the documents right inside (of each folder in it, if `in_each`), or None when all Markdown files count,
    however deep. `prefix` goes before their paths in keys. `real` is the same place without links in `folder`.
    `configured` is the path in the settings. `hole`: a folder, relative to this one, that is left to another root.
    `covered`: another root reaches the same files, and names them alike. `areas` leave documents out; `skip` characters
    of a prefix are no names to them. `lead` is the way from `configured` to this root.
    """

    folder: str
    below: tuple[str, ...]
    names: frozenset[str] | None
    prefix: str
    real: str
    configured: str
    hole: tuple[str, ...] = ()
    covered: bool = False
    in_each: bool = False
    areas: tuple[Area, ...] = ()
    skip: int = 0
    lead: str = ""

    @property
    def path(self) -> str:
        """Absolute path of the folder that holds the documents."""
        return join(self.folder, *self.below)

    def holds(self, parts: Sequence[str]) -> bool:
        """Return True if a path relative to this root is, by name, a document of it."""
        return self.is_note(parts) and self.admits(join(self.prefix, *parts))

    def is_note(self, parts: Sequence[str]) -> bool:
        """Return True if a path relative to this root is a note's, left out or not."""
        if self.names is not None:
            return len(parts) == 1 + self.in_each and parts[-1] in self.names and all(map(is_folder_name, parts[:-1]))
        return bool(parts) and is_note_name(parts[-1]) and self._reaches(parts[:-1])

    def admits(self, path: str) -> bool:
        """Return True if no globs leave out the document whose key has this path."""
        return not any(area.leaves_out(path, self.skip) for area in self.areas)

    def closes(self, folder: str) -> bool:
        """Return True if globs leave out everything in a folder, named as in keys."""
        return any(area.leaves_out(folder, self.skip, is_folder=True) for area in self.areas)

    def descends(self, parts: Sequence[str]) -> bool:
        """Return True if a walk enters a folder relative to this root."""
        return self._reaches(parts) and not self.closes(join(self.prefix, *parts))

    def _reaches(self, parts: Sequence[str]) -> bool:
        if self.names is not None and (not self.in_each or len(parts) > 1):
            return False
        if self.hole and tuple(parts[: len(self.hole)]) == self.hole:
            return False
        return all(map(is_folder_name, parts))

    @property
    def has_folders(self) -> bool:
        """Return True if documents lie in folders inside."""
        return self.names is None or self.in_each

    def rest(self, path: str) -> tuple[str, ...] | None:
        """Return an absolute path's components below this root, however its folder is spelled; None if outside."""
        parts = parts_below(path, self.path)
        return parts_below(path, self.real) if parts is None else parts


def is_folder_name(name: str) -> bool:
    """Return True if a walk enters a folder of that name."""
    return not name.startswith(".") and name not in IGNORED_DIRECTORIES and is_utf8(name)


def is_note_name(name: str) -> bool:
    """Return True if a file of that name is a note: *.md, not hidden, not an editor's or office program's temporary."""
    return name[-3:].lower() == _SUFFIX and not name.startswith((".", "~$")) and is_utf8(name)


def note_date(path: str) -> date | None:
    """Return the first date of the calendar in a file's name; None when it has none. Longer numbers are no dates."""
    for match in _DATE.finditer(path, path.rfind("/") + 1):
        year, month, day = match.group(1, 3, 4) if match[1] else match.group(5, 6, 7)
        try:
            return date(int(year), int(month), int(day))
        except ValueError:
            continue
    return None


def is_personal(path: str) -> bool:
    """Return True for what is known of one of several people, however its path is spelled."""
    parts = path.casefold().split("/")
    return len(parts) > 2 and (parts[-3], parts[-1]) == (USERS_FOLDER, LONG_TERM_NAMES[2].casefold())


def is_utf8(name: str) -> bool:
    """Return True if a name, as the system gives it, can be written down."""
    if name.isascii():
        return True
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def parts_below(path: str, top: str) -> tuple[str, ...] | None:
    """Return the components of `path` below `top`, () for `top` itself, None if outside. Both normalised."""
    if path == top:
        return ()
    start = top if top.endswith("/") else top + "/"
    return tuple(path[len(start) :].split("/")) if path.startswith(start) else None


def join(prefix: str, *parts: str) -> str:
    """Put a key's path together; the prefix may be empty (the workspace) or absolute."""
    rest = "/".join(parts)
    if not prefix or not rest:
        return prefix or rest
    return prefix + rest if prefix.endswith("/") else f"{prefix}/{rest}"


def roots_of(workspace: str, extra_paths: Mapping[str, Globs | None], *, globs: Globs | None = None) -> list[Root]:
    """Return the roots as the disk is now. A file has the same name whichever of them reaches it.

    `globs` hold for all documents, those of an extra path for what lies below it, whichever root reaches that.

    An extra path that is not there counts as a file if it ends in ".md", else as a folder. A file of
    another kind is a root without names.
    """
    real = os.path.realpath(workspace)
    long_term = Root(workspace, (), frozenset(LONG_TERM_NAMES), "", real, workspace)
    memory = Root(workspace, ("memory",), None, "memory", join(real, "memory"), workspace)
    people = Root(
        workspace,
        (USERS_FOLDER,),
        frozenset(LONG_TERM_NAMES[2:]),
        USERS_FOLDER,
        join(real, USERS_FOLDER),
        workspace,
        in_each=True,
    )
    extras: list[Root] = []
    for configured in extra_paths:
        extra = _extra_root(workspace, real, configured)
        inside = parts_below(real, extra.real)
        if inside and extra.descends(inside):
            # The workspace lies in it: what is in the workspace is named relative to the workspace.
            lead = "/".join(inside) + "/"
            extras += [replace(extra, hole=inside), Root(workspace, (), None, "", real, configured, lead=lead)]
        else:
            extras.append(extra)
    # Folders before what they hold, so that the outermost root names a file.
    extras.sort(key=lambda root: (root.names is not None, root.real))
    named: list[Root] = []
    for extra in extras:
        named.append(_named(extra, [long_term, memory, *named]))
    reached = any(not root.covered and root.rest(memory.real) and root.descends(["memory"]) for root in named)
    roots = [long_term, replace(memory, covered=reached), people, *named]
    areas = [Area(globs)] if globs is not None else []
    areas += [
        Area(own, root.prefix, root.lead)
        for root in named
        if root.names is None and (own := extra_paths[root.configured]) is not None
    ]
    return [replace(root, areas=tuple(areas)) for root in roots] if areas else roots


def _extra_root(workspace: str, workspace_real: str, configured: str) -> Root:
    path = os.path.normpath(join(workspace, configured) if not configured.startswith("/") else configured)
    if "\0" in path or not is_utf8(path):
        return Root(workspace, (), frozenset(), "", workspace_real, configured)
    is_markdown = path[-3:].lower() == _SUFFIX
    folder, names = path, None
    # os.path answers where Path, for a path that is too long or locked away, raises.
    if not os.path.isdir(path) and (is_markdown or os.path.exists(path)):  # noqa: PTH110, PTH112 - see above
        folder, name = os.path.split(path)
        names = frozenset((name,) if is_markdown else ())
    real = os.path.realpath(folder)
    inside = parts_below(folder, workspace)
    if inside is None:
        inside = parts_below(real, workspace_real)
    prefix = folder if inside is None else "/".join(inside)
    return Root(folder, (), names, prefix, real, configured, skip=len(prefix) if prefix.startswith("/") else 0)


def _named(extra: Root, roots: Sequence[Root]) -> Root:
    """Give an extra root the names of a root that reaches all of it already."""
    for root in roots:
        parts = parts_below(extra.real, root.real)
        if parts is None:
            continue
        if root.descends(parts) or (not parts and extra.names and root.names and extra.names <= root.names):
            return replace(extra, prefix=join(root.prefix, *parts), covered=True, skip=root.skip)
    return extra
