"""Arrival of a fleet's documents in PostgreSQL: the redacted content that machines send, in parts.

A machine sends a document as a new version, in parts from its beginning on, or appends parts to the present version.
The last part of a new version puts it in the place of the one before. Each part carries a running digest, so that both
sides agree on all content before it: digest(n) = blake2b(digest(n - 1) + bytes of part n), hexadecimal, "" for none.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from memory.store.postgres.connection import Connection
from memory.store.postgres.documents import HELD, FleetDocuments
from schemas.documents import DocumentKey
from schemas.ingest import Extent as Extent
from schemas.ingest import running_digest as running_digest

#: Documents of one statement.
MOST_KEYS = 1_000

ADD_DOCUMENT = """
INSERT INTO recalld.documents (tenant, agent, source, path, machine)
VALUES (%(tenant)s, %(agent)s, %(source)s, %(path)s, %(machine)s) ON CONFLICT DO NOTHING
"""
LOCK_DOCUMENT = f"SELECT version, size, stored, digest FROM recalld.documents WHERE {HELD} FOR UPDATE"  # noqa: S608 - constants
SELECT_LAST_PART = f"""
SELECT "offset" + length, digest, place + stored FROM recalld.document_parts
WHERE {HELD} AND version = %(version)s ORDER BY "offset" DESC LIMIT 1
"""  # noqa: S608 - constants
SELECT_PART = f"""
SELECT 1 FROM recalld.document_parts
WHERE {HELD} AND version IN (%(version)s, %(version)s + 1) AND "offset" = %(offset)s AND digest = %(digest)s
"""  # noqa: S608 - constants
INSERT_PART = """
INSERT INTO recalld.document_parts (
    tenant, agent, source, path, machine, version, "offset", length, digest, place, stored, content
) VALUES (
    %(tenant)s, %(agent)s, %(source)s, %(path)s, %(machine)s, %(version)s, %(offset)s, %(length)s, %(digest)s,
    %(place)s, %(stored)s, %(content)s
)
"""
DELETE_PARTS = f"DELETE FROM recalld.document_parts WHERE {HELD} AND version = %(version)s"  # noqa: S608 - constants
# Time goes on, even where the server's clock is set back: a document that changed never has the state of before.
SHOW_VERSION = f"""
UPDATE recalld.documents SET version = %(version)s, size = %(size)s, stored = %(place)s, digest = %(digest)s,
    format = %(format)s,
    arrived_ns = greatest(arrived_ns + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint * 1000)
WHERE {HELD}
"""  # noqa: S608 - constants
DELETE_ALL_PARTS = f"DELETE FROM recalld.document_parts WHERE {HELD}"  # noqa: S608 - constants
# The row of a transcript stays, as a record that its machine removed it: absence alone erases no transcript.
HIDE_DOCUMENT = f"""
UPDATE recalld.documents SET version = 0, size = 0, stored = 0, digest = '', arrived_ns = arrived_ns + 1 WHERE {HELD}
"""  # noqa: S608 - constants
DELETE_DOCUMENT = f"DELETE FROM recalld.documents WHERE {HELD}"  # noqa: S608 - constants

SELECT_HELD = """
SELECT source, path, size, digest FROM recalld.documents
WHERE tenant = %(tenant)s AND agent = %(agent)s AND machine = %(machine)s AND version > 0
    AND (source, path) IN (SELECT * FROM unnest(%(sources)s::text[], %(paths)s::text[]))
