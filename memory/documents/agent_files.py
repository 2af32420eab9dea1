"""An agent's documents on disk: which there are, where they lie, and what they hold.

Nothing is cached: every call looks at the disk as it is now.
"""

from __future__ import annotations

import codecs
import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Self

from memory.documents.imports import ImportedFolder, imports_path
from memory.documents.known_files import KnownFiles
from memory.documents.open_transcripts import OpenTranscript
from memory.documents.roots import (
    IGNORED_DIRECTORIES,
    LONG_TERM_NAMES,
    Root,
    is_personal,
    is_utf8,
    join,
    note_date,
    parts_below,
    roots_of,
)
from memory.documents.safe_open import (
    DocumentGone,
    DocumentRefused,
    DocumentUnreadable,
    opened_below,
    settled_stat,
    stat_below,
)
from memory.documents.session_files import SessionFiles
from memory.documents.session_roots import SESSIONS_SOURCE, is_transcript_name
from memory.documents.walk import EXCLUDED, MEMORY_SOURCE, Scan, file_stat, scan_roots
from memory.store.reader import StoreReader
from schemas.documents import DocumentKey, FileStat
from schemas.errors import Transient
from schemas.globs import compiled
from schemas.settings import AgentSettings, ExtraPath, Settings

__all__ = [
    "IGNORED_DIRECTORIES",
    "MAX_DOCUMENT_BYTES",
    "AgentFiles",
    "DocumentGone",
    "DocumentRefused",
    "DocumentUnreadable",
    "OpenTranscript",
    "Scan",
    "SourceText",
    "WatchRoot",
    "may_be_document",
    "priority",
]

#: Larger files are refused: no note is, and a worker's memory is finite.
MAX_DOCUMENT_BYTES = 64 * 1024 * 1024

#: Times a file that changes while it is read is read again.
_MAX_READS = 3

_MAX_PATH_CHARS = 4096

#: One answer for every path from outside that is not a document, so that nobody learns which check it failed.
_NOT_A_DOCUMENT = "this path is not a document of the agent's memory"


@dataclass(frozen=True, slots=True)
class WatchRoot:
    """What a watcher must look at: all below `path` if `recursive` (ignored folders aside), else what is right
    inside it. For an extra path that is a file, `path` is the file."""

    path: Path
    recursive: bool


@dataclass(frozen=True, slots=True)
class SourceText:
    """One document as it was read.

    `text`: decoded (`memory.documents.agent_files`), line ends as in the file. `stat`: of the descriptor that was read.
    `content_hash`: SHA-256 of the bytes, in hex. `notes`: what had to be replaced.
    """

    text: str
    stat: FileStat
    content_hash: str
    notes: tuple[str, ...]


