"""Documents of one agent on disk, whichever source they are of."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Self

from memory.documents.content import OpenTranscript, SourceText
from memory.documents.imports import ImportedFolder, imports_path
from memory.documents.notes import Notes
from memory.documents.roots import IGNORED_DIRECTORIES, LONG_TERM_NAMES, is_personal, is_utf8, note_date
from memory.documents.safe_open import DocumentGone, DocumentRefused, DocumentUnreadable
from memory.documents.scan import KnownFiles, Scan
from memory.documents.session_roots import is_transcript_name
from memory.documents.source import DocumentSource
from memory.documents.transcripts import Transcripts
from memory.store.reader import StoreReader
from schemas.documents import MEMORY_SOURCE, SESSIONS_SOURCE, DocumentKey, FileStat
from schemas.settings import AgentSettings, Settings

__all__ = [
    "IGNORED_DIRECTORIES",
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
    """Documents of one agent: its `notes` and its `transcripts`. Safe to use from several threads.

    Each method asks the source of a key, or both (`DocumentSource` has the contracts). `imports` names the file that
    lists imported folders of transcripts (`memory.documents.imports`).
    """

    def __init__(
        self, agent: AgentSettings, *, imports: Path | None = None, drafted: Sequence[ImportedFolder] = ()
    ) -> None:
        self._workspace = os.path.normpath(agent.workspace)
        self.notes = Notes(agent)
        self.transcripts = Transcripts(agent, imports=imports, drafted=drafted)
        self._sources: dict[str, DocumentSource] = {MEMORY_SOURCE: self.notes, SESSIONS_SOURCE: self.transcripts}

    @classmethod
    def of(cls, settings: Settings, agent: AgentSettings, *, drafted: Sequence[ImportedFolder] = ()) -> Self:
        """Return the files of an agent of this home, with imported folders and `drafted` ones."""
        return cls(agent, imports=imports_path(settings.home, agent.id), drafted=drafted)

    def scan(
        self,
        *,
        imported: bool = False,
        but: KnownFiles | None = None,
        entering: Callable[[str], object] | None = None,
    ) -> Scan:
        """Return all documents and their stat, those of `imported` folders only if asked for."""
        transcripts = self.transcripts.scan(imported=imported, but=but, entering=entering)
        return self.notes.scan(but=but, entering=entering) | transcripts

    def key_of(self, path: str | os.PathLike[str]) -> DocumentKey | None:
        """Return the document that an absolute path names; None if, by name, it is none or is left out."""
        text = _normal(path)
        return None if text is None else self.notes.key_of(text) or self.transcripts.key_of(text)

    def reason_of(self, path: str | os.PathLike[str]) -> str | None:
        """Return why a file that would be a document is left out (as in `Scan.left_out`); None if it is not one."""
        text = _normal(path)
        if text is None or self.notes.key_of(text) is not None:
            return None
        return self.notes.reason_of(text) or self.transcripts.reason_of(text)

    def path_of(self, key: DocumentKey) -> Path:
        """Return the absolute path of a document's file, or of where it would be."""
        return self._source(key).path_of(key) or Path(self._workspace, key.path)

    def stat(self, key: DocumentKey) -> FileStat | None:
        """Return the stat of a document; None if it is gone, or not a regular file of this agent."""
        return self._source(key).stat(key)

    def read(self, key: DocumentKey) -> SourceText:
        """Return a note's text as it is now."""
        return self._source(key).read(key)

    def root_is_there(self, key: DocumentKey) -> bool:
        """Return True if every configured folder that may hold the document exists."""
        return self._source(key).root_is_there(key)

    def forgets(self, key: DocumentKey, reader: StoreReader | None = None) -> bool:
        """Return True if the index must forget an absent document. Without a `reader` of it, True may be wrong."""
        return self._source(key).forgets(key, reader)

    def resolve(self, path_text: str) -> DocumentKey:
        """Return the document that a path from outside names.

        The path is relative to the workspace, absolute, or as search results name transcripts ("sessions/..."). Only
        its name counts: `read` finds out if the file exists and is readable.

        Raises:
            DocumentRefused: it is not, by name, a document of this agent. The message is always the same.
        """
        fits = 0 < len(path_text) <= _MAX_PATH_CHARS and not path_text.endswith("/") and is_utf8(path_text)
        # A transcript's name in search results comes first: the workspace may hold the very folder of the transcripts.
        key = self.transcripts.key_named(path_text) if fits and not path_text.startswith("/") else None
        if key is None and fits:
            key = self.key_of(os.path.join(self._workspace, path_text))  # noqa: PTH118 - text, not yet a path
        if key is None:
            raise DocumentRefused(_NOT_A_DOCUMENT)
        return key

    def watch_roots(self) -> list[WatchRoot]:
        """Return what to watch, so that no change of a document, and no root that comes or goes, is missed."""
        roots: dict[str, bool] = {}
        for source in self._sources.values():
            for path, recursive in source.watch_roots():
                roots[path] = roots.get(path, False) or recursive
        return [WatchRoot(Path(path), recursive) for path, recursive in roots.items()]

    def _source(self, key: DocumentKey) -> DocumentSource:
        return self._sources.get(key.source, self.notes)  # notes have nothing of an unknown source


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


def _normal(path: str | os.PathLike[str]) -> str | None:
    """Return an absolute path in its normal form; None for what names no document."""
    text = os.fspath(path)
    return os.path.normpath(text) if text.startswith("/") and "\0" not in text and ".." not in text.split("/") else None
