"""Protection of long-term memory: sessions in which others may listen neither find it nor read it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from memory.documents.agent_files import AgentFiles, DocumentRefused
from memory.documents.roots import LONG_TERM_NAMES, is_personal
from memory.search.scope import Session
from memory.store.dead_letters import FORGOTTEN
from memory.store.reader import StoreReader
from schemas.documents import MEMORY_SOURCE, DocumentKey, FileStat
from schemas.errors import RecalldError

_NAMES = frozenset(name.casefold() for name in LONG_TERM_NAMES)


@dataclass(frozen=True, slots=True)
class Withheld:
    """Documents that are withheld from a session, also under other names.

    A hard link to such a file is that file, also if it was a hard link when it was indexed. `names` recognizes such a
    document by its name, `kept` are those of the workspace, `inodes` are their numbers on the disk.
    """

    names: Callable[[DocumentKey], bool]
    kept: frozenset[DocumentKey]
    inodes: frozenset[int]

    def __call__(self, reader: StoreReader, keys: Collection[DocumentKey]) -> frozenset[DocumentKey]:
        """Return those documents among `keys` that are withheld."""
        inodes = self.inodes | set(_indexed_inodes(reader, self.kept))
        return frozenset(key for key in keys if self.names(key) or _is_one_of(reader, key, inodes))


def withheld_from(session: Session, files: AgentFiles) -> Withheld | None:
    """Return the documents that a search of this session must not find; None if it may find all.

    Notes about one of several people are for the owner alone: a session key names a sender, and proves nothing.
    """
    if session.is_owner:
        return None
    stats: dict[DocumentKey, FileStat | None] = dict(files.notes.personal())
    if not session.is_private:
        stats |= dict(_long_term_on_disk(files))
    inodes = frozenset(stat.inode for stat in stats.values() if stat is not None)
    return Withheld(_is_personal if session.is_private else is_long_term, frozenset(stats), inodes)


def is_long_term(key: DocumentKey) -> bool:
    """Return True for long-term memory by its name: MEMORY.md or USER.md, wherever it lies and however it is written.

    A disk that does not tell upper from lower case opens the file by any of the spellings.
    """
    return not key.is_transcript and key.path.rpartition("/")[2].casefold() in _NAMES


def resolve_for(session: Session, files: AgentFiles, path: str) -> DocumentKey:
    """Return the document of a path from outside, if the session may read it.

    Raises:
        DocumentRefused: like `AgentFiles.resolve`; also for long-term memory that is withheld from the session.
    """
    key = files.resolve(path)
    withheld = withheld_from(session, files) if not key.is_transcript else None
    if withheld is not None and (withheld.names(key) or _is_the_same_file(files, key, withheld)):
        raise DocumentRefused("long-term memory is for private sessions")
    return key


def _is_personal(key: DocumentKey) -> bool:
    return not key.is_transcript and is_personal(key.path)


def _long_term_on_disk(files: AgentFiles) -> Iterator[tuple[DocumentKey, FileStat | None]]:
    for name in LONG_TERM_NAMES:
        key = DocumentKey(MEMORY_SOURCE, name)
        try:
            yield key, files.stat(key)
        except RecalldError:
            yield key, None  # the index knows the inode that it read


def _indexed_inodes(reader: StoreReader, kept: Collection[DocumentKey]) -> Iterator[int]:
    for key in kept:
        indexed = reader.file(key)
        if indexed is not None and indexed.stat != FORGOTTEN:
            yield indexed.stat.inode


def _is_one_of(reader: StoreReader, key: DocumentKey, inodes: Collection[int]) -> bool:
    """Return True if the index read a document from one of these files."""
    indexed = reader.file(key) if inodes and not key.is_transcript else None
    # The inode of a forgotten document is unknown. It is rather withheld than shown to strangers.
    return indexed is not None and (indexed.stat == FORGOTTEN or indexed.stat.inode in inodes)


def _is_the_same_file(files: AgentFiles, key: DocumentKey, withheld: Withheld) -> bool:
    """Return True if a withheld file has this name, too: by a hard link, or by the disk's rules for names."""
    try:
        asked = files.stat(key)
        kept = [files.stat(one) for one in withheld.kept]
    except RecalldError:
        return True  # rather refused than shown to strangers
    return asked is not None and any(stat is not None and stat.inode == asked.inode for stat in kept)