class AgentFiles:
    """One agent's notes (long-term memory, memory/, its extra paths) and transcripts. Safe to use from several threads.

    `imports` names the file that lists imported folders of transcripts (`memory.documents.imports`).
    """

    def __init__(
        self, agent: AgentSettings, *, imports: Path | None = None, drafted: Sequence[ImportedFolder] = ()
    ) -> None:
        self._workspace = os.path.normpath(agent.workspace)
        self._globs = compiled(agent.include, agent.exclude)
        extras = [ExtraPath(path=extra) if isinstance(extra, str) else extra for extra in agent.extra_paths]
        self._extra_paths = {extra.path: compiled(extra.include, extra.exclude) for extra in extras}
        self._sessions = SessionFiles(agent, imports=imports, drafted=drafted, globs=self._globs)

    @classmethod
    def of(cls, settings: Settings, agent: AgentSettings, *, drafted: Sequence[ImportedFolder] = ()) -> Self:
        """The files of an agent of this home, imported ones included, and those that are about to be (`drafted`)."""
        return cls(agent, imports=imports_path(settings.home, agent.id), drafted=drafted)

    def scan(self, *, imported: bool = False, but: KnownFiles | None = None) -> Scan:
        """All documents and their stat, those of `imported` folders only if asked for. Never raises for what the
        disk says: see `Scan.problems`.

        `but`: what an index knows; documents that are so are only counted. It is shown all that there are.
        """
        notes, transcripts = scan_roots(self._roots(), but=but), self._sessions.scan(imported=imported, but=but)
        return Scan(
            documents=notes.documents | transcripts.documents,
            unchanged=but.unchanged if but is not None else 0,
            archived=transcripts.archived,
            complete=notes.complete and transcripts.complete,
            problems=notes.problems + transcripts.problems,
            unlisted=notes.unlisted + transcripts.unlisted,
            left_out=Counter(notes.left_out) + Counter(transcripts.left_out),
        )

    def personal(self) -> dict[DocumentKey, FileStat]:
        """Return the files on what is known of each of several people, and their stat now."""
        return scan_roots([root for root in roots_of(self._workspace, {}) if root.in_each]).documents

    def key_of(self, path: str | os.PathLike[str]) -> DocumentKey | None:
        """The document that an absolute path names; None when, by name, it is none. It need not exist (any more).

        What globs or the kind of its session leave out is none.
        """
        text = _normal(path)
        return None if text is None else self._note_at(text) or self._sessions.key_of(text)

    def reason_of(self, path: str | os.PathLike[str]) -> str | None:
        """Return why a file that would be a document is left out (as in `Scan.left_out`); None if it is not one."""
        text = _normal(path)
        if text is None or self._note_at(text) is not None:
            return None
        if any((parts := root.rest(text)) is not None and root.is_note(parts) for root in self._roots()):
            return EXCLUDED
        return self._sessions.reason_of(text)

    def left_out_transcripts(self, keys: Iterable[DocumentKey]) -> set[DocumentKey]:
        """Return those transcripts that globs or the kinds of their sessions leave out."""
        return self._sessions.left_out(keys)

    def _note_at(self, text: str) -> DocumentKey | None:
        best: Root | None = None
        best_parts: tuple[str, ...] = ()
        for root in self._roots():
            parts = root.rest(text)
            # The nearest root: a folder further up may hold the path only through a link.
            if parts is not None and root.holds(parts) and (best is None or len(parts) < len(best_parts)):
                best, best_parts = root, parts
        if best is None:
            return None
        key = DocumentKey(MEMORY_SOURCE, join(best.prefix, *best_parts))
        return DocumentKey(MEMORY_SOURCE, LONG_TERM_NAMES[0]) if self._is_second_name(key) else key

    def path_of(self, key: DocumentKey) -> Path:
        """Absolute path of a document's file, or of where it would be."""
        if key.source == SESSIONS_SOURCE:
            return self._sessions.path_of(key)
        located = self._located(key)
        if located is None:
            return Path(self._workspace, key.path)
        root, parts = located
        return Path(root.path, *parts)

    def stat(self, key: DocumentKey) -> FileStat | None:
        """What `stat` says of the document now; None when it is gone, or not a regular file of this agent.

        Raises:
            DocumentUnreadable, Transient: the system does not say.
        """
        if key.source == SESSIONS_SOURCE:
            return self._sessions.stat(key)
        located = self._located(key)
        if located is None or self._is_second_name(key):
            return None
        root, parts = located
        result = stat_below(root.folder, (*root.below, *parts), name=key.path)
        return None if result is None else file_stat(result)

    def root_is_there(self, key: DocumentKey) -> bool:
        """Whether the configured folder that holds the document exists.

        One that is gone (a disk that is not mounted, a folder that is being moved) says nothing of its documents.
        """
        if key.source == SESSIONS_SOURCE:
            return self._sessions.root_is_there(key)
        located = self._located(key)
        return located is None or os.path.isdir(located[0].folder)  # noqa: PTH112 - Path may raise

    def configured_folders(self) -> list[tuple[str, bool]]:
        """The folders that notes are looked for in, as they were configured, and whether each is the workspace."""
        folders = {self._workspace: True}
        for root in self._roots():
            if root.names is None and not root.below:
                folders.setdefault(root.folder, False)
        return list(folders.items())

    def folder_of(self, key: DocumentKey) -> str | None:
        """The one of `configured_folders` that a note is looked for in; None for what is no note of them."""
        located = self._located(key)
        return located[0].folder if located is not None else None

    def forgets(self, key: DocumentKey, reader: StoreReader | None = None) -> bool:
        """Return True if a document that is absent is to be forgotten.

        What the settings leave out is. A note is when its configured folder is there. A transcript keeps its memory
        unless the settings say so (`sync.sessions.forget_deleted`), or the index has an archive of it, whole and with
        all that it has of the transcript. One that was imported always keeps it. Without a `reader` of the index any
        archive will do: the answer may be a wrong True.
        """
        return self._sessions.forgets(key, reader) if key.source == SESSIONS_SOURCE else self.root_is_there(key)

    def forgotten_transcripts(
        self, absent: Iterable[DocumentKey], scan: Scan, reader: StoreReader
    ) -> list[DocumentKey]:
        """Return those of many transcripts absent from a scan that are to be forgotten, as `forgets` says of one."""
        return self._sessions.forgotten(absent, scan, reader)

    def earlier_names(self, key: DocumentKey) -> list[DocumentKey]:
        """Return the keys that a transcript may have had: an archive its session's, one of a configured folder that of
        an import. The likeliest comes first."""
        return self._sessions.earlier_names(key) if key.source == SESSIONS_SOURCE else []

    def named_format(self, key: DocumentKey) -> str | None:
        """How a person said that a transcript is to be read; None when that is to be found out."""
        return self._sessions.named_format(key) if key.source == SESSIONS_SOURCE else None

    def opened_transcript(self, key: DocumentKey, *, settled: bool = True) -> AbstractContextManager[OpenTranscript]:
        """Open a transcript for reading. May wait some milliseconds for a file that was written just now.

        Without `settled` it does not wait, and the stat is not to be remembered: a later write may leave it the same.

        Raises:
            DocumentGone, DocumentRefused, DocumentUnreadable: see there; also what reading raises inside.
            Transient: it is being replaced, or the system is out of descriptors.
        """
        return self._sessions.opened(key, settled=settled)

    def read(self, key: DocumentKey) -> SourceText:
        """Read a note as it is now. May wait some milliseconds for a file that was written just now.

        Raises:
            DocumentGone, DocumentRefused, DocumentUnreadable: see there.
            Transient: it keeps changing, or the system is out of descriptors.
        """
        if self._sessions.holds(key):
            raise DocumentRefused(f"{key.path} is a transcript, which is read line by line and never as a whole")
        located = self._located(key)
        if located is None or self._is_second_name(key):
            raise DocumentGone(f"{key.path} is no document of this agent (any more)")
        root, parts = located
        for _ in range(_MAX_READS):
            with opened_below(root.folder, (*root.below, *parts), name=key.path) as descriptor:
                data, stat = _read_steadily(descriptor, key.path)
            if stat is not None:
                decoded = decode(data)
                return SourceText(decoded.text, stat, hashlib.sha256(data).hexdigest(), decoded.notes)
        raise Transient(f"{key.path} changes while it is read; it is read again later", retry_after=1.0)

    def resolve(self, path_text: str) -> DocumentKey:
        """The document that a path from outside names: relative to the workspace, absolute, or as search results
        name transcripts ("sessions/...").

        Only the name is looked at; whether the file exists and may be read, `read` finds out.

        Raises:
            DocumentRefused: it is not, by name, a document of this agent. The message is always the same.
        """
        fits = 0 < len(path_text) <= _MAX_PATH_CHARS and not path_text.endswith("/") and is_utf8(path_text)
        # As search results name a transcript comes first: the workspace may hold the very folder of the transcripts.
        key = self._sessions.key_named(path_text) if fits and not path_text.startswith("/") else None
        if key is None and fits:
            key = self.key_of(os.path.join(self._workspace, path_text))  # noqa: PTH118 - text, not yet a path
        if key is None:
            raise DocumentRefused(_NOT_A_DOCUMENT)
        return key

    def watch_roots(self) -> list[WatchRoot]:
        """What to watch so that no change of a document, and no root that comes or goes, is missed."""
        roots: dict[str, bool] = {_existing(self._workspace): False}
        for root in self._roots():
            if root.covered or (not root.has_folders and (not root.names or root.folder == self._workspace)):
                continue
            if root.has_folders and root.closes(root.prefix):
                continue
            if root.below and not _is_plain_folder(root.path):
                continue  # the workspace itself is watched
            if root.has_folders:
                recursive = os.path.isdir(root.path)  # noqa: PTH112 - Path raises for what is locked away
                path = root.path if recursive else _existing(root.path)
                roots[path] = roots.get(path, False) or recursive
            else:
                for name in sorted(root.names or ()):
                    file = join(root.folder, name)
                    roots.setdefault(file if os.path.lexists(file) else _existing(root.folder), False)
        for folder, recursive in self._sessions.watch_roots():
            path = folder if recursive else _existing(folder)
            roots[path] = roots.get(path, False) or recursive
        return [WatchRoot(Path(path), recursive) for path, recursive in roots.items()]

    def owns_directory(self, path: str | os.PathLike[str]) -> bool:
        """Whether a folder is to be watched: a recursive root or, not ignored and not a link, inside one."""
        text = os.path.normpath(os.fspath(path))
        for root in self._roots():
            parts = root.rest(text)
            if parts is not None and root.descends(parts):
                configured = not parts and not root.below
                if configured or not os.path.islink(text):  # noqa: PTH114 - Path may raise
                    return True
        return self._sessions.owns_directory(text)

    def _roots(self) -> list[Root]:
        return roots_of(self._workspace, self._extra_paths, globs=self._globs)

    def _located(self, key: DocumentKey) -> tuple[Root, tuple[str, ...]] | None:
        """The root that reaches a document, and the document's components below it."""
        if key.source != MEMORY_SOURCE or "\0" in key.path:
            return None
        best: tuple[Root, tuple[str, ...]] | None = None
        for root in self._roots():
            if root.covered:
                continue
            parts = tuple(key.path.split("/")) if not root.prefix else parts_below(key.path, root.prefix)
            if parts and root.holds(parts) and (best is None or len(root.prefix) >= len(best[0].prefix)):
                best = root, parts
        return best

    def _is_second_name(self, key: DocumentKey) -> bool:
        """Whether this is memory.md and the same file as MEMORY.md."""
        if key.path != LONG_TERM_NAMES[1]:
            return False
        try:
            first, second = (os.lstat(join(self._workspace, name)) for name in LONG_TERM_NAMES[:2])
        except OSError:
            return False
        return os.path.samestat(first, second)


