"""Reading of the embedding cache, by the query service and by estimates: no use is counted, and nothing is written."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from memory.embedding.table_reader import ReadTables, table_reader
from memory.embedding.vectors import matrix_from_bytes16, sound_rows16
from memory.store.durable_tables import Row
from memory.store.reader import Vector
from schemas.agents import SHARED_CACHE
from schemas.settings import Settings

#: `PRAGMA user_version` of the file.
VERSION = 1

LOOK_UP = "SELECT hash, vector, used FROM {embeddings} WHERE {mine} AND identity = {identity} AND hash {in_keys}"
HOLDS = "SELECT hash, hash FROM {embeddings} WHERE {mine} AND identity = {identity} AND hash {in_keys}"
COUNT = "SELECT count(*) FROM {embeddings} WHERE {mine}"


def cache_path(home: Path) -> Path:
    """Return the path of a home's cache."""
    return home / "cache" / "embeddings.sqlite"


def cache_tenant(settings: Settings, tenant: str) -> str:
    """Return the owner of the rows that hold a tenant's vectors."""
    return SHARED_CACHE if settings.cache.shared else tenant


class EmbeddingCacheReader:
    """Vectors in a cache, read by a function of `table_reader`. A cache that cannot be read right now holds none."""

    def __init__(self, read: ReadTables) -> None:
        self._read = read

    @classmethod
    def of(cls, settings: Settings, tenant: str) -> Self:
        """Return the reader of a home's cache, or of a fleet's tenant."""
        return cls(table_reader(settings, cache_tenant(settings, tenant), cache_path(settings.home), VERSION))

    def get_many(self, identity: str, hashes: Sequence[str]) -> dict[str, Vector]:
        """Return the vectors that are there, by text hash; float32 unit vectors as they were put."""
        return decoded(by_text_hash(self._read(LOOK_UP, looked_up(identity, hashes)), hashes))

    def holds(self, identity: str, hashes: Sequence[str]) -> set[str]:
        """Return those of the texts that are there."""
        return set(by_text_hash(self._read(HOLDS, looked_up(identity, hashes)), hashes))

    def entries(self) -> int:
        """Return the number of vectors."""
        return sum(count for (count,) in self._read(COUNT, {}))


def looked_up(identity: str, hashes: Iterable[str]) -> Row:
    """Return the values of a look-up."""
    return {"identity": identity, "keys": list(map(hash_key, hashes))}


def by_text_hash(rows: Iterable[tuple[Any, ...]], hashes: Iterable[str]) -> dict[str, bytes]:
    """Return the second column of a look-up's rows by text hash."""
    text_hashes = {hash_key(text_hash): text_hash for text_hash in hashes}
    return {text_hashes[key]: blob for key, blob, *_ in rows}


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
