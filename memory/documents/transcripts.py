"""Transcripts of an agent: those of its session folders, and those of imported folders."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from memory.documents.content import OpenTranscript, SourceText
from memory.documents.imports import ImportedFolder, imported_folders, with_import
from memory.documents.roots import join
from memory.documents.safe_open import DocumentGone, DocumentRefused, opened_below, settled_stat, stat_below
from memory.documents.scan import EXCLUDED_FOLDERS, KnownFiles, Scan, ScanProblems, file_stat, printable
from memory.documents.session_roots import (
    COMPRESSED,
    SessionRoot,
    archived_path,
    document_name,
    imported_roots_of,
    is_transcript_name,
    session_roots_of,
)
from memory.documents.session_stores import Sieve
from memory.documents.source import DocumentSource, existing_folder
from memory.documents.walk import FolderRules, walk
from memory.store.reader import StoreReader
from schemas.conditions import Condition, ConditionCode
from schemas.documents import SESSIONS_SOURCE, DocumentKey, FileStat
from schemas.errors import RecalldError, Transient, UserError
from schemas.globs import compiled
from schemas.settings import AgentSettings


class Transcripts(DocumentSource):
    """Transcripts of one agent: below `sessions` of its settings, and below imported folders. Thread-safe.

    An agent whose sources leave out transcripts has none. `drafted` imports count as if they were in the list already.
    Globs and the kinds of sessions leave out transcripts. The list of imports is read again when its file changes.
    """

    def __init__(
        self, agent: AgentSettings, *, imports: Path | None = None, drafted: Sequence[ImportedFolder] = ()
    ) -> None:
        self._globs = compiled(agent.include, agent.exclude)
        self._kinds = frozenset(agent.sync.sessions.kinds)
        self._workspace = os.path.normpath(agent.workspace)
        wanted = SESSIONS_SOURCE in agent.sources
        self._folders = agent.sessions if wanted else ()
        self._imports = imports if wanted else None
        self._drafted = drafted if wanted else ()
        self._forget_deleted = agent.sync.sessions.forget_deleted
        self._known_imports: tuple[tuple[int, int, int] | None, list[SessionRoot]] | None = None

    def scan(
        self,
        *,
        imported: bool = False,
        but: KnownFiles | None = None,
        entering: Callable[[str], object] | None = None,
    ) -> Scan:
        scan = _scan_roots(self._configured(), self._sieve(), entering)
        try:
            roots = self._imported()
        except UserError as error:
            roots = []
            unreadable = Condition(ConditionCode.IMPORTS_UNREADABLE, params={"error": str(error)})
            scan = replace(scan, problems=(*scan.problems, unreadable))
        for root in roots if imported else ():
            # The index keeps the transcripts of an imported folder that is gone.
            if os.path.isdir(root.folder):  # noqa: PTH112 - Path may raise
                scan |= self._import(root)
        if but is None:
            return scan
        before = but.unchanged
        documents = {key: stat for key, stat in scan.documents.items() if but.differs(key, stat)}
        archived = (archived_path(key.path) for key in scan.documents if key not in documents)
        return replace(
            scan,
            documents=documents,
            unchanged=but.unchanged - before,
            archived=frozenset(path for path in archived if path is not None),
        )

    def _import(self, root: SessionRoot) -> Scan:
        """Return the transcripts of an imported folder that no configured folder holds."""
        below, configured = _scan_roots([root], self._sieve()), self._configured()
        documents = {
            key: stat
            for key, stat in below.documents.items()
            if _places(key.path, [root])
            and not any((parts := other.rest(key.path)) and other.holds(parts) for other in configured)
        }
        return replace(below, documents=documents)

    def key_of(self, path: str) -> DocumentKey | None:
        place = self._place_of(path)
        if place is None or self._sieve().reason(*place) is not None:
            return None
        return _key_at(*place)

    def reason_of(self, path: str) -> str | None:
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
        """Return the transcript whose key has this path; None if, by name, it is none."""
        key = DocumentKey(SESSIONS_SOURCE, document_name(path))
        return key if self.holds(key) else None

    def holds(self, key: DocumentKey) -> bool:
        """Return True if a key is, by name, a transcript's of this agent, and is not left out."""
        return bool(self._located(key))

    def path_of(self, key: DocumentKey) -> Path | None:
        places = self._located(key)
        for root, parts in places:
            for name in _file_names(parts[-1]):
                path = join(root.folder, *parts[:-1], name)
                if os.path.lexists(path):
                    return Path(path)
        return Path(places[0][0].folder, *places[0][1]) if places else None

    def stat(self, key: DocumentKey) -> FileStat | None:
        # Of a compressed transcript, the stat of the compressed file.
        for root, parts in self._located(key):
            for name in _file_names(parts[-1]):
                result = stat_below(root.folder, (*parts[:-1], name), name=key.path)
                if result is not None:
                    return file_stat(result)
        return None

    def read(self, key: DocumentKey) -> SourceText:
        if self.holds(key):
            raise DocumentRefused(f"{key.path} is a transcript, which is read line by line and never as a whole")
        raise DocumentGone(f"{key.path} is no document of this agent (any more)")

    def root_is_there(self, key: DocumentKey) -> bool:
        return all(os.path.isdir(root.folder) for root, _ in self._located(key))  # noqa: PTH112 - Path may raise

    def forgets(self, key: DocumentKey, reader: StoreReader | None = None) -> bool:
        """Return True if the index must forget an absent transcript.

        The settings may leave it out or ask to forget deleted ones (`sync.sessions.forget_deleted`), or the index has
        an archive of it, whole and with all that it has of the transcript. An imported transcript stays. Without a
        `reader` of the index any archive will do.
        """
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
        """Return those of many transcripts absent from a scan that the index must forget, as `forgets` tells of one.

        Looks at the disk for those of which the scan has an archive.
        """
        followed = [root for root in self._configured() if not root.covered]
        hidden = tuple(folder.rstrip(os.sep) + os.sep for folder in scan.unlisted)
        archived = {archived_path(key.path) for key in scan.documents if key.is_transcript} | scan.archived
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
        """Return the keys that a transcript may have had, the likeliest first.

        An archive may have had its session's, a transcript of a configured folder that of an import.
        """
        names = [key.path]
        for root, parts in self._located(key)[:1]:
            if root.imported is None:
                names.append(join(root.real, *parts))  # imported before its folder was configured
        sessions = [session for name in names if (session := archived_path(name)) is not None]
        return [DocumentKey(SESSIONS_SOURCE, name) for name in (*sessions, *names[1:])]

    @contextlib.contextmanager
    def opened(self, key: DocumentKey, *, settled: bool = True) -> Iterator[OpenTranscript]:
        """Open a transcript for reading. May wait some milliseconds for a file that was just written.

        Without `settled` it does not wait, and its stat must not be remembered: a later write may leave it the same.

        Raises:
            DocumentGone, DocumentRefused, DocumentUnreadable: see there; also what reading raises inside.
            Transient: it is being replaced, or the system is out of descriptors.
        """
        with ExitStack() as stack:
            root, parts, descriptor, compressed = self._enter(stack, key)
            stat = file_stat(settled_stat(descriptor) if settled else os.fstat(descriptor))
            named = self._format_below(root.real, parts)
            yield OpenTranscript(stat, compressed, named, key.path, descriptor)

    def named_format(self, key: DocumentKey) -> str | None:
        """Return the format that a user named for a transcript; None if it is to be found out."""
        for root, parts in self._located(key)[:1]:
            return self._format_below(root.real, parts)
        return None

    def watch_roots(self) -> Iterator[tuple[str, bool]]:
        sieve = self._sieve()
        for root in self._configured():
            if not root.covered and not sieve.closes(root, root.prefix):
                there = os.path.isdir(root.folder)  # noqa: PTH112 - Path may raise
                yield root.folder if there else existing_folder(root.folder), there

    def _configured(self) -> list[SessionRoot]:
        return session_roots_of(self._workspace, self._folders)

    def _imported(self) -> list[SessionRoot]:
        """Return the imported folders.

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
            return []  # the scan has a condition of it

    def _located(self, key: DocumentKey) -> list[tuple[SessionRoot, tuple[str, ...]]]:
        """Return the roots that may hold a document, the winner first, and its components below each."""
        if not key.is_transcript or "\0" in key.path or key.path.endswith(COMPRESSED):
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
        # A transcript that several imports reach is one file; two configured folders may have files of the same name.
        return found[:1] if key.path.startswith("/") else found

    def _format_below(self, folder: str, parts: tuple[str, ...]) -> str | None:
        """Return the format that the latest import of a file names, though a configured folder gives it its name."""
        path = join(folder, *parts)
        for root in self._imported_or_none():
            below = root.rest(path)
            if below and root.holds(below):
                return root.imported.format if root.imported is not None else None
        return None

    def _enter(self, stack: ExitStack, key: DocumentKey) -> tuple[SessionRoot, tuple[str, ...], int, bool]:
        """Open the first of a document's files that is there."""
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


