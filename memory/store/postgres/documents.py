"""Documents of a fleet's agents in PostgreSQL, as machines sent them (`memory.store.postgres.arrivals`).

Of a note on several machines, the version that arrived last is the document.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

from memory.store.postgres.connection import Connection, Database, Rows
from schemas.agents import Scope
from schemas.documents import DocumentKey, FileStat

#: Parts that are read at a time, and bytes of a document that is read when it is looked up.
_PARTS_PAGE, _SMALL_BYTES = 4, 16_384

_KEY = "tenant = %(tenant)s AND agent = %(agent)s AND source = %(source)s AND path = %(path)s"
HELD = f"{_KEY} AND machine = %(machine)s"

SELECT_ALL = """
SELECT DISTINCT ON (source, path) source, path, stored, arrived_ns, version FROM recalld.documents
WHERE tenant = %(tenant)s AND agent = %(agent)s AND version > 0 ORDER BY source, path, arrived_ns DESC, machine
"""
SELECT_ONE = f"""
SELECT stored, arrived_ns, version, machine, format FROM recalld.documents WHERE {_KEY} AND version > 0
ORDER BY arrived_ns DESC, machine LIMIT 1
"""  # noqa: S608 - constants
# A limit in a sub-select has PostgreSQL look each document up by the index, however few it expects.
SELECT_WANTED = """
SELECT wanted.source, wanted.path, latest.*, part.place, part.stored, part.content
FROM unnest(%(sources)s::text[], %(paths)s::text[]) AS wanted (source, path)
CROSS JOIN LATERAL (
    SELECT stored, arrived_ns, version, machine, format FROM recalld.documents AS d
    WHERE tenant = %(tenant)s AND agent = %(agent)s AND d.source = wanted.source AND d.path = wanted.path
        AND version > 0 ORDER BY arrived_ns DESC, machine LIMIT 1
) AS latest
LEFT JOIN LATERAL (
    SELECT place, stored, content FROM recalld.document_parts AS p
    WHERE tenant = %(tenant)s AND agent = %(agent)s AND p.source = wanted.source AND p.path = wanted.path
        AND p.machine = latest.machine AND p.version = latest.version AND latest.stored <= %(small)s
    ORDER BY place LIMIT 1
) AS part ON part.stored = latest.stored
"""
SELECT_REMOVED = """
SELECT source, path FROM recalld.documents WHERE tenant = %(tenant)s AND agent = %(agent)s
    AND (source, path) IN (SELECT * FROM unnest(%(sources)s::text[], %(paths)s::text[]))
GROUP BY source, path HAVING max(version) = 0 AND max(arrived_ns) > 0
"""
SELECT_CONTENT = f"""
SELECT place, stored, content FROM recalld.document_parts
WHERE {HELD} AND version = %(version)s AND place + stored > %(first)s AND place < %(end)s
ORDER BY place LIMIT {_PARTS_PAGE}
"""  # noqa: S608 - constants


@dataclass(frozen=True, slots=True)
class HeldDocument:
    """Content of a document, as it is read. `stat`: size in bytes, time of arrival and version."""

    key: DocumentKey
    stat: FileStat
    machine: str
    format: str | None


class FleetDocuments:
    """Documents of one agent. Every method raises the errors of `Database`."""

    def __init__(self, database: Database, scope: Scope) -> None:
        self._database = database
        self._scope = scope

    def all(self) -> dict[DocumentKey, FileStat]:
        """Return all documents and their states."""
        with self._reading() as connection:
            rows = connection.execute(SELECT_ALL, self._names()).fetchall()
        return {DocumentKey(source, path): _stat(*facts) for source, path, *facts in rows}

    def look_up(self, keys: Collection[DocumentKey]) -> None:
        """Read documents at once, and the content of small ones, for the next looks of this thread's shared reads."""
        columns = {"sources": [key.source for key in keys], "paths": [key.path for key in keys], "small": _SMALL_BYTES}
        with self._reading() as connection:
            rows = connection.execute(SELECT_WANTED, {**self._names(), **columns}, binary=True).fetchall()
            facts_by_key = {DocumentKey(*row[:2]): row[2:] for row in rows}
            for key in keys:
                facts, part = facts_by_key.get(key, ())[:5], facts_by_key.get(key, ())[5:]
                self._database.keep(connection, self._query(key), [facts] if facts else [])
                if part and part[0] is not None:
                    self._database.keep(connection, self._query(key, facts[3], facts[2]), [part])

    def held(self, key: DocumentKey) -> HeldDocument | None:
        """Return a document as it is now, None without it."""
        with self._reading() as connection:
            rows = self._database.once(
                connection, self._query(key), lambda: connection.execute(SELECT_ONE, self._names(key)).fetchall()
            )
        if not rows:
            return None
        *facts, machine, format_name = rows[0]
        return HeldDocument(key, _stat(*facts), machine, format_name)

    def removed(self, keys: Collection[DocumentKey]) -> set[DocumentKey]:
        """Return those of these transcripts that their machines removed."""
        columns = {"sources": [key.source for key in keys], "paths": [key.path for key in keys]}
        with self._reading() as connection:
            return {DocumentKey(*row) for row in connection.execute(SELECT_REMOVED, {**self._names(), **columns})}

    def content(self, document: HeldDocument, *, first: int = 0) -> Iterator[tuple[bytes, int, int]]:
        """Yield the Zstandard frames of a document's content, its size then, and the bytes to skip of each.

        The content starts at byte `first`, and ends where the document ended when it was looked at. It ends early if a
        new version comes meanwhile: look at the document again.
        """
        names = {**self._names(document.key, document.machine), "version": document.stat.inode}
        end = document.stat.size
        while first < end:
            with self._reading() as connection:

                def read(connection: Connection = connection, first: int = first) -> Rows:
                    return connection.execute(SELECT_CONTENT, {**names, "first": first, "end": end}).fetchall()

                query = self._query(document.key, document.machine, document.stat.inode)
                is_small = first == 0 and end <= _SMALL_BYTES
                rows = self._database.once(connection, query, read) if is_small else read()
            for place, stored, content in rows:
                yield content, stored, max(0, first - place)
                first = place + stored
            if not rows:
                return

    def _query(self, key: DocumentKey, *version: object) -> Hashable:
        return "document", self._scope, key, *version

    def _names(self, key: DocumentKey | None = None, machine: str = "") -> dict[str, object]:
        names: dict[str, object] = {"tenant": self._scope.tenant, "agent": self._scope.agent, "machine": machine}
        return names if key is None else {**names, "source": key.source, "path": key.path}

    def _reading(self) -> AbstractContextManager[Connection]:
        return self._database.reading(self._scope)


def _stat(stored: int, arrived_ns: int, version: int) -> FileStat:
    return FileStat(size=stored, mtime_ns=arrived_ns, inode=version)
