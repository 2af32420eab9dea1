"""Roots of an agent's documents, and the names of documents.

Notes lie in the workspace and in extra paths, transcripts in session folders and in imported ones:

x.jsonl                     a session; x.jsonl.zst is the same document, compressed
x.jsonl.reset.<time>        what a session was before it began anew, a document of its own (also .zst)
x.jsonl.deleted.<time>      a session that its agent has deleted, likewise
x.jsonl.bak, x.jsonl.bak-<id>, .x.jsonl, x.checkpoint.<id>.jsonl, x.trajectory.jsonl      copies, no documents
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from glob import escape
from pathlib import Path

from memory.documents.imports import ImportedFolder
from schemas.documents import MEMORY_SOURCE, SESSIONS_SOURCE, DocumentKey, FileStat
from schemas.globs import Globs

#: Folders that hold no documents, only a great many files. Hidden folders never count, either.
_IGNORED_FOLDERS = frozenset(
    ("node_modules", "venv", "__pycache__", "__MACOSX", "$RECYCLE.BIN", "System Volume Information")
)

#: The workspace's long-term memory: both spellings of one name, of which the first names what is one file, and what
#: is known of the user.
LONG_TERM_NAMES = ("MEMORY.md", "memory.md", "USER.md")

#: The workspace's folder of people: `users/<id>/USER.md` is what is known of one of them.
USERS_FOLDER = "users"

#: What a compressed transcript's name ends with; it is no part of the document's name.
COMPRESSED = ".zst"

_SUFFIX = ".md"

#: 2026-03-01, 2026_03_01 (Logseq's journals) and 20260301, the last of this century and the one before.
_DATE = re.compile(
    r"(?<![0-9])(?:([0-9]{4})([-_])([0-9]{2})\2([0-9]{2})|((?:19|20)[0-9]{2})([0-9]{2})([0-9]{2}))(?![0-9])"
)

_COPY = re.compile(r"\.checkpoint\.|\.trajectory\.jsonl")

#: Codex's time and OpenClaw's topic, before and behind a session's id in the name of its transcript. The transcripts of
#: sub-agents of Claude Code lie in a folder with the session's id.
_TIME, _TOPIC = re.compile(r"^rollout-\d{4}-\d\d-\d\d(?:T\d\d-\d\d-\d\d)?-"), "-topic-"
_SUBAGENTS = "/subagents/"

_NAME = re.compile(r"(?P<session>[^.].*\.jsonl)(?P<archived>\.(?:reset|deleted)\.[0-9][0-9TZtz:.+_-]*)?", re.DOTALL)


def is_folder_name(name: str) -> bool:
    """Return True if a walk enters a folder of that name."""
    return bool(name) and not name.startswith(".") and name not in _IGNORED_FOLDERS and is_utf8(name)


def is_note_name(name: str) -> bool:
    """Return True if a file of that name is a note: *.md, not hidden, not an editor's or office program's temporary."""
    return name[-3:].lower() == _SUFFIX and not name.startswith((".", "~$")) and is_utf8(name)


def is_transcript_name(name: str) -> bool:
    """Return True if a file of that name is a transcript."""
    if ".jsonl" not in name or _COPY.search(name) or not is_utf8(name):
        return False
    return _NAME.fullmatch(document_name(name)) is not None


def document_name(name: str) -> str:
    """Return the name of the transcript that a file holds, also for a whole path."""
    return name.removesuffix(COMPRESSED)


def archived_path(path: str) -> str | None:
    """Return the path of the session that an archive was made of; None if `path` is not an archive's."""
    folder, slash, name = path.rpartition("/")
    match = _NAME.fullmatch(name)
    return folder + slash + match["session"] if match and match["archived"] else None


def session_id(path: str) -> str:
    """Return the id of the session that a transcript, an archive of it, or a sub-agent's transcript is of, by name."""
    name = path.partition(_SUBAGENTS)[0].rpartition("/")[2].partition(".jsonl")[0]
    return _TIME.sub("", name).partition(_TOPIC)[0]


def archives_of(path: str) -> list[str]:
    """Return the archives of a transcript's session from before it began anew, the earliest first."""
    files = map(str, Path(path).parent.glob(f"{escape(Path(path).name)}.reset.*"))
    return sorted(file for file in files if archived_path(document_name(file)) == path)


def archive_time(path: str) -> float:
    """Return the Unix time in an archive's name, such as 2026-03-05T10-00-00.000Z; 0 when it has none."""
    day, _, clock = path.rpartition(".reset.")[2].removesuffix(COMPRESSED).partition("T")
    try:
        return datetime.fromisoformat(f"{day}T{clock.replace('-', ':')}").timestamp()
    except ValueError:
        return 0.0


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
    """Return True for a file about one of several people, in any spelling of its path."""
    parts = path.casefold().split("/")
    return len(parts) > 2 and (parts[-3], parts[-1]) == (USERS_FOLDER, LONG_TERM_NAMES[2].casefold())


