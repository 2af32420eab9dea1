"""Sources of documents: each names, finds, opens and forgets the documents of one kind.

Callers need keys and content, no paths. A source whose documents are no files has no roots; it answers `walk`, `stat`,
`is_there`, `read` and `opened` by itself.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from memory.documents.content import DocumentGone, DocumentRefused, OpenTranscript, SourceText, opened_below, stat_below
from memory.documents.roots import Place, Root, existing_folder, join, nearest
from memory.documents.scan import EXCLUDED, Scan, ScanProblems, file_stat
from schemas.conditions import ConditionCode
from schemas.documents import DocumentKey, FileStat

if TYPE_CHECKING:
    from memory.store.reader import StoreReader

#: Return why a document of a root is left out, by its path in keys: `EXCLUDED` or the kind of its session.
ReasonOf: TypeAlias = Callable[[Root, str], str | None]

#: Gets each folder before it is listed.
Entering: TypeAlias = Callable[[str], object] | None

Documents: TypeAlias = Iterator[tuple[DocumentKey, FileStat]]


class DocumentSource(ABC):
    """Documents of one kind. Safe to use from several threads; every call looks at the documents as they are now."""

    #: `source` of its keys.
    name: ClassVar[str]
    #: True if a scan includes its documents only on request.
    on_demand: ClassVar[bool] = False
    #: Condition of a folder that is not there.
    missing: ClassVar[ConditionCode | None] = None

    @abstractmethod
    def roots(self) -> Sequence[Root]:
        """Return the folders of the documents as the disk is now."""

    @abstractmethod
    def listed(self, root: Root, problems: ScanProblems, entering: Entering = None) -> Documents:
        """Yield the documents of a root."""

    def look_up(self, keys: Collection[DocumentKey]) -> None:  # noqa: B027 - a disk is quick
        """Read the facts of documents at once, where that is cheaper than one by one."""

    @abstractmethod
    def read(self, key: DocumentKey) -> SourceText:
        """Return the whole text of a document; see `AgentFiles.read`."""

    @abstractmethod
    def opened(self, key: DocumentKey, *, settled: bool = True) -> AbstractContextManager[OpenTranscript]:
        """Open a document that is read line by line; see `AgentFiles.opened`."""

    @abstractmethod
    def forgets(self, keys: Collection[DocumentKey], reader: StoreReader | None, scan: Scan | None) -> set[DocumentKey]:
        """Return those of its absent documents that the index must forget.

        With a `scan`, only those that it does not hide. Without a `reader` of the index, perhaps too many.
        """

    def walk(self, problems: ScanProblems, entering: Entering = None) -> Documents:
        """Yield each document once. Costs a stat for each and a listing for each folder."""
        for root in self.roots():
            if root.covering is None:
                yield from self.listed(root, problems, entering)

    def reasons(self) -> ReasonOf:
        """Return the filter of documents for one question."""
        return excluded

    def owns(self, key: DocumentKey) -> bool:
        """Return True if a key belongs to this source, by its form."""
        return key.source == self.name

    def holders(self, key: DocumentKey) -> list[Place]:
        """Return the roots that hold a document by name, left out or not, and its components below each."""
        return [
            (root, parts)
            for root in self.roots()
            if root.covering is None and (parts := root.named(key.path)) and root.rule.holds(parts)
        ]

    def places(self, key: DocumentKey) -> list[Place]:
        """Return the roots that may hold a document, the likeliest first, and its components below each."""
        if key.source != self.name or "\0" in key.path:
            return []
        reason_of = self.reasons()
        return [place for place in self.holders(key) if reason_of(place[0], key.path) is None]

    def files(self, key: DocumentKey) -> Iterator[Place]:
        """Yield the places of the files that may hold a document; the first existing one counts."""
        yield from self.places(key)

    def key_of(self, path: str) -> tuple[DocumentKey, str | None] | None:
        """Return the document that a normal absolute path names, and why it is left out; None if it names none."""
        place = nearest(self.roots(), path)
        if place is None:
            return None
        root, parts = place
        key_path = join(root.prefix, *parts)
        return DocumentKey(self.name, key_path), self.reasons()(root, key_path)

    def path_of(self, key: DocumentKey) -> Path | None:
        """Return the path of a document's file, or of where it would be."""
        files = [Path(root.path, *parts) for root, parts in self.files(key)]
        return next((path for path in files if os.path.lexists(path)), files[0] if files else None)

    def stat(self, key: DocumentKey) -> FileStat | None:
        """Return the state of a document; see `AgentFiles.stat`."""
        for root, parts in self.files(key):
            result = stat_below(root.folder, (*root.below, *parts), name=key.path)
            if result is not None:
                return file_stat(result)
        return None

    def enter(self, stack: ExitStack, key: DocumentKey) -> tuple[Root, tuple[str, ...], int]:
        """Open the first of a document's files that is there."""
        refused: DocumentRefused | None = None
        for root, parts in self.files(key):
            try:
                descriptor = stack.enter_context(opened_below(root.folder, (*root.below, *parts), name=key.path))
            except DocumentGone:
                continue
            except DocumentRefused as error:
                refused = refused or error
            else:
                return root, parts, descriptor
        raise refused or DocumentGone(f"{key.path} is not there")

    def is_there(self, key: DocumentKey) -> bool:
        """Return True if every folder that may hold the document exists; see `AgentFiles.root_is_there`."""
        return all(os.path.isdir(root.folder) for root, _ in self.places(key))  # noqa: PTH112 - Path may raise

    def hides(self, key: DocumentKey, scan: Scan) -> bool:
        """Return True if a scan could not look where a document may be."""
        places = self.places(key) if not scan.complete else ()
        return any(scan.hides(join(root.path, *parts)) for root, parts in places)

    def watched(self) -> Iterator[tuple[str, bool]]:
        """Yield the folders and files to watch; True for a folder with all below it."""
        for root in self.roots():
            if root.covering is None:
                yield from self.watched_of(root)

    def watched_of(self, root: Root) -> Iterator[tuple[str, bool]]:
        """Yield the folder to watch for a root: its own, or the nearest existing folder above."""
        if not root.excludes(root.prefix, is_folder=True):
            recursive = os.path.isdir(root.path)  # noqa: PTH112 - Path raises for what is locked away
            if not root.below or (recursive and not os.path.islink(root.path)):  # noqa: PTH114 - Path may raise
                yield root.path if recursive else existing_folder(root.path), recursive


def excluded(root: Root, path: str) -> str | None:
    """Return `EXCLUDED` for a document that globs leave out."""
    return EXCLUDED if root.excludes(path) else None
