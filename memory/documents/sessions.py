"""Transcripts: files of configured folders (`Sessions`), and of folders that a user imported (`Imports`)."""

from __future__ import annotations

import contextlib
import os
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from memory.documents.content import (
    DocumentGone,
    DocumentRefused,
    DocumentUnreadable,
    OpenFile,
    OpenTranscript,
    SourceText,
    settled_stat,
)
from memory.documents.imports import ImportedFolder, imported_folders, with_import
from memory.documents.roots import (
    COMPRESSED,
    Area,
    FileRule,
    Place,
    Root,
    absolute,
    archived_path,
    document_name,
    existing_folder,
    is_transcript_name,
    is_utf8,
    join,
    named_alike,
    nearest,
)
from memory.documents.scan import Scan, ScanProblems, file_stat, files_of, printable
from memory.documents.session_database import OpenCodeDatabase, OpenSession, SessionDatabase, database_of, is_of_rows
from memory.documents.session_kinds import SessionKinds, knows, transcripts_at
from memory.documents.sources import Documents, DocumentSource, Entering, ReasonOf, excluded
from schemas.conditions import ConditionCode
from schemas.documents import SESSIONS_SOURCE, DocumentKey, FileStat
from schemas.errors import RecalldError, Transient, UserError
from schemas.globs import compiled
from schemas.settings import AgentSettings

if TYPE_CHECKING:
    from memory.store.reader import StoreReader


_TRANSCRIPTS = FileRule(is_transcript_name)

#: OpenCode's data folder has a great many other files further down.
_BESIDE_OPENCODE = FileRule(is_transcript_name, depth=0)

#: Ending of a session's transcript.
_SESSION = ".jsonl"

#: Beginning of the name that search results give a session in a database.
_CITED = "session:"