def may_be_document(name: str) -> bool:
    """Whether a file of that name can be a note or a transcript, wherever it lies."""
    return name[-3:].lower() == ".md" or is_transcript_name(name)


def priority(key: DocumentKey, *, today: date, stat: FileStat | None = None) -> tuple[int, int, str]:
    """Sort key: long-term memory, today, yesterday, dated notes newest first, the rest by path; then transcripts.

    Of transcripts the one written last comes first, as `stat` says; those without one (gone, or not looked at) come
    last.
    """
    if key.source == SESSIONS_SOURCE:
        return 5, -stat.mtime_ns if stat is not None else 0, key.path
    if key.path in LONG_TERM_NAMES or is_personal(key.path):
        return 0, 0, key.path
    noted = note_date(key.path)
    if noted is None:
        return 4, 0, key.path
    age = (today - noted).days
    return (1 + age, 0, key.path) if age in (0, 1) else (3, -noted.toordinal(), key.path)


def _read_steadily(descriptor: int, name: str) -> tuple[bytes, FileStat | None]:
    """Bytes of an open file and its stat; no stat when it changed meanwhile."""
    before = settled_stat(descriptor)
    if before.st_size > MAX_DOCUMENT_BYTES:
        raise DocumentRefused(
            f"{name} has {before.st_size / 1e6:.0f} MB, more than the {MAX_DOCUMENT_BYTES / 1e6:.0f} MB of a note"
        )
    parts: list[bytes] = []
    left = before.st_size + 1  # one more than there should be, to see that it is the end
    while left > 0 and (part := os.read(descriptor, left)):
        parts.append(part)
        left -= len(part)
    data = b"".join(parts)
    stat = file_stat(before)
    # Its change time is that of before: an edit meanwhile that sets the other one back is met at the next look, and
    # where change times move by themselves it can be read all the same.
    steady = stat.without_ctime().agrees_with(file_stat(os.fstat(descriptor))) and len(data) == stat.size
    return data, stat if steady else None