def _scan_roots(roots: Sequence[SessionRoot], sieve: Sieve, entering: Callable[[str], object] | None = None) -> Scan:
    """Return the transcripts below folders that the sieve lets through.

    Costs a stat for each and a listing for each folder.
    """
    documents: dict[DocumentKey, FileStat] = {}
    owners: list[tuple[SessionRoot, frozenset[DocumentKey]]] = []
    problems = ScanProblems()
    followed = [root for root in roots if not root.covered]
    for root in followed:
        if not os.path.isdir(root.folder):  # noqa: PTH112 - a plain string
            problems.add_missing(root.folder, ConditionCode.SESSIONS_FOLDER_MISSING, root.folder)
            continue
        found = _scan_folder(root, sieve, problems, entering)
        for first, keys in owners:
            twice = sorted(keys & found.keys())
            if twice:
                problems.add(
                    ConditionCode.TRANSCRIPTS_NAMED_TWICE,
                    root.folder,
                    first=printable(first.folder),
                    transcripts=len(twice),
                    example=twice[0].path.removeprefix(f"{SESSIONS_SOURCE}/"),
                )
                for key in twice:
                    del found[key]
        if len(followed) > 1:
            owners.append((root, frozenset(found)))
        documents.update(found)
    return problems.scan_of(documents)