"""

SWEEP_ARRIVALS = "DELETE FROM recalld.arrivals WHERE tenant = %s AND at < now() - interval '7 days'"
ADD_ARRIVAL = "INSERT INTO recalld.arrivals (tenant, id, digest) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING"
SELECT_ARRIVAL = "SELECT digest FROM recalld.arrivals WHERE tenant = %s AND id = %s"


@dataclass(frozen=True, slots=True)
class Part:
    """Part of a document that arrived.

    It follows the content `after`, has `length` bytes as sent, and `content` as kept: a Zstandard frame of `stored`
    bytes. `is_last`: the version is whole with it. `format` is that of a transcript, where its user named one.
    """

    after: Extent
    length: int
    digest: str
    content: bytes
    stored: int
    is_last: bool
    format: str | None = None


class Misplaced(Exception):
    """Part that does not follow the `present` content of the store."""

    def __init__(self, present: Extent) -> None:
        super().__init__(f"the part does not follow the {present.size} bytes that are there")
        self.present = present


class EventReused(Exception):
    """Event whose id came before with other content."""


class ArrivingDocuments(FleetDocuments):
    """Documents of one agent as they arrive. Every method raises the errors of `Database`."""

    def extents(self, machine: str, keys: Sequence[DocumentKey]) -> dict[DocumentKey, Extent]:
        """Return the present content of those documents that a machine holds, at most `MOST_KEYS` of them."""
        columns = {"sources": [key.source for key in keys], "paths": [key.path for key in keys]}
        with self._reading() as connection:
            rows = connection.execute(SELECT_HELD, {**self._names(machine=machine), **columns}).fetchall()
        return {DocumentKey(source, path): Extent(size, digest) for source, path, size, digest in rows}

    def add(self, machine: str, key: DocumentKey, part: Part, *, event: str | None = None) -> Extent:
        """Add a part, committed on return; return the content up to its end. A part that is there is not added again.

        Raises:
            Misplaced: it does not follow what is there.
            EventReused: the event came before with another part.
        """
        names = self._names(key, machine)
        with self._database.transaction(self._scope) as connection:
            if event is not None:
                self._note_event(connection, event, f"{key.encode()}\0{machine}\0{part.after.size}\0{part.digest}")
            connection.execute(ADD_DOCUMENT, names)
            [(version, size, stored, digest)] = connection.execute(LOCK_DOCUMENT, names).fetchall()
            present, end = Extent(size, digest), Extent(part.after.size + part.length, part.digest)
            row, place = connection.execute(SELECT_LAST_PART, {**names, "version": version + 1}).fetchone(), stored
            if part.after == Extent():
                if part.is_last and end == present:
                    return end
                connection.execute(DELETE_PARTS, {**names, "version": version + 1})
                version, place = version + 1, 0
            elif row is not None and part.after == Extent(*row[:2]):
                version, place = version + 1, row[2]
            elif part.after != present:
                position = {"version": version, "offset": part.after.size, "digest": part.digest}
                if connection.execute(SELECT_PART, {**names, **position}).fetchone() is not None:
                    return end
                raise Misplaced(present)
            values = {"version": version, "offset": part.after.size, "digest": part.digest, "length": part.length}
            values |= {"place": place, "stored": part.stored, "content": part.content}
            connection.execute(INSERT_PART, {**names, **values})
            if part.is_last:
                values |= {"size": end.size, "place": place + part.stored, "format": part.format}
                connection.execute(SHOW_VERSION, {**names, **values})
                connection.execute(DELETE_PARTS, {**names, "version": version - 1})
        return end

    def remove(self, machine: str, keys: Collection[DocumentKey]) -> None:
        """Remove documents of a machine. A document that another machine holds stays in its version."""
        with self._database.transaction(self._scope) as connection:
            for key in sorted(keys):
                names = self._names(key, machine)
                for statement in (ADD_DOCUMENT, HIDE_DOCUMENT) if key.is_transcript else (DELETE_DOCUMENT,):
                    connection.execute(statement, names)
                connection.execute(DELETE_ALL_PARTS, names)

    def _note_event(self, connection: Connection, event: str, content: str) -> None:
        digest, tenant = running_digest("", content.encode()), self._scope.tenant
        if connection.execute(ADD_ARRIVAL, (tenant, event, digest)).rowcount:
            connection.execute(SWEEP_ARRIVALS, (tenant,))
        elif connection.execute(SELECT_ARRIVAL, (tenant, event)).fetchall() != [(digest,)]:
            raise EventReused(f"the event {event} came before with other content")
