"""Documents of a fleet's agents in PostgreSQL, as machines sent them (`memory.store.postgres.arrivals`).

Of a note on several machines, the version that arrived last is the document.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

from memory.store.postgres.connection import Connection, Database
from schemas.agents import Scope
from schemas.documents import DocumentKey, FileStat

#: Parts that are read at a time.
_PARTS_PAGE = 4

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

    def held(self, key: DocumentKey) -> HeldDocument | None:
        """Return a document as it is now, None without it."""
        with self._reading() as connection:
            rows = self._database.once(
                connection,
                ("document", self._scope, key),
                lambda: connection.execute(SELECT_ONE, self._names(key)).fetchall(),
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
                rows = connection.execute(SELECT_CONTENT, {**names, "first": first, "end": end}).fetchall()
            for place, stored, content in rows:
                yield content, stored, max(0, first - place)
                first = place + stored
            if not rows:
                return

    def _names(self, key: DocumentKey | None = None, machine: str = "") -> dict[str, object]:
        names: dict[str, object] = {"tenant": self._scope.tenant, "agent": self._scope.agent, "machine": machine}
        return names if key is None else {**names, "source": key.source, "path": key.path}

    def _reading(self) -> AbstractContextManager[Connection]:
        return self._database.reading(self._scope)


def _stat(stored: int, arrived_ns: int, version: int) -> FileStat:
    return FileStat(size=stored, mtime_ns=arrived_ns, inode=version)
