"""Roots of an agent's documents, and the names of documents.

Notes lie in the workspace and in extra paths, transcripts in session folders and in imported ones:

x.jsonl                     a session; x.jsonl.zst is the same document, compressed
x.jsonl.reset.<time>        what a session was before it began anew, a document of its own (also .zst)
x.jsonl.deleted.<time>      a session that its agent has deleted, likewise; also with .<id of 32 digits> behind the time
x.jsonl.bak, x.jsonl.bak-<id>, .x.jsonl, x.checkpoint.<id>.jsonl, x.trajectory.jsonl      copies, no documents
<64 digits>.jsonl.zst       events that were moved out of a database (`memory.documents.session_database`)
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from functools import lru_cache
from glob import escape
from pathlib import Path
from typing import TypeAlias

from memory.chunking.dates import note_date
from schemas.documents import DocumentKey, FileStat
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

#: Databases of the sessions of an agent of OpenClaw, and of OpenCode, and the files that change with them.
OPENCLAW_DATABASE, OPENCODE_DATABASE = "openclaw-agent.sqlite", "opencode.db"
DATABASE_FILES = tuple(f"{name}{ending}" for name in (OPENCLAW_DATABASE, OPENCODE_DATABASE) for ending in ("", "-wal"))

#: What a compressed transcript's name ends with; it is no part of the document's name.
COMPRESSED = ".zst"

_SUFFIX = ".md"

_COPY = re.compile(r"\.checkpoint\.|\.trajectory\.jsonl|^[0-9a-f]{64}\.jsonl\.zst$")

#: Id of an archive's state of the session, behind its time.
_STATE = re.compile(r"\.[0-9a-f]{32}$")

#: Codex's time and OpenClaw's topic, before and behind a session's id in the name of its transcript. The transcripts of
#: sub-agents of Claude Code lie in a folder with the session's id.
_TIME, _TOPIC = re.compile(r"^rollout-\d{4}-\d\d-\d\d(?:T\d\d-\d\d-\d\d)?-"), "-topic-"
_SUBAGENTS = "/subagents/"

_JSON_SESSION = re.compile(r"session-\d{4}-\d\d-\d\d[T-].*\.json", re.DOTALL)

#: Name of every transcript of Copilot, whose folder has the session's id.
_ONE_NAME = "events"

_NAME = re.compile(
    r"(?P<session>[^.].*\.jsonl)(?P<archived>\.(?:reset|deleted)\.[0-9][0-9TZtz:.+_-]*(?:\.[0-9a-f]{32})?)?", re.DOTALL
)


@lru_cache(maxsize=1_024)
def is_folder_name(name: str) -> bool:
    """Return True if a walk enters a folder of that name."""
    return bool(name) and not name.startswith(".") and name not in _IGNORED_FOLDERS and is_utf8(name)


def is_note_name(name: str) -> bool:
    """Return True if a file of that name is a note: *.md, not hidden, not an editor's or office program's temporary."""
    return name[-3:].lower() == _SUFFIX and not name.startswith((".", "~$")) and is_utf8(name)


# The steps of indexing ask for the same one.
@lru_cache(maxsize=1_024)
def is_transcript_name(name: str) -> bool:
    """Return True if a file of that name is a transcript."""
    if ".jsonl" not in name or _COPY.search(name) or not is_utf8(name):
        return False
    return _NAME.fullmatch(document_name(name)) is not None


def is_unread_session(path: str) -> bool:
    """Return True for a session of Gemini CLI before 0.39: one JSON document, unless it was written anew as lines."""
    return _JSON_SESSION.fullmatch(path.rpartition("/")[2]) is not None and not os.path.exists(f"{path}l")  # noqa: PTH110 - a plain string


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
    folder, _, file = path.partition(_SUBAGENTS)[0].rpartition("/")
    name = file.partition(".jsonl")[0]
    if name == _ONE_NAME and folder:
        return folder.rpartition("/")[2]
    return _TIME.sub("", name).partition(_TOPIC)[0]


def archives_of(path: str) -> list[str]:
    """Return the archives of a transcript's session from before it began anew, the earliest first."""
    files = map(str, Path(path).parent.glob(f"{escape(Path(path).name)}.reset.*"))
    return sorted(file for file in files if archived_path(document_name(file)) == path)


def archive_time(path: str) -> float:
    """Return the Unix time in an archive's name, such as 2026-03-05T10-00-00.000Z; 0 when it has none."""
    day, _, clock = _STATE.sub("", path.rpartition(".reset.")[2].removesuffix(COMPRESSED)).partition("T")
    try:
        return datetime.fromisoformat(f"{day}T{clock.replace('-', ':')}").timestamp()
    except ValueError:
        return 0.0