class Transcripts(DocumentSource):
    """Transcripts below folders. Of a compressed transcript and a plain one, the plain one counts."""

    name = SESSIONS_SOURCE
    #: True if only settings that leave a transcript out make the index forget it.
    keeps_vanished: ClassVar[bool] = False

    def __init__(self, agent: AgentSettings) -> None:
        globs = compiled(agent.include, agent.exclude)
        self._areas = () if globs is None else (Area(globs),)
        self._workspace = os.path.normpath(agent.workspace)
        self._folders = agent.sessions if SESSIONS_SOURCE in agent.sources else ()
        self._kinds = frozenset(agent.sync.sessions.kinds)
        self._forget_deleted = agent.sync.sessions.forget_deleted

    @abstractmethod
    def format_at(self, path: str) -> str | None:
        """Return the format that the latest import of a file names, also below a configured folder."""

    def configured(self) -> list[Root]:
        """Return the configured folders, in their order."""
        roots = {}
        for configured in dict.fromkeys(self._folders):
            if configured and "\0" not in configured and is_utf8(configured):
                folder = absolute(self._workspace, configured)
                real = os.path.realpath(folder)
                rule = _BESIDE_OPENCODE if isinstance(database_of(folder), OpenCodeDatabase) else _TRANSCRIPTS
                roots[configured] = Root(folder, real, self.name, rule, folder, areas=self._areas)
        by_place = sorted(roots, key=lambda configured: roots[configured].real)
        renamed = dict(zip(by_place, named_alike(roots[configured] for configured in by_place), strict=True))
        return [renamed[configured] for configured in roots]

    def reasons(self) -> ReasonOf:
        kinds = SessionKinds(self._kinds)
        return lambda root, path: excluded(root, path) or kinds.refused(root, path)

    def places(self, key: DocumentKey) -> list[Place]:
        return [] if key.path.endswith(COMPRESSED) else super().places(key)

    def files(self, key: DocumentKey) -> Iterator[Place]:
        for root, parts in self.places(key):
            yield root, parts
            yield root, (*parts[:-1], parts[-1] + COMPRESSED)

    def key_of(self, path: str) -> tuple[DocumentKey, str | None] | None:
        return self.namer()(path)

    def namer(self) -> Callable[[str], tuple[DocumentKey, str | None] | None]:
        """Return `key_of` for many paths: it looks at the folders once."""
        roots, reason_of = self.roots(), self.reasons()

        def key_of(path: str) -> tuple[DocumentKey, str | None] | None:
            if (place := nearest(roots, document_name(path))) is None:
                return None
            key = DocumentKey(self.name, join(place[0].prefix, *place[1]))
            return key, reason_of(place[0], key.path)

        return key_of

    def named(self, text: str) -> DocumentKey | None:
        """Return the transcript that search results name so."""
        key = DocumentKey(self.name, document_name(text))
        return key if self.owns(key) and self.places(key) else None

    def read(self, key: DocumentKey) -> SourceText:
        if not self.places(key):
            raise DocumentGone(f"{key.path} is not there")
        raise DocumentRefused(f"{key.path} is a transcript, which is read line by line and never as a whole")

    @contextlib.contextmanager
    def opened(self, key: DocumentKey, *, settled: bool = True) -> Iterator[OpenTranscript]:
        with ExitStack() as stack:
            try:
                root, parts, descriptor = self.enter(stack, key)
            except DocumentGone:
                if self.stat(key) is None:
                    raise
                raise Transient(f"{key.path} is being replaced; it is read again later", retry_after=1.0) from None
            stat = file_stat(settled_stat(descriptor) if settled else os.fstat(descriptor))
            compressed = parts[-1].endswith(COMPRESSED)
            yield OpenFile(stat, self._format_at(root, parts), key.path, compressed, descriptor)

    def format_of(self, key: DocumentKey) -> str | None:
        """Return the format that a user named for a transcript; None if it is to be found out."""
        return next((self._format_at(*place) for place in self.places(key)), None)

    def _format_at(self, root: Root, parts: tuple[str, ...]) -> str | None:
        return self.format_at(document_name(join(root.real, *parts)))

    def left_out(self, keys: Iterable[DocumentKey]) -> set[DocumentKey]:
        """Return its transcripts that are left out, though their files may be there."""
        reason_of = self.reasons()
        places_of = {key: self.holders(key) for key in keys if self.owns(key)}
        refused = [key for key, places in places_of.items() if any(reason_of(root, key.path) for root, _ in places)]
        left_out = set()
        for key in refused:
            with contextlib.suppress(RecalldError):
                # Another folder may have a transcript of that name, and it counts.
                if self.stat(key) is None:
                    left_out.add(key)
        return left_out

    def earlier_names(self, key: DocumentKey) -> list[DocumentKey]:
        """Return the keys that a transcript may have had, the likeliest first.

        An archive may have had its session's, a transcript of a configured folder that of an import.
        """
        places = [] if key.path.startswith("/") else self.places(key)[:1]
        imported = (join(root.real, *parts) for root, parts in places)
        names = [*dict.fromkeys((key.path, *imported))]
        sessions = [session for name in names if (session := archived_path(name)) is not None]
        return [DocumentKey(self.name, name) for name in (*sessions, *names[1:])]

    def at(self, place: str) -> frozenset[str]:
        """Return the paths of transcripts of conversations at one place, as the stores of their folders tell.

        The place of a transcript whose name another folder has, too, is unknown. An archive is of its session's place.
        """
        roots = self.roots()
        return frozenset(
            join(root.prefix, name)
            for root in roots
            for name in transcripts_at(root.folder, place)
            if not any(
                other.prefix == root.prefix
                and other.real != root.real
                and (os.path.lexists(join(other.folder, name)) or knows(other.folder, name))
                for other in roots
            )
        )

    def listed(self, root: Root, problems: ScanProblems, entering: Entering = None) -> Documents:
        plain: dict[DocumentKey, FileStat] = {}
        compressed: dict[DocumentKey, FileStat] = {}
        for path, result in files_of(root, problems, self.reasons(), entering, missing=self.missing):
            documents = compressed if path.endswith(COMPRESSED) else plain
            documents[DocumentKey(self.name, document_name(path))] = file_stat(result)
        yield from (compressed | plain).items()

    def forgets(self, keys: Collection[DocumentKey], reader: StoreReader | None, scan: Scan | None) -> set[DocumentKey]:
        left_out = self.left_out(keys)
        if self.keeps_vanished:
            return left_out
        candidates = [key for key in keys if key not in left_out]
        if scan is not None and not self._forget_deleted:
            # Looking for the archives of one transcript lists its folder.
            archived = {archived_path(key.path) for key in scan.documents if self.owns(key)} | scan.archived
            candidates = [key for key in candidates if key.path in archived]
        return left_out.union(
            key
            for key in candidates
            if not (scan is not None and self.hides(key, scan))
            and self.places(key)
            and self.is_gone(key, reader)
            and (
                self._forget_deleted
                or (bool(self._archives(key)) if reader is None else self.continues(key, reader, reader))
            )
        )

    def is_gone(self, key: DocumentKey, reader: StoreReader | None) -> bool:  # noqa: ARG002 - for other transcripts
        """Return True if the absence of a transcript that an index has tells that it was deleted."""
        return self.is_there(key)

    def continues(self, key: DocumentKey, reader: StoreReader, earlier: StoreReader) -> bool:
        """Return True if the index has a whole archive of a session, with all that an `earlier` index has of it."""
        archives = [] if self.keeps_vanished else self._archives(key)
        return any(
            self._is_whole(archive, reader) and _holds_all(reader, archive, earlier, key) for archive in archives
        )

    def _is_whole(self, archive: DocumentKey, reader: StoreReader) -> bool:
        """Return True if the index has an archive as it is on the disk, and no dead letter of it."""
        indexed = reader.file(archive)
        try:
            stat = self.stat(archive)
        except RecalldError:
            return False
        if indexed is None or stat is None or not indexed.stat.agrees_with(stat):
            return False
        return all(letter.key != archive for letter in reader.dead_letters())

    def _archives(self, key: DocumentKey) -> list[DocumentKey]:
        """Return the archives of a session, which lie in its folder."""
        return [archive for root, parts in self.places(key) for archive in _archives_below(root, parts)]