def may_be_document(name: str) -> bool:
    """Return True if a file of that name can be a note or a transcript, wherever it lies."""
    return name[-3:].lower() == ".md" or is_transcript_name(name)


def priority(key: DocumentKey, *, today: date, stat: FileStat | None = None) -> tuple[int, int, str]:
    """Return the sort key: long-term memory, today, yesterday, dated notes newest first, the rest by path; transcripts.

    Of transcripts the one written last comes first, by its `stat`; those without one (gone, or not looked at) come
    last.
    """
    if key.is_transcript:
        return 5, -stat.mtime_ns if stat is not None else 0, key.path
    if key.path in LONG_TERM_NAMES or is_personal(key.path):
        return 0, 0, key.path
    noted = note_date(key.path)
    if noted is None:
        return 4, 0, key.path
    age = (today - noted).days
    return (1 + age, 0, key.path) if age in (0, 1) else (3, -noted.toordinal(), key.path)


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


def existing_folder(path: str) -> str:
    """Return the folder itself, or the nearest one above it that is there."""
    folders = map(str, (Path(path), *Path(path).parents))
    return next((folder for folder in folders if os.path.isdir(folder)), os.sep)  # noqa: PTH112 - Path may raise


@dataclass(frozen=True, slots=True)
class Area:
    """Globs and the documents they hold for: those below `prefix`, by the rest of their paths, put after `lead`.

    Without a `prefix` they hold for all documents, by their whole paths.
    """

    globs: Globs
    prefix: str | None = None
    lead: str = ""

    def excludes(self, path: str, skip: int, *, is_folder: bool) -> bool:
        """Return True if the globs leave out a document or, with all that is in it, a folder."""
        if self.prefix is not None:
            start = join(self.prefix, "*")[:-1]
            if not path.startswith(start) or (not start and path.startswith("/")):
                return False
            path, skip = self.lead + path[len(start) :], 0
        return self.globs.closes(path, skip=skip) if is_folder else not self.globs.admits(path, skip=skip)


@dataclass(frozen=True, slots=True)
class Root:
    """Place of documents of one `source`: `folder` (may be reached through links), `below` it (never through links).

    `prefix` goes before their paths in keys. `real` is the same place without links in `folder`. `configured` is the
    path in the settings. `covered`: another root reaches the same files, and names them alike.

    All files with the name of a document count, however deep. With `names`, only those of these names count, below
    `depth` folders. `only`: the documents' paths below an `imported` folder of which a user named the files. `hole`: a
    folder, relative to this one, that is left to another root. `areas` leave documents out; `skip` characters of a
    prefix are no names to them. `lead` is the way from `configured` to this root.
    """

    source: str
    folder: str
    real: str
    prefix: str
    configured: str
    below: tuple[str, ...] = ()
    names: frozenset[str] | None = None
    depth: int = 0
    only: frozenset[str] | None = None
    imported: ImportedFolder | None = None
    hole: tuple[str, ...] = ()
    covered: bool = False
    areas: tuple[Area, ...] = ()
    skip: int = 0
    lead: str = ""

    @property
    def path(self) -> str:
        """Absolute path of the folder that holds the documents."""
        return join(self.folder, *self.below)

    @property
    def has_folders(self) -> bool:
        """Return True if documents lie in folders inside."""
        return self.names is None or self.depth > 0

    @property
    def is_name(self) -> Callable[[str], bool]:
        """Return the check of a file's name."""
        if self.names is not None:
            return self.names.__contains__
        return is_note_name if self.source == MEMORY_SOURCE else is_transcript_name

    def holds(self, parts: Sequence[str]) -> bool:
        """Return True if a path relative to this root is, by name, a document's, left out or not."""
        if not parts or not self.is_name(parts[-1]) or not self.reaches(parts[:-1]):
            return False
        if self.names is not None and len(parts) != 1 + self.depth:
            return False
        return self.only is None or "/".join(parts) in self.only

    def reaches(self, folders: Sequence[str]) -> bool:
        """Return True if a walk enters a folder relative to this root."""
        if self.names is not None and len(folders) > self.depth:
            return False
        if self.hole and tuple(folders[: len(self.hole)]) == self.hole:
            return False
        return all(map(is_folder_name, folders))

    def excludes(self, path: str, *, is_folder: bool = False) -> bool:
        """Return True if globs leave out the document, or all in the folder, whose path in keys this is."""
        return any(area.excludes(path, self.skip, is_folder=is_folder) for area in self.areas)

    def rest(self, path: str) -> tuple[str, ...] | None:
        """Return an absolute path's components below this root, however its folder is spelled; None if outside."""
        parts = parts_below(path, self.path)
        return parts_below(path, self.real) if parts is None else parts

    def named(self, path: str) -> tuple[str, ...] | None:
        """Return the components below this root of the path of a key; None if outside."""
        return parts_below(path, self.prefix) if self.prefix else tuple(path.split("/"))


