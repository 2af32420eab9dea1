"""Long-term memory is the owner's alone: sessions that others may listen to neither find it nor read it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from memory.agent_files import AgentFiles, DocumentRefused
from memory.document_roots import LONG_TERM_NAMES
from memory.scanning import MEMORY_SOURCE
from memory.search.scope import Session
from memory.store.letters import FORGOTTEN
from memory.store.reader import StoreReader
from schemas.documents import DocumentKey
from schemas.errors import RecalldError

_NAMES = frozenset(name.casefold() for name in LONG_TERM_NAMES)


@dataclass(frozen=True, slots=True)
class LongTerm:
    """Tells long-term memory from other documents of an index, whatever they are called: a hard link to one of the
    workspace's long-term files is that file, and so it was if it was one when the two were indexed.

    `inodes`: what the disk calls these files now.
    """

    inodes: frozenset[int]

    def __call__(self, reader: StoreReader, keys: Collection[DocumentKey]) -> frozenset[DocumentKey]:
        """Those of some documents that are long-term memory."""
        inodes = self.inodes | set(_indexed_inodes(reader))
        return frozenset(key for key in keys if is_long_term(key) or _is_one_of(reader, key, inodes))


def withheld_from(session: Session, files: AgentFiles) -> LongTerm | None:
    """Which documents a search for this session must not find; None when it may find all."""
    return None if session.is_private else LongTerm(frozenset(_inodes_on_disk(files)))


def is_long_term(key: DocumentKey) -> bool:
    """Whether a document is long-term memory by its name: MEMORY.md, wherever it lies and however it is written.

    A disk that does not tell upper from lower case opens the file by any of the spellings.
    """
    return key.source == MEMORY_SOURCE and key.path.rpartition("/")[2].casefold() in _NAMES


def resolve_for(session: Session, files: AgentFiles, path: str) -> DocumentKey:
    """The document that a path from outside names, if the session may read it.

    Raises:
        DocumentRefused: like `AgentFiles.resolve`; to who may not read it, long-term memory is no document.
    """
    key = files.resolve(path)
    if not session.is_private and (is_long_term(key) or _is_the_same_file(files, key)):
        raise DocumentRefused("long-term memory is for private sessions")
    return key


def _inodes_on_disk(files: AgentFiles) -> Iterator[int]:
    for name in LONG_TERM_NAMES:
        try:
            stat = files.stat(DocumentKey(MEMORY_SOURCE, name))
        except RecalldError:
            continue  # what has been indexed of it is known by the index
        if stat is not None:
            yield stat.inode


def _indexed_inodes(reader: StoreReader) -> Iterator[int]:
    for name in LONG_TERM_NAMES:
        indexed = reader.file(DocumentKey(MEMORY_SOURCE, name))
        if indexed is not None and indexed.stat != FORGOTTEN:
            yield indexed.stat.inode


def _is_one_of(reader: StoreReader, key: DocumentKey, inodes: Collection[int]) -> bool:
    """Whether what the index has of a document was read from one of these files."""
    indexed = reader.file(key) if inodes and key.source == MEMORY_SOURCE else None
    # Of what is to be read anew nobody knows what it was read from: rather withheld than shown to strangers.
    return indexed is not None and (indexed.stat == FORGOTTEN or indexed.stat.inode in inodes)


def _is_the_same_file(files: AgentFiles, key: DocumentKey) -> bool:
    """Whether a disk with rules of its own, or a hard link, gives long-term memory this name, too."""
    if key.source != MEMORY_SOURCE:
        return False
    try:
        asked = files.stat(key)
        kept = [files.stat(DocumentKey(MEMORY_SOURCE, name)) for name in LONG_TERM_NAMES]
    except RecalldError:
        return True  # rather refused than shown to strangers
    return asked is not None and any(stat is not None and stat.inode == asked.inode for stat in kept)