class Sessions(Transcripts):
    """Transcripts of configured folders; several folders may have transcripts of one name.

    A folder of OpenClaw or OpenCode stands for a database (`memory.documents.session_database`). A session in it is the
    document that the session's file was; if there are both, the database counts.

    A vanished transcript stays in the index unless the settings leave it out, or ask to forget it
    (`sync.sessions.forget_deleted`), or the index has an archive of it, whole and with all that it has of the
    transcript; without a reader of the index any archive will do.
    """

    missing = ConditionCode.SESSIONS_FOLDER_MISSING

    def __init__(self, agent: AgentSettings, imports: Imports) -> None:
        super().__init__(agent)
        self._imports = imports

    def format_at(self, path: str) -> str | None:
        return self._imports.format_at(path)

    def owns(self, key: DocumentKey) -> bool:
        return key.source == self.name and not key.path.startswith("/")

    def roots(self) -> list[Root]:
        return self.configured()

    def listed(self, root: Root, problems: ScanProblems, entering: Entering = None) -> Documents:
        database, rows = database_of(root.folder), dict[DocumentKey, FileStat]()
        if database is not None:
            try:
                rows = dict(self._rows(root, database, problems))
            except DocumentGone:
                database = None
            except RecalldError as error:
                problems.add(ConditionCode.SESSIONS_UNREADABLE, database.path, error=str(error))
        yield from rows.items()
        # Beside a database the program makes no folder before it has an archive.
        if database is None or os.path.isdir(root.folder):  # noqa: PTH112 - Path may raise
            files = super().listed(root, problems, entering)
            yield from ((key, stat) for key, stat in files if key not in rows)

    def rows_in(self, folder: str) -> dict[DocumentKey, FileStat]:
        """Return the documents of the database in a folder, without those that are left out.

        Raises:
            DocumentGone, DocumentRefused, DocumentUnreadable, Transient: see `SessionDatabase`.
        """
        databases = ((root, database_of(root.folder)) for root in self.roots() if root.covering is None)
        return {
            key: stat
            for root, database in databases
            if database is not None and database.place == folder
            for key, stat in self._rows(root, database, ScanProblems())
        }

    def _rows(self, root: Root, database: SessionDatabase, problems: ScanProblems) -> Documents:
        """Yield the documents of a database, and count in `problems` those left out. Raises like `rows_in`."""
        if root.excludes(root.prefix, is_folder=True):
            return
        reason_of = self.reasons()
        for name, stat in database.sessions().items():
            path = join(root.prefix, name)
            reason = reason_of(root, path)
            if reason is None:
                yield DocumentKey(self.name, path), stat
            else:
                problems.left_out[reason] += 1

    def _row(self, key: DocumentKey) -> tuple[Place, SessionDatabase, FileStat] | None:
        """Return the place, the database and the state of a session that is in a database."""
        for root, parts in self.places(key):
            database = database_of(root.folder)
            session = parts[-1].removesuffix(_SESSION)
            if database is None or len(parts) > 1 or session == parts[-1]:
                continue
            # The scan has the condition of a database that cannot be read.
            with contextlib.suppress(DocumentGone, DocumentRefused, DocumentUnreadable):
                if (stat := database.sessions(session).get(parts[-1])) is not None:
                    return (root, parts), database, stat
        return None

    def stat(self, key: DocumentKey) -> FileStat | None:
        row = self._row(key)
        return row[2] if row is not None else super().stat(key)

    @contextlib.contextmanager
    def opened(self, key: DocumentKey, *, settled: bool = True) -> Iterator[OpenTranscript]:
        if (row := self._row(key)) is None:
            with super().opened(key, settled=settled) as opened:
                yield opened
        else:
            place, database, stat = row
            session = place[1][-1].removesuffix(_SESSION)
            yield OpenSession(stat, self._format_at(*place), key.path, database, session)

    def named(self, text: str) -> DocumentKey | None:
        session = text.removeprefix(_CITED)
        return super().named(text if session == text else join(self.name, session + _SESSION))

    def is_there(self, key: DocumentKey) -> bool:
        databases = (database_of(root.folder) for root, _ in self.places(key))
        return super().is_there(key) or any(database is not None and database.is_readable() for database in databases)

    def is_gone(self, key: DocumentKey, reader: StoreReader | None) -> bool:
        indexed = reader.file(key) if reader is not None else None
        if indexed is None or not is_of_rows(indexed.stat):
            return super().is_gone(key, reader)
        databases = [database_of(root.folder) for root, _ in self.places(key)]
        return all(database is not None and database.is_readable() for database in databases)

    def watched(self) -> Iterator[tuple[str, bool]]:
        for root in self.roots():
            if root.covering is None and (database := database_of(root.folder)) is not None:
                yield existing_folder(database.place), False
            if root.covering is None and root.rule.depth is None:
                yield from self.watched_of(root)

    def walk(self, problems: ScanProblems, entering: Entering = None) -> Documents:
        followed = [root for root in self.roots() if root.covering is None]
        first_of: dict[DocumentKey, Root] = {}
        for root in followed:
            documents = dict(self.listed(root, problems, entering))
            if twice := sorted(first_of.keys() & documents.keys()):
                problems.add(
                    ConditionCode.TRANSCRIPTS_NAMED_TWICE,
                    root.folder,
                    first=printable(first_of[twice[0]].folder),
                    transcripts=len(twice),
                    example=twice[0].path.removeprefix(f"{self.name}/"),
                )
            yield from ((key, stat) for key, stat in documents.items() if key not in first_of)
            if len(followed) > 1:
                first_of = dict.fromkeys(documents, root) | first_of