def note_roots(workspace: str, extra_paths: Mapping[str, Globs | None], globs: Globs | None) -> list[Root]:
    """Return the roots of notes as the disk is now. A file has the same name whichever of them reaches it.

    `globs` hold for all documents, those of an extra path for the documents below it, whichever root reaches that.

    An extra path that is not there counts as a file if it ends in ".md", else as a folder. A file of another kind is a
    root without names.
    """
    real = os.path.realpath(workspace)
    top = Root(MEMORY_SOURCE, workspace, real, "", workspace)
    memory, people = (
        replace(top, below=(name,), prefix=name, real=join(real, name)) for name in ("memory", USERS_FOLDER)
    )
    extras: list[Root] = []
    for configured in extra_paths:
        extra = _extra_root(workspace, real, configured)
        inside = parts_below(real, extra.real)
        if inside and extra.names is None and extra.reaches(inside):
            # The workspace lies in it: what is in the workspace is named relative to the workspace.
            lead = "/".join(inside) + "/"
            extras += [replace(extra, hole=inside), replace(top, configured=configured, lead=lead)]
        else:
            extras.append(extra)
    long_term = replace(top, names=frozenset(LONG_TERM_NAMES))
    # Folders before what they hold, so that the outermost root names a file.
    extras.sort(key=lambda root: (root.names is not None, root.real))
    named = _named_alike(extras, [long_term, memory])
    reached = any(
        root.names is None and not root.covered and (way := root.rest(memory.real)) and root.reaches(way)
        for root in named
    )
    roots = [
        long_term,
        replace(memory, covered=reached),
        replace(people, names=frozenset(LONG_TERM_NAMES[2:]), depth=1),
        *named,
    ]
    areas = [Area(globs)] if globs is not None else []
    areas += [
        Area(own, root.prefix, root.lead)
        for root in named
        if root.names is None and (own := extra_paths[root.configured]) is not None
    ]
    return [replace(root, areas=tuple(areas)) for root in roots] if areas else roots


def session_roots(workspace: str, folders: Sequence[str], globs: Globs | None) -> list[Root]:
    """Return the configured folders of transcripts, in their order, as the disk is now."""
    areas = (Area(globs),) if globs is not None else ()
    roots = []
    for configured in dict.fromkeys(folders):
        if configured and "\0" not in configured and is_utf8(configured):
            folder = _absolute(workspace, configured)
            real = os.path.realpath(folder)
            roots.append(Root(SESSIONS_SOURCE, folder, real, SESSIONS_SOURCE, configured, areas=areas))
    named = _named_alike(sorted(roots, key=lambda root: root.real), [])
    order = [root.configured for root in roots]
    return sorted(named, key=lambda root: order.index(root.configured))


def import_roots(imports: Sequence[ImportedFolder], globs: Globs | None) -> list[Root]:
    """Return the imported folders, the latest first. Keys of their transcripts have absolute paths, without links."""
    areas = (Area(globs),) if globs is not None else ()
    roots = []
    for imported in reversed(imports):
        real = os.path.realpath(imported.folder)
        only = None if imported.files is None else frozenset(map(document_name, imported.files))
        root = Root(SESSIONS_SOURCE, os.path.normpath(imported.folder), real, real, imported.folder)
        roots.append(replace(root, only=only, imported=imported, areas=areas, skip=len(real)))
    return roots


def _absolute(workspace: str, configured: str) -> str:
    return os.path.normpath(configured if configured.startswith("/") else join(workspace, configured))


def _extra_root(workspace: str, workspace_real: str, configured: str) -> Root:
    path = _absolute(workspace, configured)
    if "\0" in path or not is_utf8(path):
        return Root(MEMORY_SOURCE, workspace, workspace_real, "", configured, names=frozenset())
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
    skip = len(prefix) if prefix.startswith("/") else 0
    return Root(MEMORY_SOURCE, folder, real, prefix, configured, names=names, skip=skip)


def _named_alike(roots: Iterable[Root], others: Sequence[Root]) -> list[Root]:
    """Give each root the names of an earlier root that reaches all of it already."""
    named: list[Root] = []
    for root in roots:
        for other in (*others, *named):
            parts = parts_below(root.real, other.real)
            if parts is None:
                continue
            same_file = not parts and root.names and other.names and root.names <= other.names
            if same_file or (other.names is None and other.reaches(parts)):
                named.append(replace(root, prefix=join(other.prefix, *parts), covered=True, skip=other.skip))
                break
        else:
            named.append(root)
    return named
