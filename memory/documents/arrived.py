"""Documents of a fleet's agent: notes and transcripts that machines sent, in the store of the fleet.

A note's key is its path in the workspace of its machine. A transcript's key carries the machine, as in
`sessions/<machine>/<name>`.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from memory.documents.content import (
    MAX_DOCUMENT_BYTES,
    DocumentGone,
    DocumentRefused,
    OpenTranscript,
    SourceText,
    decode,
)
from memory.documents.notes import Notes
from memory.documents.roots import USERS_FOLDER, Root
from memory.documents.scan import EXCLUDED, Scan, ScanProblems
from memory.documents.sessions import Transcripts
from memory.documents.sources import Documents, DocumentSource, Entering
from memory.store.postgres.documents import FleetDocuments, HeldDocument
from memory.store.reader import StoreReader
from memory.transcripts.lines import RawLine, lines_in, unpacked
from schemas.documents import DocumentKey, FileStat
from schemas.errors import Transient
from schemas.globs import Globs, compiled
from schemas.settings import AgentSettings


class _Arrived(DocumentSource):
    """Documents that machines sent. No folder holds them."""

    _documents: FleetDocuments
    _included: Globs | None

    def roots(self) -> list[Root]:
        return []

    def listed(self, root: Root, problems: ScanProblems, entering: Entering = None) -> Documents:
        raise NotImplementedError  # there are no roots

    def walk(self, problems: ScanProblems, entering: Entering = None) -> Documents:  # noqa: ARG002 - there are no folders
        for key, stat in self._documents.all().items():
            if self.owns(key) and self._admits(key):
                yield key, stat
            elif self.owns(key):
                problems.left_out[EXCLUDED] += 1

    def look_up(self, keys: Collection[DocumentKey]) -> None:
        self._documents.look_up(keys)

    def stat(self, key: DocumentKey) -> FileStat | None:
        document = self._held(key)
        return document.stat if document is not None else None

    def is_there(self, key: DocumentKey) -> bool:  # noqa: ARG002 - a store that is away raises
        return True

    def _admits(self, key: DocumentKey) -> bool:
        return self._included is None or self._included.admits(key.path)

    def _held(self, key: DocumentKey) -> HeldDocument | None:
        return self._documents.held(key) if self.owns(key) and self._admits(key) else None

    def _present(self, key: DocumentKey) -> HeldDocument:
        if (document := self._held(key)) is None:
            raise DocumentGone(f"{key.path} is not there")
        return document


class ArrivedNotes(_Arrived, Notes):
    """Notes that machines sent. A note that is absent was deleted."""

    def __init__(self, agent: AgentSettings, documents: FleetDocuments) -> None:
        super().__init__(agent, record=None)
        self._documents, self._included = documents, compiled(agent.include, agent.exclude)

    def folders(self) -> list[str]:
        return []

    def forgets(self, keys: Collection[DocumentKey], reader: StoreReader | None, scan: Scan | None) -> set[DocumentKey]:  # noqa: ARG002 - as on a disk
        return set(keys)

    def personal(self) -> dict[DocumentKey, FileStat]:
        documents = self._documents.all().items()
        return {key: stat for key, stat in documents if key.path.startswith(f"{USERS_FOLDER}/") and self.owns(key)}

    def key_of(self, path: str) -> tuple[DocumentKey, str | None] | None:
        folder = f"{self._workspace}/"
        if not path.startswith(folder):
            return None
        key = DocumentKey(self.name, path.removeprefix(folder))
        return key, None if self._admits(key) else EXCLUDED

    def read(self, key: DocumentKey) -> SourceText:
        document = self._present(key)
        if document.stat.size > MAX_DOCUMENT_BYTES:
            raise DocumentRefused(f"{key.path} has more than the {MAX_DOCUMENT_BYTES / 1e6:.0f} MB of a note")
        content = b"".join(_blocks(self._documents, document))
        text, notes = decode(content)
        return SourceText(text, document.stat, hashlib.sha256(content).hexdigest(), notes)


class ArrivedTranscripts(_Arrived, Transcripts):
    """Transcripts that machines sent. The index forgets those that their machine removed; imported ones stay."""

    def __init__(self, agent: AgentSettings, documents: FleetDocuments) -> None:
        super().__init__(agent)
        self._documents, self._included = documents, compiled(agent.include, agent.exclude)

    def format_at(self, path: str) -> str | None:  # noqa: ARG002 - each transcript brings its own
        return None

    def format_of(self, key: DocumentKey) -> str | None:
        document = self._held(key)
        return document.format if document is not None else None

    def named(self, text: str) -> DocumentKey | None:
        return DocumentKey(self.name, text) if text.startswith(f"{self.name}/") else None

    def forgets(self, keys: Collection[DocumentKey], reader: StoreReader | None, scan: Scan | None) -> set[DocumentKey]:  # noqa: ARG002 - as on a disk
        return self.left_out(keys) | self._documents.removed(keys)

    def left_out(self, keys: Iterable[DocumentKey]) -> set[DocumentKey]:
        return {key for key in keys if self.owns(key) and not self._admits(key)}

    @contextlib.contextmanager
    def opened(self, key: DocumentKey, *, settled: bool = True) -> Iterator[OpenTranscript]:  # noqa: ARG002 - as on a disk
        document = self._present(key)
        yield _OpenArrived(document.stat, document.format, key.path, self._documents, document)


@dataclass(frozen=True, slots=True)
class _OpenArrived(OpenTranscript):
    """Transcript that a machine sent; positions are bytes of its content."""

    documents: FleetDocuments
    document: HeldDocument

    @property
    def grows(self) -> bool:
        return True

    def lines(self, position: int = 0, *, longest: int | None = None) -> Iterator[RawLine]:
        return lines_in(_blocks(self.documents, self.document, first=position), start=position, longest=longest)

    def next_position(self) -> int:
        return self.stat.size  # machines send whole lines

    def changed(self) -> bool:
        return self.documents.held(self.document.key) != self.document


def _blocks(documents: FleetDocuments, document: HeldDocument, *, first: int = 0) -> Iterator[bytes]:
    """Yield the content from byte `first` on. Raises Transient if a new version comes meanwhile."""
    missing = document.stat.size - first
    for frame, size, skip in documents.content(document, first=first):
        block = unpacked(frame, most=size)
        if block is None:
            raise Transient(f"a part of {document.key.path} is damaged in the store", retry_after=60.0)
        missing -= size - skip
        yield block[skip:]
    if missing > 0:
        raise Transient(f"{document.key.path} was replaced while it was read; it is read again", retry_after=1.0)