def _normal(path: str | os.PathLike[str]) -> str | None:
    """Return an absolute path in its normal form; None for what names no document."""
    text = os.fspath(path)
    return os.path.normpath(text) if text.startswith("/") and "\0" not in text and ".." not in text.split("/") else None


def _existing(path: str) -> str:
    """The folder itself, or the nearest one above it that is there."""
    folders = map(str, (Path(path), *Path(path).parents))
    return next((folder for folder in folders if os.path.isdir(folder)), os.sep)  # noqa: PTH112 - Path may raise


def _is_plain_folder(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)  # noqa: PTH112, PTH114 - Path may raise


_REPLACEMENT = "\ufffd"

#: Byte order marks of UTF-16, which some editors still write.
_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@dataclass(frozen=True, slots=True)
class DecodedText:
    """`text` holds no byte order mark at its start and no NUL. `notes`: one phrase for each kind of replacement."""

    text: str
    notes: tuple[str, ...] = ()


def decode(data: bytes) -> DecodedText:
    """Decode a file's bytes: UTF-16 if they start with its byte order mark, else UTF-8. Never fails.

    Invalid sequences and NUL characters become U+FFFD. Line ends stay as they are.
    """
    notes: list[str] = []
    encoding, name = ("utf-16", "UTF-16") if data.startswith(_UTF16_MARKS) else ("utf-8-sig", "UTF-8")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        text = data.decode(encoding, errors="replace")
        notes.append(f"invalid {name} was replaced")
    if "\0" in text:
        text = text.replace("\0", _REPLACEMENT)
        notes.append("NUL characters were replaced")
    return DecodedText(text, tuple(notes))