def _scan_folder(
    root: SessionRoot, sieve: Sieve, problems: ScanProblems, entering: Callable[[str], object] | None
) -> dict[DocumentKey, FileStat]:
    found: dict[DocumentKey, FileStat] = {}
    compressed: dict[DocumentKey, FileStat] = {}
    if sieve.closes(root, root.prefix):
        problems.left_out[EXCLUDED_FOLDERS] += 1
        return found
    goes_on = problems.has_room(root.folder, lambda: len(found) + len(compressed))
    rules = _rules(root, sieve, problems)
    for path, result in walk(root.folder, f"{root.prefix}/", rules, problems, goes_on=goes_on, entering=entering):
        if path.endswith(COMPRESSED):
            compressed[DocumentKey(SESSIONS_SOURCE, document_name(path))] = file_stat(result)
        else:
            found[DocumentKey(SESSIONS_SOURCE, path)] = file_stat(result)
    return compressed | found


def _rules(root: SessionRoot, sieve: Sieve, problems: ScanProblems) -> Callable[[str], FolderRules]:
    """Return the rules of the folders below a root."""

    def enters(folder: str) -> bool:
        if sieve.closes(root, folder):
            problems.left_out[EXCLUDED_FOLDERS] += 1
            return False
        return True

    def rules(folder: str) -> FolderRules:
        parts = tuple(folder[len(root.prefix) : -1].split("/")[1:])

        def takes(path: str) -> bool:
            reason = sieve.reason(root, (*parts, document_name(path[len(folder) :])))
            if reason is not None:
                problems.left_out[reason] += 1
            return reason is None

        return FolderRules(is_transcript_name, takes if sieve.limits(root, parts) else None, enters)

    return rules


def _key_at(root: SessionRoot, parts: Sequence[str]) -> DocumentKey:
    return DocumentKey(SESSIONS_SOURCE, join(root.prefix, *parts))


def _places(path: str, roots: Iterable[SessionRoot]) -> list[tuple[SessionRoot, tuple[str, ...]]]:
    """Return the roots that may, by name, hold the document of this path, and its components below each."""
    found = []
    for root in roots:
        start = root.prefix if root.prefix.endswith("/") else root.prefix + "/"
        if path.startswith(start) and root.holds(parts := tuple(path[len(start) :].split("/"))):
            found.append((root, parts))
    return found


def _file_names(name: str) -> tuple[str, str]:
    """Return the names that a document's file may have; the first existing one counts."""
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
    # The last chunk of a transcript alone grows: it may have gone on before it was archived.
    [last] = lacking
    rows = reader.chunk_rows([last.id, *(chunk.id for chunk in held if chunk.ordinal == last.ordinal)])
    text = rows.pop(last.id).text
    return any(row.text.startswith(text) for row in rows.values())
