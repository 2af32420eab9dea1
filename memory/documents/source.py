"""Source of documents: notes or transcripts, found on disk, named by keys and opened safely."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path

from memory.documents.content import SourceText
from memory.documents.scan import KnownFiles, Scan
from memory.store.reader import StoreReader
from schemas.documents import DocumentKey, FileStat


class DocumentSource(ABC):
    """Source of an agent's documents. Nothing is cached: every call looks at the disk as it is now.

    Paths are absolute and in their normal form. Keys may be those of any source; a source has nothing of another's.
    """

    @abstractmethod
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

    @abstractmethod
    def key_of(self, path: str) -> DocumentKey | None:
        """Return the document that a path names; None if, by name, it is none or is left out. It need not exist."""

    @abstractmethod
    def reason_of(self, path: str) -> str | None:
        """Return why a file that would be a document is left out (as in `Scan.left_out`); None if it is not one."""

    @abstractmethod
    def path_of(self, key: DocumentKey) -> Path | None:
        """Return the path of a document's file, or of where it would be; None for no document of this source."""

    @abstractmethod
    def stat(self, key: DocumentKey) -> FileStat | None:
        """Return the stat of a document; None if it is gone, or not a regular file of this source.

        Raises:
            DocumentUnreadable, Transient: the system does not tell.
        """

    @abstractmethod
    def read(self, key: DocumentKey) -> SourceText:
        """Return a document's whole text as it is now. May wait some milliseconds for a file that was just written.

        Raises:
            DocumentGone, DocumentRefused, DocumentUnreadable: see there.
            Transient: it keeps changing, or the system is out of descriptors.
        """

    @abstractmethod
    def root_is_there(self, key: DocumentKey) -> bool:
        """Return True if every configured folder that may hold the document exists.

        The absence of a folder (a disk that is not mounted, a folder that is being moved) tells nothing of documents.
        """

    @abstractmethod
    def forgets(self, key: DocumentKey, reader: StoreReader | None = None) -> bool:
        """Return True if the index must forget an absent document. Without a `reader` of it, True may be wrong."""

    @abstractmethod
    def watch_roots(self) -> Iterator[tuple[str, bool]]:
        """Yield the paths to watch, and whether with all below."""


def existing_folder(path: str) -> str:
    """Return the folder itself, or the nearest one above it that is there."""
    folders = map(str, (Path(path), *Path(path).parents))
    return next((folder for folder in folders if os.path.isdir(folder)), os.sep)  # noqa: PTH112 - Path may raise
