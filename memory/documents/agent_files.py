"""Documents of one agent on disk: notes and transcripts, found, named by keys, and opened safely."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self, TypeAlias

from memory.documents.content import (
    DocumentGone,
    DocumentRefused,
    DocumentUnreadable,
    OpenTranscript,
    SourceText,
    decode,
    opened_below,
    read_steadily,
    settled_stat,
    stat_below,
)
from memory.documents.imports import ImportedFolder, imported_folders, imports_path, with_import
from memory.documents.note_folders import folders_path
from memory.documents.roots import (
    COMPRESSED,
    LONG_TERM_NAMES,
    Root,
    archived_path,
    document_name,
    existing_folder,
    import_roots,
    is_utf8,
    join,
    note_roots,
    session_roots,
)
from memory.documents.scan import (
    EXCLUDED,
    KnownFiles,
    Scan,
    ScanProblems,
    file_stat,
    files_of,
    printable,
)
from memory.documents.session_stores import SessionKinds, transcripts_at
from schemas.conditions import ConditionCode
from schemas.documents import MEMORY_SOURCE, SESSIONS_SOURCE, DocumentKey, FileStat
from schemas.errors import RecalldError, Transient, UserError
from schemas.globs import compiled
from schemas.settings import AgentSettings, ExtraPath, Settings

__all__ = [
    "AgentFiles",
    "DocumentGone",
    "DocumentRefused",
    "DocumentUnreadable",
    "OpenTranscript",
    "Scan",
    "SourceText",
    "WatchRoot",
]

_MAX_PATH_CHARS = 4096

#: Times a note that changes while it is read is read again.
_MAX_READS = 3

#: One answer for every path from outside that is not a document: a client must not learn which check it failed.
_NOT_A_DOCUMENT = "this path is not a document of the agent's memory"

_LONG_TERM, _SECOND_NAME = (DocumentKey(MEMORY_SOURCE, name) for name in LONG_TERM_NAMES[:2])

#: A root, and the components of a document or of its file below it.
Place: TypeAlias = tuple[Root, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class WatchRoot:
    """Place that a watcher looks at.

    If `recursive`, it watches all below `path` but ignored folders, else what is right inside it. For an extra path
    that is a file, `path` is the file.
    """

    path: Path
    recursive: bool


class AgentFiles:
    """Documents of one agent. Safe to use from several threads.

    No document is cached: every call looks at the disk as it is now. Paths are absolute, keys may be of any source.

    `imports` names the file that lists imported folders of transcripts (`memory.documents.imports`); it is read again
    when it changes. `drafted` imports count as if they were in it already. An agent whose sources leave out transcripts
    has none. `folders` names the record of the folders of notes (`memory.documents.note_folders`).
    """

    def __init__(
        self,
        agent: AgentSettings,
        *,
        imports: Path | None = None,
        drafted: Sequence[ImportedFolder] = (),
        folders: Path | None = None,
    ) -> None:
        #: The record of the folders of notes; None without one.
        self.folders = folders
        self._workspace = os.path.normpath(agent.workspace)
        self._globs = compiled(agent.include, agent.exclude)
        extras = [ExtraPath(path=extra) if isinstance(extra, str) else extra for extra in agent.extra_paths]
        self._extra_paths = {extra.path: compiled(extra.include, extra.exclude) for extra in extras}
        has_transcripts = SESSIONS_SOURCE in agent.sources
        self._sessions = agent.sessions if has_transcripts else ()
        self._imports = imports if has_transcripts else None
        self._drafted = drafted if has_transcripts else ()
        self._kinds = frozenset(agent.sync.sessions.kinds)
        #: True if the settings ask to forget transcripts that vanished.
        self.forget_deleted = agent.sync.sessions.forget_deleted
        #: Sessions that the settings let see private transcripts.
        self.private_transcripts = agent.scope.private_transcripts
        self._known_imports: tuple[tuple[int, int, int] | None, list[Root]] | None = None

    @classmethod
    def of(cls, settings: Settings, agent: AgentSettings, *, drafted: Sequence[ImportedFolder] = ()) -> Self:
        """Return the files of an agent of this home, with imported folders and `drafted` ones."""
        imports, folders = imports_path(settings.home, agent.id), folders_path(settings.home, agent.id)
        return cls(agent, imports=imports, drafted=drafted, folders=folders)

    # The documents on the disk

    def scan(
        self,
        *,
        imported: bool = False,
        but: KnownFiles | None = None,
        entering: Callable[[str], object] | None = None,
    ) -> Scan:
        """Return all documents and their stat, those of `imported` folders only if asked for.

        `but`: what an index knows. The scan shows it all documents, and only counts those that it knows as they are.
        `entering` gets each folder before it is listed. What the disk refuses becomes one of `Scan.problems`.
        """
        problems, kinds = ScanProblems(), SessionKinds(self._kinds)
        documents: dict[DocumentKey, FileStat] = {}
        archived: set[str] = set()
        for key, stat in self._found(problems, kinds, imported=imported, entering=entering):
            if but is None or but.differs(key, stat):
                documents[key] = stat
            elif key.is_transcript and (session := archived_path(key.path)) is not None:
                archived.add(session)
        return Scan(
            documents=documents,
            problems=problems.conditions(),
            unlisted=tuple(problems.unlisted),
            unchanged=but.unchanged if but is not None else 0,
            archived=frozenset(archived),
            left_out=problems.left_out,
        )

    def personal(self) -> dict[DocumentKey, FileStat]:
        """Return the files about each of several people, and their stat now, whatever globs say."""
        roots = (root for root in note_roots(self._workspace, {}, None) if root.depth)
        return {key: stat for root in roots for key, stat in self._listed(root, ScanProblems(), SessionKinds(()))}

    def transcripts_at(self, place: str) -> frozenset[str]:
        """Return the paths of the transcripts of conversations at one place, as the stores of their folders tell.

        The place of a transcript whose name another folder has, too, is unknown. An archive is of its session's place.
        """
        roots = [*self._session_roots(), *self._imported_or_none()]
        return frozenset(
            join(root.prefix, name)
            for root in roots
            for name in transcripts_at(root.folder, place)
            if not any(
                other.prefix == root.prefix and other.real != root.real and os.path.lexists(join(other.folder, name))
                for other in roots
            )
        )

    def _found(
        self,
        problems: ScanProblems,
        kinds: SessionKinds,
        *,
        imported: bool,
        entering: Callable[[str], object] | None,
    ) -> Iterator[tuple[DocumentKey, FileStat]]:
        """Yield each document once. Costs a stat for each and a listing for each folder."""
        for root in self._note_roots():
            for key, stat in self._listed(root, problems, kinds, entering):
                # One file with both names of the long-term memory: a hard link, or file names that ignore case.
                if key.path != _SECOND_NAME.path or not self._is_one_long_term_memory():
                    yield key, stat
        configured = self._session_roots()
        followed = [root for root in configured if not root.covered]
        first_of: dict[DocumentKey, Root] = {}
        for root in followed:
            found = dict(self._listed(root, problems, kinds, entering))
            if twice := sorted(first_of.keys() & found.keys()):
                problems.add(
                    ConditionCode.TRANSCRIPTS_NAMED_TWICE,
                    root.folder,
                    first=printable(first_of[twice[0]].folder),
                    transcripts=len(twice),
                    example=twice[0].path.removeprefix(f"{SESSIONS_SOURCE}/"),
                )
            yield from ((key, stat) for key, stat in found.items() if key not in first_of)
            if len(followed) > 1:
                first_of = dict.fromkeys(found, root) | first_of
        try:
            imports = self._imported()
        except UserError as error:
            problems.add(ConditionCode.IMPORTS_UNREADABLE, "", error=str(error))
            return
        below: dict[DocumentKey, FileStat] = {}
        for root in imports if imported else ():
            below.update(self._listed(root, problems, kinds))
        for key, stat in below.items():
            # Below a configured folder it has another name.
            if not any((parts := one.rest(key.path)) and one.holds(parts) for one in configured):
                yield key, stat

    def _listed(
        self,
        root: Root,
        problems: ScanProblems,
        kinds: SessionKinds,
        entering: Callable[[str], object] | None = None,
    ) -> Iterator[tuple[DocumentKey, FileStat]]:
        """Yield the documents of a root. Of a compressed transcript and a plain one, the plain one counts."""
        if root.covered:
            return
        files = files_of(root, problems, partial(self._reason, kinds), entering)
        if root.source == MEMORY_SOURCE:
            for path, result in files:
                yield DocumentKey(MEMORY_SOURCE, path), file_stat(result)
            return
        found: dict[bool, dict[DocumentKey, FileStat]] = {True: {}, False: {}}
        for path, result in files:
            found[path.endswith(COMPRESSED)][DocumentKey(SESSIONS_SOURCE, document_name(path))] = file_stat(result)
        yield from (found[True] | found[False]).items()

    # Names

    def key_of(self, path: str | os.PathLike[str]) -> DocumentKey | None:
        """Return the document that an absolute path names; None if, by name, it is none or is left out.

        It need not exist.
        """
        key, reason = self._named_by(path)
        return key if reason is None else None

    def reason_of(self, path: str | os.PathLike[str]) -> str | None:
        """Return why a file that would be a document is left out (as in `Scan.left_out`); None if it is not one."""
        return self._named_by(path)[1]

    def resolve(self, path_text: str) -> DocumentKey:
        """Return the document that a path from outside names.

        The path is relative to the workspace, absolute, or as search results name transcripts ("sessions/..."). Only
        its name counts: `read` finds out if the file exists and is readable.

        Raises:
            DocumentRefused: it is not, by name, a document of this agent. The message is always the same.
        """
        if 0 < len(path_text) <= _MAX_PATH_CHARS and not path_text.endswith("/") and is_utf8(path_text):
            # A transcript's name comes first: the workspace may hold the very folder of the transcripts.
            key = DocumentKey(SESSIONS_SOURCE, document_name(path_text))
            if not path_text.startswith("/") and self.places(key):
                return key
            found = self.key_of(os.path.join(self._workspace, path_text))  # noqa: PTH118 - text, not yet a path
            if found is not None:
                return found
        raise DocumentRefused(_NOT_A_DOCUMENT)

    def path_of(self, key: DocumentKey) -> Path:
        """Return the absolute path of a document's file, or of where it would be."""
        files = [Path(root.path, *parts) for root, parts in self._files(key)]
        there = (path for path in files if os.path.lexists(path))
        return next(there, files[0] if files else Path(self._workspace, key.path))

    def earlier_names(self, key: DocumentKey) -> list[DocumentKey]:
        """Return the keys that a transcript may have had, the likeliest first.

        An archive may have had its session's, a transcript of a configured folder that of an import.
        """
        names = [key.path]
        for root, parts in self.places(key)[:1] if key.is_transcript else ():
            if root.imported is None:
                names.append(join(root.real, *parts))  # imported before its folder was configured
        sessions = [session for name in names if (session := archived_path(name)) is not None]
        return [DocumentKey(SESSIONS_SOURCE, name) for name in (*sessions, *names[1:])]

    def named_format(self, key: DocumentKey) -> str | None:
        """Return the format that a user named for a transcript; None if it is to be found out.

        The latest import of a file names it, though a configured folder gives the file its name.
        """
        return next((self._format_at(*place) for place in self.places(key)), None)

    def _format_at(self, root: Root, parts: tuple[str, ...]) -> str | None:
        path = document_name(join(root.real, *parts))
        holders = (one for one in self._imported_or_none() if (below := one.rest(path)) and one.holds(below))
        return next((one.imported.format for one in holders if one.imported is not None), None)

    def places(self, key: DocumentKey) -> list[Place]:
        """Return the roots that may hold a document, the likeliest first, and its components below each.

        Several session folders may have transcripts of the same name. All other documents have one place.
        """
        if "\0" in key.path or (key.source == SESSIONS_SOURCE and key.path.endswith(COMPRESSED)):
            return []
        if key.source == MEMORY_SOURCE:
            roots = self._note_roots()
        else:
            roots = self._imported_or_none() if key.path.startswith("/") else self._session_roots()
        kinds = SessionKinds(self._kinds)
        places = [place for place in _holders(roots, key) if self._reason(kinds, place[0], key.path) is None]
        if key.source == MEMORY_SOURCE:
            if key == _SECOND_NAME and self._is_one_long_term_memory():
                return []
            # The longest prefix wins, of equal ones the last.
            places.sort(key=lambda place: len(place[0].prefix))
            return places[-1:]
        if not key.path.startswith("/"):
            return places
        # Several imports may reach one file; below a configured folder it has another name.
        return places[:1] if self._named_by(key.path)[0] == key else []

    def left_out(self, keys: Iterable[DocumentKey]) -> set[DocumentKey]:
        """Return those transcripts that are left out, though their files may be there."""
        kinds, roots, found = SessionKinds(self._kinds), [*self._session_roots(), *self._imported_or_none()], set()
        for key in keys:
            places = _holders(roots, key)
            if any(self._reason(kinds, root, key.path) is not None for root, _ in places):
                with contextlib.suppress(RecalldError):
                    # Another folder may have a transcript of that name, and it counts.
                    if self.stat(key) is None:
                        found.add(key)
        return found

    def _files(self, key: DocumentKey) -> Iterator[Place]:
        """Yield the places of the files that may hold a document; the first existing one counts."""
        for root, parts in self.places(key):
            yield root, parts
            if key.is_transcript:
                yield root, (*parts[:-1], parts[-1] + COMPRESSED)

    def _named_by(self, path: str | os.PathLike[str]) -> tuple[DocumentKey | None, str | None]:
        """Return the document that an absolute path names, and why it is left out."""
        text = os.fspath(path)
        if not text.startswith("/") or "\0" in text or ".." in text.split("/"):
            return None, None
        note = os.path.normpath(text)
        transcript = document_name(note)
        for roots, name in (
            (self._note_roots, note),
            (self._session_roots, transcript),
            (self._imported_or_none, transcript),
        ):
            places = [(root, parts) for root in roots() if (parts := root.rest(name)) and root.holds(parts)]
            if places:
                # The nearest root: a folder further up may hold the path only through a link.
                root, parts = min(places, key=lambda place: len(place[1]))
                key = DocumentKey(root.source, join(root.prefix, *parts))
                reason = self._reason(SessionKinds(self._kinds), root, key.path)
                return _LONG_TERM if key == _SECOND_NAME and self._is_one_long_term_memory() else key, reason
        return None, None

    def _reason(self, kinds: SessionKinds, root: Root, path: str) -> str | None:
        """Return why a document is left out, `EXCLUDED` or the kind of its session; None if it counts."""
        if root.excludes(path):
            return EXCLUDED
        return kinds.refused(root, path) if root.source == SESSIONS_SOURCE else None

    def _is_one_long_term_memory(self) -> bool:
        """Return True if memory.md is the same file as MEMORY.md."""
        try:
            first, second = (os.lstat(join(self._workspace, name)) for name in LONG_TERM_NAMES[:2])
        except OSError:
            return False
        return os.path.samestat(first, second)

    # Files

    def stat(self, key: DocumentKey) -> FileStat | None:
        """Return the stat of a document's file; None if it is gone, or not a regular file of this agent.

        Raises:
            DocumentUnreadable, Transient: the system does not tell.
        """
        for root, parts in self._files(key):
            result = stat_below(root.folder, (*root.below, *parts), name=key.path)
            if result is not None:
                return file_stat(result)
        return None

    def read(self, key: DocumentKey) -> SourceText:
        """Return a note's whole text as it is now. May wait some milliseconds for a file that was just written.

        Raises:
            DocumentGone, DocumentRefused, DocumentUnreadable: see there.
            Transient: it keeps changing, or the system is out of descriptors.
        """
        if key.is_transcript and self.places(key):
            raise DocumentRefused(f"{key.path} is a transcript, which is read line by line and never as a whole")
        for _ in range(_MAX_READS):
            with ExitStack() as stack:
                _, _, descriptor = self._enter(stack, key)
                data, found = read_steadily(descriptor, key.path)
            if found is not None:
                text, notes = decode(data)
                return SourceText(text, found, hashlib.sha256(data).hexdigest(), notes)
        raise Transient(f"{key.path} changes while it is read; it is read again later", retry_after=1.0)

    @contextlib.contextmanager
    def opened(self, key: DocumentKey, *, settled: bool = True) -> Iterator[OpenTranscript]:
        """Open a transcript for reading. May wait some milliseconds for a file that was just written.

        Without `settled` it does not wait, and its stat must not be remembered: a later write may leave it the same.

        Raises:
            DocumentGone, DocumentRefused, DocumentUnreadable: see there; also what reading raises inside.
            Transient: it is being replaced, or the system is out of descriptors.
        """
        with ExitStack() as stack:
            root, parts, descriptor = self._enter(stack, key)
            stat = file_stat(settled_stat(descriptor) if settled else os.fstat(descriptor))
            compressed = parts[-1].endswith(COMPRESSED)
            yield OpenTranscript(stat, compressed, self._format_at(root, parts), key.path, descriptor)

    def _enter(self, stack: ExitStack, key: DocumentKey) -> tuple[Root, tuple[str, ...], int]:
        """Open the first of a document's files that is there."""
        refused: DocumentRefused | None = None
        for root, parts in self._files(key):
            try:
                opened = opened_below(root.folder, (*root.below, *parts), name=key.path)
                return root, parts, stack.enter_context(opened)
            except DocumentGone:
                continue
            except DocumentRefused as error:
                refused = refused or error
        if refused is not None:
            raise refused
        if key.is_transcript and self.stat(key) is not None:
            raise Transient(f"{key.path} is being replaced; it is read again later", retry_after=1.0)
        raise DocumentGone(f"{key.path} is not there")

    # Folders

    def root_is_there(self, key: DocumentKey) -> bool:
        """Return True if every configured folder that may hold the document exists.

        The absence of a folder (a disk that is not mounted, a folder that is being moved) tells nothing of documents.
        """
        return all(os.path.isdir(root.folder) for root, _ in self.places(key))  # noqa: PTH112 - Path may raise

    def note_folders(self) -> list[str]:
        """Return the folders that hold notes, as they were configured: the workspace, its `memory/`, extra folders."""
        extras = (root.folder for root in self._note_roots() if root.names is None and not root.below)
        return [*dict.fromkeys((self._workspace, join(self._workspace, "memory"), *extras))]

    def watch_roots(self) -> list[WatchRoot]:
        """Return the folders to watch, so that no change of a document, and no root that comes or goes, is missed."""
        watched = {existing_folder(self._workspace): False}
        for root in (*self._note_roots(), *self._session_roots()):
            if root.covered:
                continue
            if not root.has_folders:
                # The workspace itself is watched.
                for name in sorted(root.names or ()) if root.folder != self._workspace else ():
                    file = join(root.folder, name)
                    watched.setdefault(file if os.path.lexists(file) else existing_folder(root.folder), False)
            elif not root.excludes(root.prefix, is_folder=True):
                recursive = os.path.isdir(root.path)  # noqa: PTH112 - Path raises for what is locked away
                if not root.below or (recursive and not os.path.islink(root.path)):  # noqa: PTH114 - Path may raise
                    path = root.path if recursive else existing_folder(root.path)
                    watched[path] = watched.get(path, False) or recursive
        return [WatchRoot(Path(path), recursive) for path, recursive in watched.items()]

    def _note_roots(self) -> list[Root]:
        return note_roots(self._workspace, self._extra_paths, self._globs)

    def _session_roots(self) -> list[Root]:
        return session_roots(self._workspace, self._sessions, self._globs)

    def _imported(self) -> list[Root]:
        """Return the imported folders.

        Raises:
            UserError: the list of them is damaged.
        """
        if self._imports is None:
            return []
        version = None
        with contextlib.suppress(OSError):
            result = self._imports.stat()
            version = (result.st_mtime_ns, result.st_size, result.st_ino)
        known = self._known_imports
        if known is None or known[0] != version:
            folders = imported_folders(self._imports) if version is not None else []
            for drafted in self._drafted:
                folders = with_import(folders, drafted)
            known = self._known_imports = version, import_roots(folders, self._globs)
        return known[1]

    def _imported_or_none(self) -> list[Root]:
        try:
            return self._imported()
        except UserError:
            return []  # the scan has a condition of it


def _holders(roots: Iterable[Root], key: DocumentKey) -> list[Place]:
    """Return the roots that hold a document by name, left out or not, and its components below each."""
    return [
        (root, parts)
        for root in roots
        if root.source == key.source and not root.covered and (parts := root.named(key.path)) and root.holds(parts)
    ]
