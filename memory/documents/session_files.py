"""An agent's transcripts on disk: which there are, where they lie, and what `stat` says of them.

Nothing is cached but the list of imports, and that is read again when its file changes.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from memory.documents.imports import ImportedFolder, imported_folders, with_import
from memory.documents.known_files import KnownFiles
from memory.documents.open_transcripts import OpenTranscript
from memory.documents.roots import join
from memory.documents.safe_open import DocumentGone, DocumentRefused, opened_below, settled_stat, stat_below
from memory.documents.session_roots import (
    COMPRESSED,
    SESSIONS_SOURCE,
    SessionRoot,
    archived_path,
    document_name,
    imported_roots_of,
    is_transcript_name,
    session_roots_of,
)
from memory.documents.session_stores import Sieve
from memory.documents.session_walk import scan_sessions
from memory.documents.walk import Scan, file_stat
from memory.store.reader import StoreReader
from schemas.documents import DocumentKey, FileStat
from schemas.errors import RecalldError, Transient, UserError
from schemas.globs import Globs
from schemas.settings import AgentSettings


class SessionFiles:
    """The transcripts of one agent: below `sessions` of its settings, and below what was imported. Thread-safe.

    An agent whose sources leave out transcripts has none. `drafted` imports count as if they were in the list already.
    What the `globs` or the kind of its session leave out is no transcript of the agent.
    """

    def __init__(
        self,
        agent: AgentSettings,
        *,
        imports: Path | None,
        drafted: Sequence[ImportedFolder] = (),
        globs: Globs | None = None,
    ) -> None:
        self._globs = globs
        self._kinds = frozenset(agent.sync.sessions.kinds)
        self._workspace = os.path.normpath(agent.workspace)
        wanted = SESSIONS_SOURCE in agent.sources
        self._folders = agent.sessions if wanted else ()
        self._imports = imports if wanted else None
        self._drafted = drafted if wanted else ()
        self._forget_deleted = agent.sync.sessions.forget_deleted
        self._known_imports: tuple[tuple[int, int, int] | None, list[SessionRoot]] | None = None

    def scan(self, *, imported: bool, but: KnownFiles | None = None) -> Scan:
        """All transcripts below configured folders and, if asked for, below imported ones; see `AgentFiles.scan`."""
        scan = self._all(imported=imported)
        if but is None:
            return scan
        documents = {key: stat for key, stat in scan.documents.items() if but.differs(key, stat)}
        archived = (archived_path(key.path) for key in scan.documents if key not in documents)
        return replace(scan, documents=documents, archived=frozenset(path for path in archived if path is not None))

    def _all(self, *, imported: bool) -> Scan:
        scan = scan_sessions(self._configured(), self._sieve())
        try:
            below = self._imported()
        except UserError as error:
            return replace(scan, problems=(*scan.problems, str(error)))
        for root in below if imported else ():
            # One that is not there is nobody's problem: what was read of it is kept.
            if os.path.isdir(root.folder):  # noqa: PTH112 - Path may raise
                scan = self._with_import(scan, root)
        return scan

    def _with_import(self, scan: Scan, root: SessionRoot) -> Scan:
        below = scan_sessions([root], self._sieve())
        configured = self._configured()
        documents = {
            key: stat
            for key, stat in below.documents.items()
            if _places(key.path, [root])
            and not any((parts := other.rest(key.path)) and other.holds(parts) for other in configured)
        }
        return Scan(
            documents=documents | scan.documents,
            complete=scan.complete and below.complete,
            problems=tuple(dict.fromkeys(scan.problems + below.problems)),
            unlisted=tuple(dict.fromkeys(scan.unlisted + below.unlisted)),
            left_out=Counter(scan.left_out) + Counter(below.left_out),
        )

    def key_of(self, path: str) -> DocumentKey | None:
        """The transcript that an absolute, normalised path names; None when, by name, it is none or is left out."""
        place = self._place_of(path)
        if place is None or self._sieve().reason(*place) is not None:
            return None
        return _key_at(*place)

    def reason_of(self, path: str) -> str | None:
        """Return why the transcript of an absolute, normalised path is left out; None if it is not, or is none."""
        place = self._place_of(path)
        return self._sieve().reason(*place) if place is not None else None

    def left_out(self, keys: Iterable[DocumentKey]) -> set[DocumentKey]:
        """Return those transcripts that are left out, though their files may be there."""
        sieve = self._sieve()
        followed = [root for root in self._configured() if not root.covered]
        imports = self._imported_or_none()
        found = set()
        for key in keys:
            places = _places(key.path, imports)[:1] if key.path.startswith("/") else _places(key.path, followed)
            if any(sieve.reason(*place) is not None for place in places):
                with contextlib.suppress(RecalldError):
                    # Another folder may have a transcript of that name, and it counts.
                    if self.stat(key) is None:
                        found.add(key)
        return found

    def _sieve(self) -> Sieve:
        return Sieve(self._globs, self._kinds)

    def _place_of(self, path: str) -> tuple[SessionRoot, tuple[str, ...]] | None:
        """Return the nearest root that, by name, holds the document of an absolute path, and the way below it."""
        for roots in (self._configured, self._imported_or_none):
            nearest: tuple[SessionRoot, tuple[str, ...]] | None = None
            for root in roots():
                parts = root.rest(path)
                if not parts or (nearest is not None and len(parts) >= len(nearest[1])):
                    continue
                named = (*parts[:-1], document_name(parts[-1]))
                if root.holds(named):
                    nearest = root, named
            if nearest is not None:
                return nearest
        return None

    def key_named(self, path: str) -> DocumentKey | None:
        """The transcript whose key has this path; None when, by name, it is none."""
        key = DocumentKey(SESSIONS_SOURCE, document_name(path))
        return key if self.holds(key) else None

    def holds(self, key: DocumentKey) -> bool:
        """Whether the key is, by name, a transcript's of this agent, and is not left out."""
        return bool(self._located(key))

    def path_of(self, key: DocumentKey) -> Path:
        """Absolute path of the file, or of where it would be."""
        places = self._located(key)
        for root, parts in places:
            for name in _file_names(parts[-1]):
                path = join(root.folder, *parts[:-1], name)
                if os.path.lexists(path):
                    return Path(path)
        if not places:
            return Path(self._workspace, key.path)
        root, parts = places[0]
        return Path(root.folder, *parts)

    def stat(self, key: DocumentKey) -> FileStat | None:
        """See `AgentFiles.stat`. Of a compressed transcript, of the compressed file."""
        for root, parts in self._located(key):
            for name in _file_names(parts[-1]):
                result = stat_below(root.folder, (*parts[:-1], name), name=key.path)
                if result is not None:
                    return file_stat(result)
        return None

    def root_is_there(self, key: DocumentKey) -> bool:
        """Whether every folder that may hold the document exists."""
        return all(os.path.isdir(root.folder) for root, _ in self._located(key))  # noqa: PTH112 - Path may raise

    def forgets(self, key: DocumentKey, reader: StoreReader | None) -> bool:
        """See `AgentFiles.forgets`."""
        if self.left_out([key]):
            return True
        places = self._located(key)
        if not places or any(root.imported for root, _ in places) or not self.root_is_there(key):
            return False
        return self._forget_deleted or any(
            reader is None or self._stands_for(archive, key, reader)
            for root, parts in places
            for archive in _archives(root, parts)
        )

    def forgotten(self, absent: Iterable[DocumentKey], scan: Scan, reader: StoreReader) -> list[DocumentKey]:
        """See `AgentFiles.forgotten_transcripts`. Looks at the disk for those of which the scan has an archive."""
        followed = [root for root in self._configured() if not root.covered]
        hidden = tuple(folder.rstrip(os.sep) + os.sep for folder in scan.unlisted)
        archived = {archived_path(key.path) for key in scan.documents if key.source == SESSIONS_SOURCE} | scan.archived
        absent = list(absent)
        out = self.left_out(absent)
        found = list(out)
        for key in absent:
            if key not in out and (self._forget_deleted or key.path in archived):
                places = _places(key.path, followed)
                if any(join(root.folder, *parts).startswith(hidden) for root, parts in places):
                    continue
                if self.forgets(key, reader):
                    found.append(key)
        return found

    def _stands_for(self, archive: DocumentKey, key: DocumentKey, reader: StoreReader) -> bool:
        """Return True if the index has an archive as it is on the disk, no dead letter of it, and the whole session."""
        known = reader.file(archive)
        try:
            stat = self.stat(archive)
        except RecalldError:
            return False
        if known is None or stat is None or not known.stat.agrees_with(stat):
            return False
        return all(letter.key != archive for letter in reader.dead_letters()) and _holds_all(reader, archive, key)

    def earlier_names(self, key: DocumentKey) -> list[DocumentKey]:
        """See `AgentFiles.earlier_names`."""
        names = [key.path]
        for root, parts in self._located(key)[:1]:
            if root.imported is None:
                names.append(join(root.real, *parts))  # imported before its folder was configured
        sessions = [session for name in names if (session := archived_path(name)) is not None]
        return [DocumentKey(SESSIONS_SOURCE, name) for name in (*sessions, *names[1:])]

    @contextlib.contextmanager
    def opened(self, key: DocumentKey, *, settled: bool) -> Iterator[OpenTranscript]:
        """See `AgentFiles.opened_transcript`."""
        with ExitStack() as stack:
            root, parts, descriptor, compressed = self._enter(stack, key)
            stat = file_stat(settled_stat(descriptor) if settled else os.fstat(descriptor))
            named = self._format_below(root.real, parts)
            yield OpenTranscript(stat, compressed, named, key.path, descriptor)

    def named_format(self, key: DocumentKey) -> str | None:
        """See `AgentFiles.named_format`."""
        for root, parts in self._located(key)[:1]:
            return self._format_below(root.real, parts)
        return None

    def watch_roots(self) -> list[tuple[str, bool]]:
        """Folders to watch, and whether with all below: the configured ones, or what is above one that is to come."""
        roots = []
        sieve = self._sieve()
        for root in self._configured():
            if not root.covered and not sieve.closes(root, root.prefix):
                there = os.path.isdir(root.folder)  # noqa: PTH112 - Path may raise
                roots.append((root.folder, there))
        return roots

    def owns_directory(self, path: str) -> bool:
        """Whether a folder is to be watched: a configured one or, not hidden and not a link, inside one."""
        for root in self._configured():
            parts = root.rest(path)
            if parts is None or not root.descends(parts) or self._sieve().closes(root, join(root.prefix, *parts)):
                continue
            if not parts or not os.path.islink(path):  # noqa: PTH114 - Path may raise
                return True
        return False

    def _configured(self) -> list[SessionRoot]:
        return session_roots_of(self._workspace, self._folders)

    def _imported(self) -> list[SessionRoot]:
        """The imported folders.

        Raises:
            UserError: the list of them is damaged.
        """
        if self._imports is None:
            return []
        try:
            result = self._imports.stat()
        except OSError:
            version = None
        else:
            version = (result.st_mtime_ns, result.st_size, result.st_ino)
        known = self._known_imports
        if known is None or known[0] != version:
            folders = imported_folders(self._imports) if version is not None else []
            for drafted in self._drafted:
                folders = with_import(folders, drafted)
            known = self._known_imports = version, imported_roots_of(folders)
        return known[1]

    def _imported_or_none(self) -> list[SessionRoot]:
        try:
            return self._imported()
        except UserError:
            return []  # the scan says it

    def _located(self, key: DocumentKey) -> list[tuple[SessionRoot, tuple[str, ...]]]:
        """The roots that may hold a document, the one that wins first, and its components below each."""
        if key.source != SESSIONS_SOURCE or "\0" in key.path or key.path.endswith(COMPRESSED):
            return []
        if key.path.startswith("/"):
            # Below a configured folder it has another name.
            place = self._place_of(key.path)
            if place is None or _key_at(*place) != key:
                return []
            roots = self._imported_or_none()
        else:
            roots = [root for root in self._configured() if not root.covered]
        sieve = self._sieve()
        found = [place for place in _places(key.path, roots) if sieve.reason(*place) is None]
        # What several imports reach is one file; two configured folders may have files of the same name.
        return found[:1] if key.path.startswith("/") else found

    def _format_below(self, folder: str, parts: tuple[str, ...]) -> str | None:
        """What the latest import of a file says, wherever it has its name from."""
        path = join(folder, *parts)
        for root in self._imported_or_none():
            below = root.rest(path)
            if below and root.holds(below):
                return root.imported.format if root.imported is not None else None
        return None

    def _enter(self, stack: ExitStack, key: DocumentKey) -> tuple[SessionRoot, tuple[str, ...], int, bool]:
        """Open the first file that is there."""
        refused: DocumentRefused | None = None
        for root, parts in self._located(key):
            for name in _file_names(parts[-1]):
                try:
                    opened = opened_below(root.folder, (*parts[:-1], name), name=key.path)
                    return root, parts, stack.enter_context(opened), name.endswith(COMPRESSED)
                except DocumentGone:
                    continue
                except DocumentRefused as error:
                    refused = refused or error
        if refused is not None:
            raise refused
        if self.stat(key) is not None:
            raise Transient(f"{key.path} is being replaced; it is read again later", retry_after=1.0)
        raise DocumentGone(f"{key.path} is not there")


