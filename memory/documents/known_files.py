"""What an index knows of the files, as small as it can be, to compare a listing of the disk with."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from memory.store.reader import IndexedFile
from schemas.documents import DocumentKey, FileStat

# Inode numbers have no sign; a size has one where it is forgotten (`memory.store.dead_letters.FORGOTTEN`).
_STAT = struct.Struct("<qqQq")


class KnownFiles:
    """Documents of an index without their names: about 170 bytes each. Every document that is on the disk is shown to
    it, by `differs`; what was not is `absent` then, and only that is read from the index once more.

    Names are told apart by the hash of 64 bits that Python gives a string, another one in every process. Of a million
    documents two have the same one in one of forty million processes; one of them is looked at in vain there.
    """

    def __init__(self, files: Iterable[IndexedFile] = ()) -> None:
        # None: it was shown.
        self._stats: dict[int, bytes | None] = {hash(file.key): _packed(file.stat) for file in files}
        #: How many were not shown.
        self.absentees = len(self._stats)
        #: How many of those that were shown are as the index knows them.
        self.unchanged = 0

    def __len__(self) -> int:
        return len(self._stats)

    def __contains__(self, key: DocumentKey) -> bool:
        return hash(key) in self._stats

    def differs(self, key: DocumentKey, stat: FileStat) -> bool:
        """Whether a document on the disk is new or changed. What the index knows counts the first time only."""
        name = hash(key)
        known = self._stats.get(name)
        if known is None:
            return name not in self._stats
        self._stats[name] = None
        self.absentees -= 1
        if not FileStat(*_STAT.unpack(known)).agrees_with(stat):
            return True
        self.unchanged += 1
        return False

    def absent(self, files: Iterable[IndexedFile]) -> list[DocumentKey]:
        """Those that were never shown. `files`: the same index's, read only if there are any."""
        if not self.absentees:
            return []
        return [file.key for file in files if self._stats.get(hash(file.key)) is not None]


def _packed(stat: FileStat) -> bytes:
    return _STAT.pack(stat.size, stat.mtime_ns, stat.inode, stat.ctime_ns)