class Imports(Transcripts):
    """Transcripts of imported folders, scanned on demand. A vanished one stays unless the settings leave it out.

    The file at `path` lists the folders; `drafted` ones count as listed. Below a configured folder, a transcript has
    another name. The index keeps the transcripts of a folder that is gone.
    """

    on_demand = keeps_vanished = True

    def __init__(self, agent: AgentSettings, path: Path | None, drafted: Sequence[ImportedFolder]) -> None:
        super().__init__(agent)
        self._path = path if SESSIONS_SOURCE in agent.sources else None
        self._drafted = drafted
        self._read: tuple[tuple[int, int, int] | None, list[tuple[Root, str | None]]] | None = None

    def owns(self, key: DocumentKey) -> bool:
        return key.source == self.name and key.path.startswith("/")

    def roots(self) -> list[Root]:
        return [root for root, _ in self._roots_and_formats()]

    def check(self, problems: ScanProblems) -> None:
        """Add the condition of a damaged list."""
        try:
            self._listed()
        except UserError as error:
            problems.add(ConditionCode.IMPORTS_UNREADABLE, "", error=str(error))

    def format_at(self, path: str) -> str | None:
        return next((name for root, name in self._roots_and_formats() if nearest([root], path) is not None), None)

    def _roots_and_formats(self) -> list[tuple[Root, str | None]]:
        """Return the imported folders; none if their list is damaged, of which `check` has a condition."""
        try:
            return self._listed()
        except UserError:
            return []

    def _listed(self) -> list[tuple[Root, str | None]]:
        """Return the imported folders with their formats, the latest first."""
        if self._path is None:
            return []
        version = None
        with contextlib.suppress(OSError):
            result = self._path.stat()
            version = (result.st_mtime_ns, result.st_size, result.st_ino)
        read = self._read
        if read is None or read[0] != version:
            folders = imported_folders(self._path) if version is not None else []
            for drafted in self._drafted:
                folders = with_import(folders, drafted)
            imports, areas = list[tuple[Root, str | None]](), self._areas
            for imported in reversed(folders):
                if imported.files != ():
                    imports.append((self._root(imported, areas), imported.format))
                    continue
                folder, _, name = imported.folder.rpartition("/")
                if (excluded := compiled((), [f"x/{escape(name)}"])) is not None:
                    areas = (*areas, Area(excluded, folder or "/", "x/"))
            read = self._read = version, imports
        return read[1]

    def _root(self, imported: ImportedFolder, areas: tuple[Area, ...]) -> Root:
        """Return the root of an import. Keys of its transcripts have absolute paths, without links."""
        real, folder = os.path.realpath(imported.folder), os.path.normpath(imported.folder)
        only = None if imported.files is None else frozenset(map(document_name, imported.files))
        return Root(folder, real, real, FileRule(is_transcript_name, only=only), folder, areas=areas)

    def walk(self, problems: ScanProblems, entering: Entering = None) -> Documents:
        documents = dict(super().walk(problems, entering))
        configured = self.configured()
        yield from ((key, stat) for key, stat in documents.items() if nearest(configured, key.path) is None)

    def places(self, key: DocumentKey) -> list[Place]:
        """Return the place of a document in the latest of the imports that reach it."""
        place = nearest(self.roots(), key.path)
        if place is None or join(place[0].prefix, *place[1]) != key.path or nearest(self.configured(), key.path):
            return []
        return super().places(key)[:1]

    def watched(self) -> Iterator[tuple[str, bool]]:
        yield from ()


def _archives_below(root: Root, parts: tuple[str, ...]) -> list[DocumentKey]:
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


def _holds_all(reader: StoreReader, archive: DocumentKey, earlier: StoreReader, key: DocumentKey) -> bool:
    """Return True if the index has each text that an `earlier` one has of a transcript in another one, too."""
    chunks = reader.chunks_of(archive)
    hashes = {chunk.text_hash for chunk in chunks}
    lacking = [chunk for chunk in earlier.chunks_of(key) if chunk.text_hash not in hashes]
    if len(lacking) != 1:
        return not lacking
    # The last chunk of a transcript alone grows: it may have gone on before it was archived.
    [last] = lacking
    text = earlier.chunk_rows([last.id])[last.id].text
    rows = reader.chunk_rows([chunk.id for chunk in chunks if chunk.ordinal == last.ordinal])
    return any(row.text.startswith(text) for row in rows.values())
