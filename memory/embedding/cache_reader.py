"""Reading of the embedding cache, by the query service and by estimates: no use is counted, and nothing is written."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import apsw

from memory.embedding.vectors import matrix_from_bytes16, sound_rows16
from memory.store.reader import Vector
from memory.store.sqlite_file import read_durable

#: `PRAGMA user_version` of the file.
VERSION = 1

IDENTITY = "SELECT id FROM identities WHERE identity = ?"

#: Hashes in one look-up; SQLite's default bound of parameters is far above.
_GROUP = 400


def cache_path(home: Path) -> Path:
    """Return the path of a home's cache."""
    return home / "cache" / "embeddings.sqlite"


class EmbeddingCacheReader:
    """Vectors in the cache file at a path. A file that cannot be read right now holds none."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def get_many(self, identity: str, hashes: Sequence[str]) -> dict[str, Vector]:
        """Return the vectors that are there, by text hash; float32 unit vectors as they were put."""
        no_rows: dict[str, tuple[int, bytes, int]] = {}
        rows = read_durable(self._path, VERSION, lambda file: look_up(file, identity, hashes), no_rows)
        return decoded({text_hash: blob for text_hash, (_, blob, _) in rows.items()})

    def holds(self, identity: str, hashes: Sequence[str]) -> set[str]:
        """Return those of the texts that are there."""
        no_hashes: set[str] = set()
        return read_durable(
            self._path, VERSION, lambda file: set(look_up(file, identity, hashes, column="x''")), no_hashes
        )

    def entries(self) -> int:
        """Return the number of vectors."""
        return read_durable(self._path, VERSION, count_entries, 0)


def look_up(
    connection: apsw.Connection, identity: str, hashes: Sequence[str], *, column: str = "vector"
) -> dict[str, tuple[int, bytes, int]]:
    """Return row, vector and day of last use of the texts that are there."""
    rows_by_hash: dict[str, tuple[int, bytes, int]] = {}
    for start in range(0, len(hashes), _GROUP):
        group = {hash_key(text_hash): text_hash for text_hash in hashes[start : start + _GROUP]}
        placeholders = ",".join("?" * len(group))
        rows = connection.execute(
            f"SELECT id, hash, {column}, used FROM embeddings"  # noqa: S608 - constants and question marks
            f" WHERE identity = ({IDENTITY}) AND hash IN ({placeholders})",
            (identity, *group),
        )
        rows_by_hash.update((group[key], (row, blob, used)) for row, key, blob, used in rows)
    return rows_by_hash


def count_entries(connection: apsw.Connection) -> int:
    """Return the number of vectors."""
    return int(next(connection.execute("SELECT count(*) FROM embeddings"))[0])


def decoded(blobs: Mapping[str, bytes]) -> dict[str, Vector]:
    """Return the vectors of all sound blobs. All vectors of an identity have one width; SQLite does not verify
    pages."""
    widths = Counter(map(len, blobs.values())).most_common(1)
    if not widths or widths[0][0] % 2 or not widths[0][0]:
        return {}
    blobs = {text_hash: blob for text_hash, blob in blobs.items() if len(blob) == widths[0][0]}
    sound = sound_rows16(list(blobs.values()))
    if not sound.all():
        blobs = {text_hash: blob for (text_hash, blob), good in zip(blobs.items(), sound, strict=True) if good}
    return dict(zip(blobs, matrix_from_bytes16(list(blobs.values())), strict=True)) if blobs else {}


def hash_key(text_hash: str) -> bytes:
    """Return the bytes of a hexadecimal hash, half as many as its digits; any other text as it is."""
    if len(text_hash) == 32:
        with contextlib.suppress(ValueError):
            return bytes.fromhex(text_hash)
    return text_hash.encode()
