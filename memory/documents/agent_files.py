"""Documents of one agent on disk: notes and transcripts, found, named by keys, and opened safely."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from memory.documents.content import DocumentGone, DocumentRefused, DocumentUnreadable, OpenTranscript, SourceText
from memory.documents.imports import ImportedFolder, imports_path
from memory.documents.notes import Notes, folders_path
from memory.documents.roots import archived_path, existing_folder, is_utf8
from memory.documents.scan import KnownFiles, Scan, ScanProblems
from memory.documents.sessions import Imports, Sessions, Transcripts
from memory.documents.sources import DocumentSource
from schemas.agents import Scope
from schemas.documents import DocumentKey, FileStat
from schemas.settings import AgentSettings, Settings

if TYPE_CHECKING:
    from memory.store.postgres.documents import FleetDocuments

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

#: One answer for every path from outside that is not a document: a client must not learn which check it failed.
_NOT_A_DOCUMENT = "this path is not a document of the agent's memory"


@dataclass(frozen=True, slots=True)
class WatchRoot:
    """Place that a watcher looks at.

    If `recursive`, it watches all below `path` but ignored folders, else what is right inside it. For an extra path
    that is a file, `path` is the file.
    """

    path: Path
    recursive: bool


class AgentFiles:
    """Documents of one agent, by their sources. Safe to use from several threads.

    No document is cached: every call looks at the disk as it is now. Paths are absolute, keys may be of any source.

    `imports` names the file that lists imported folders of transcripts (`memory.documents.imports`); it is read again
    when it changes. `drafted` imports count as if they were in it already. An agent whose sources leave out transcripts
    has none. `folders` names the record of the folders of notes (`memory.documents.notes`). With `arrived`, the
    documents are those that machines sent to a fleet, and none on this disk.
    """

    def __init__(
        self,
        agent: AgentSettings,
        *,
        imports: Path | None = None,
        drafted: Sequence[ImportedFolder] = (),
        folders: Path | None = None,
        arrived: FleetDocuments | None = None,
    ) -> None:
        self._workspace = os.path.normpath(agent.workspace)
        self._imports = Imports(agent, imports, drafted)
        self.notes = Notes(agent, record=folders)
        self._sessions = Sessions(agent, self._imports)
        self.transcripts: Sequence[Transcripts] = (self._sessions, self._imports)
        if arrived is not None:
            from memory.documents.arrived import ArrivedNotes, ArrivedTranscripts

            self.notes, self.transcripts = ArrivedNotes(agent, arrived), (ArrivedTranscripts(agent, arrived),)
        self.sources: Sequence[DocumentSource] = (self.notes, *self.transcripts)
        #: Sessions that the settings let see private transcripts.
        self.private_transcripts = agent.scope.private_transcripts

    @classmethod
    def of(cls, settings: Settings, agent: AgentSettings, *, drafted: Sequence[ImportedFolder] = ()) -> Self:
        """Return the files of an agent of this home, with imported folders and `drafted` ones.

        The documents of an agent of a fleet's directory are those that arrived.
        """
        if settings.store.url is not None and agent.workspace == Scope.of(agent.id).workspace(settings.home):
            from memory.store.postgres.connection import Database
            from memory.store.postgres.documents import FleetDocuments

            return cls(agent, arrived=FleetDocuments(Database.of(settings.store), Scope.of(agent.id)))
        imports, folders = imports_path(settings.home, agent.id), folders_path(settings.home, agent.id)
        return cls(agent, imports=imports, drafted=drafted, folders=folders)

    def source_of(self, key: DocumentKey) -> DocumentSource:
        """Return the source that has a document."""
        return next((source for source in self.sources if source.owns(key)), self.notes)

    def transcripts_of(self, key: DocumentKey) -> Transcripts:
        """Return the source that has a transcript."""
        return next((source for source in self.transcripts if source.owns(key)), self.transcripts[0])

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
        problems = ScanProblems()
        documents: dict[DocumentKey, FileStat] = {}
        archived: set[str] = set()
        for source in self.sources:
            for key, stat in source.walk(problems, entering) if imported or not source.on_demand else ():
                if but is None or but.differs(key, stat):
                    documents[key] = stat
                elif (session := archived_path(key.path)) is not None:
                    archived.add(session)
        self._imports.check(problems)
        return Scan(
            documents=documents,
            problems=problems.conditions(),
            unlisted=tuple(problems.unlisted),
            unchanged=but.unchanged if but is not None else 0,
            archived=frozenset(archived),
            left_out=problems.left_out,
        )

    def rows_in(self, folder: str) -> dict[DocumentKey, FileStat]:
        """Return the sessions of the database in a folder, and their states. Raises like `Sessions.rows_in`."""
        return self._sessions.rows_in(folder)

    def transcripts_at(self, place: str) -> frozenset[str]:
        """Return the paths of the transcripts of conversations at one place."""
        return frozenset(path for source in self.transcripts for path in source.at(place))

    def key_of(self, path: str | os.PathLike[str]) -> DocumentKey | None:
        """Return the document that an absolute path names; None if, by name, it is none or is left out.

        It need not exist.
        """
        key, reason = self._named_by(path)
        return key if reason is None else None

    def reason_of(self, path: str | os.PathLike[str]) -> str | None:
        """Return why a file that would be a document is left out (as in `Scan.left_out`); None if it is not one."""
        return self._named_by(path)[1]

    def _named_by(self, path: str | os.PathLike[str]) -> tuple[DocumentKey | None, str | None]:
        """Return the document that an absolute path names, and why it is left out."""
        text = os.fspath(path)
        if not text.startswith("/") or "\0" in text or ".." in text.split("/"):
            return None, None
        normal = os.path.normpath(text)
        return next((naming for source in self.sources if (naming := source.key_of(normal)) is not None), (None, None))

    def resolve(self, path_text: str) -> DocumentKey:
        """Return the document that a path from outside names.

        The path is relative to the workspace, absolute, or as search results name transcripts ("sessions/..."). Only
        its name counts: `read` finds out if the file exists and is readable.

        Raises:
            DocumentRefused: it is not, by name, a document of this agent. The message is always the same.
        """
        if 0 < len(path_text) <= _MAX_PATH_CHARS and not path_text.endswith("/") and is_utf8(path_text):
            # A transcript's name comes first: the workspace may hold the very folder of the transcripts.
            relative = self.transcripts if not path_text.startswith("/") else ()
            names = (source.named(path_text) for source in relative)
            key = next((key for key in names if key is not None), None)
            key = key or self.key_of(os.path.join(self._workspace, path_text))  # noqa: PTH118 - text, not yet a path
            if key is not None:
                return key
        raise DocumentRefused(_NOT_A_DOCUMENT)

    def path_of(self, key: DocumentKey) -> Path:
        """Return the absolute path of a document's file, or of where it would be."""
        return self.source_of(key).path_of(key) or Path(self._workspace, key.path)

    def left_out(self, keys: Collection[DocumentKey]) -> set[DocumentKey]:
        """Return those transcripts that are left out, though their files may be there."""
        return {key for source in self.transcripts for key in source.left_out(keys)}

    def look_up(self, keys: Collection[DocumentKey]) -> None:
        """Read the facts of documents at once, where that is cheaper than one by one."""
        for source in self.sources:
            source.look_up([key for key in keys if source.owns(key)])

    def stat(self, key: DocumentKey) -> FileStat | None:
        """Return the stat of a document's file; None if it is gone, or not a regular file of this agent.

        Raises:
            DocumentUnreadable, Transient: the system does not tell.
        """
        return self.source_of(key).stat(key)

    def read(self, key: DocumentKey) -> SourceText:
        """Return a note's whole text as it is now. May wait some milliseconds for a file that was just written.

        Raises:
            DocumentGone, DocumentRefused, DocumentUnreadable: see there.
            Transient: it keeps changing, or the system is out of descriptors.
        """
        return self.source_of(key).read(key)

    def opened(self, key: DocumentKey, *, settled: bool = True) -> AbstractContextManager[OpenTranscript]:
        """Open a transcript for reading. May wait some milliseconds for a file that was just written.

        Without `settled` it does not wait, and its stat must not be remembered: a later write may leave it the same.

        Raises:
            DocumentGone, DocumentRefused, DocumentUnreadable: see there; also what reading raises inside.
            Transient: it is being replaced, or the system is out of descriptors.
        """
        return self.source_of(key).opened(key, settled=settled)

    def root_is_there(self, key: DocumentKey) -> bool:
        """Return True if every configured folder that may hold the document exists.

        The absence of a folder (a disk that is not mounted, a folder that is being moved) tells nothing of documents.
        """
        return self.source_of(key).is_there(key)

    def spans(self, path: str) -> bool:
        """Return True if an absolute path, of a folder say, lies in one of the agent's folders of documents."""
        roots = [root.path for root in self.watch_roots() if root.recursive]
        return ".." not in path.split("/") and any(Path(path).is_relative_to(root) for root in roots)

    def watch_roots(self) -> list[WatchRoot]:
        """Return the folders to watch, so that no change of a document, and no root that comes or goes, is missed."""
        watched = {existing_folder(self._workspace): False}
        for path, recursive in (place for source in self.sources for place in source.watched()):
            watched[path] = watched.get(path, False) or recursive
        return [WatchRoot(Path(path), recursive) for path, recursive in watched.items()]