def is_personal(path: str) -> bool:
    """Return True for a file about one of several people, in any spelling of its path."""
    parts = path.casefold().split("/")
    return len(parts) > 2 and (parts[-3], parts[-1]) == (USERS_FOLDER, LONG_TERM_NAMES[2].casefold())


def may_be_document(name: str) -> bool:
    """Return True if a file of that name can be a note or a transcript, wherever it lies, or hold transcripts."""
    return name[-3:].lower() == ".md" or is_transcript_name(name) or name in DATABASE_FILES


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
class FileRule:
    """Rule for the files of a root that are documents: `is_name`, and `depth` folders above them, or any number.

    `only`: the paths that count, if a user named them. `hole`: a folder that is left to another root.
    """

    is_name: Callable[[str], bool]
    depth: int | None = None
    only: frozenset[str] | None = None
    hole: tuple[str, ...] = ()

    @property
    def is_partial(self) -> bool:
        """Return True if `holds` refuses some files that have the name of a document."""
        return self.depth is not None or self.only is not None

    def holds(self, parts: Sequence[str]) -> bool:
        """Return True if a path relative to the root is, by name, a document's, left out or not."""
        if not parts or not self.is_name(parts[-1]) or not self.reaches(parts[:-1]):
            return False
        return self.depth in (None, len(parts) - 1) and (self.only is None or "/".join(parts) in self.only)

    def reaches(self, folders: Sequence[str]) -> bool:
        """Return True if a walk enters a folder relative to the root."""
        if self.depth is not None and len(folders) > self.depth:
            return False
        if self.hole and tuple(folders[: len(self.hole)]) == self.hole:
            return False
        return all(map(is_folder_name, folders))


@dataclass(frozen=True, slots=True)
class Root:
    """Folder of documents: `folder` (may be reached through links), `below` it (never through links).

    `prefix` goes before their paths in keys. `real` is the same place without links in `folder`. `configured` names it
    in messages. `areas` leave documents out. `covering`: another root, which reaches the same files and names them
    alike.
    """

    folder: str
    real: str
    prefix: str
    rule: FileRule
    configured: str
    below: tuple[str, ...] = ()
    areas: tuple[Area, ...] = ()
    covering: Root | None = None

    @property
    def path(self) -> str:
        """Absolute path of the folder that holds the documents."""
        return join(self.folder, *self.below)

    def covers(self, root: Root) -> bool:
        """Return True if this root reaches all documents of another one."""
        parts = parts_below(root.real, self.real)
        if parts is None or self.rule.depth is None:
            return parts is not None and self.rule.reaches(parts)
        names, narrower = self.rule.only, root.rule.only
        return not parts and bool(names and narrower and narrower <= names)

    def excludes(self, path: str, *, is_folder: bool = False) -> bool:
        """Return True if globs leave out the document, or all in the folder, whose path in keys this is."""
        return any(area.excludes(path, self._skip, is_folder=is_folder) for area in self.areas)

    @property
    def _skip(self) -> int:
        """Characters of a prefix that are no names to globs."""
        if self.covering is not None:
            return self.covering._skip
        return len(self.prefix) if self.prefix.startswith("/") else 0

    def rest(self, path: str) -> tuple[str, ...] | None:
        """Return an absolute path's components below this root, however its folder is spelled; None if outside."""
        parts = parts_below(path, self.path)
        return parts_below(path, self.real) if parts is None else parts

    def named(self, path: str) -> tuple[str, ...] | None:
        """Return the components below this root of the path of a key; None if outside."""
        return parts_below(path, self.prefix) if self.prefix else tuple(path.split("/"))


#: A root, and the components of a document or of its file below it.
Place: TypeAlias = tuple[Root, tuple[str, ...]]


def named_alike(roots: Iterable[Root], before: Sequence[Root] = ()) -> list[Root]:
    """Give each root the names of an earlier root, or one `before` them, that reaches all of it already."""
    renamed: list[Root] = []
    for root in roots:
        covering = next((above for above in (*before, *renamed) if above.covers(root)), None)
        if covering is None:
            renamed.append(root)
        else:
            prefix = join(covering.prefix, *(parts_below(root.real, covering.real) or ()))
            renamed.append(replace(root, prefix=prefix, covering=covering))
    return renamed


def nearest(roots: Iterable[Root], path: str) -> Place | None:
    """Return the root that holds an absolute path, and the components below it; None if none holds it.

    A folder further up may hold the path only through a link.
    """
    places = [(root, parts) for root in roots if (parts := root.rest(path)) and root.rule.holds(parts)]
    return min(places, key=lambda place: len(place[1]), default=None)


def absolute(workspace: str, configured: str) -> str:
    """Return the absolute path of a folder as the settings name it."""
    return os.path.normpath(configured if configured.startswith("/") else join(workspace, configured))