def _key_at(root: SessionRoot, parts: Sequence[str]) -> DocumentKey:
    return DocumentKey(SESSIONS_SOURCE, join(root.prefix, *parts))


def _places(path: str, roots: Iterable[SessionRoot]) -> list[tuple[SessionRoot, tuple[str, ...]]]:
    """The roots that may, by name, hold the document of this path, and its components below each."""
    found = []
    for root in roots:
        start = root.prefix if root.prefix.endswith("/") else root.prefix + "/"
        if path.startswith(start) and root.holds(parts := tuple(path[len(start) :].split("/"))):
            found.append((root, parts))
    return found


def _file_names(name: str) -> tuple[str, str]:
    """The names that a document's file may have; the first one that is there counts."""
    return name, name + COMPRESSED


def _archives(root: SessionRoot, parts: tuple[str, ...]) -> list[DocumentKey]:
    """Return the archives of a session, which lie in its folder."""
    start = parts[-1] + "."
    folder = parts[:-1]
    try:
        with os.scandir(join(root.folder, *folder)) as entries:
            names = {
                document_name(entry.name)
                for entry in entries
                if entry.name.startswith(start)
                and is_transcript_name(entry.name)
                and archived_path(document_name(entry.name)) == parts[-1]
                and entry.is_file(follow_symlinks=False)
            }
    except OSError:
        return []
    return [DocumentKey(SESSIONS_SOURCE, join(root.prefix, *folder, name)) for name in sorted(names)]


def _holds_all(reader: StoreReader, archive: DocumentKey, key: DocumentKey) -> bool:
    """Return True if the index has each text of a transcript in another one, too."""
    held = reader.chunks_of(archive)
    hashes = {chunk.text_hash for chunk in held}
    lacking = [chunk for chunk in reader.chunks_of(key) if chunk.text_hash not in hashes]
    if len(lacking) != 1:
        return not lacking
    # The last chunk of a transcript is the only one that grows: it may have gone on before it was archived.
    [last] = lacking
    rows = reader.chunk_rows([last.id, *(chunk.id for chunk in held if chunk.ordinal == last.ordinal)])
    text = rows.pop(last.id).text
    return any(row.text.startswith(text) for row in rows.values())
