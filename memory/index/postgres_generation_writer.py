"""Beginning, completion and removal of generations in PostgreSQL: the writing half of
`memory.index.postgres_generations`.

One process of the fleet owns all generations: it holds a lease. Its fence grows with every new holder. An owner that
was cut off and comes back late changes nothing: its transactions check holder, fence and time by the server's clock.
"""

from __future__ import annotations

import math
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from memory.index.fingerprint import Fingerprint
from memory.index.generation_writer import KEPT_CORRUPT_FILES, GenerationWriter, IndexOwner, new_name
from memory.index.generations import CURRENT, NEXT
from memory.index.postgres_generations import GenerationRow, PostgresGenerations
from memory.store.postgres.connection import Connection, Database
from memory.store.postgres.writer import PostgresStore
from memory.store.writer import Store
from schemas.agents import DEFAULT_TENANT
from schemas.errors import RecalldError
from schemas.settings.service import StoreSettings

#: Seconds for which a lease holds, seconds until its holder renews it, and until another process asks for it again.
LEASE_SECONDS, RENEW_SECONDS, RETRY_SECONDS = 30.0, 10.0, 1.0

#: Seconds for which readers of a retired generation may go on.
READERS_SECONDS = 60.0

#: Rows of an old generation that one transaction deletes.
DELETED_A_STEP = 5_000

TAKE_LEASE = """
INSERT INTO recalld.leases AS lease (name, holder, fence, expires_at)
VALUES ('indexes', %(holder)s, 1, clock_timestamp() + make_interval(secs => %(seconds)s))
ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, expires_at = excluded.expires_at,
    fence = lease.fence + (lease.holder <> excluded.holder)::integer
WHERE lease.holder = excluded.holder OR lease.expires_at <= clock_timestamp()
RETURNING fence
"""
LEAVE_LEASE = "UPDATE recalld.leases SET expires_at = clock_timestamp() WHERE name = 'indexes' AND holder = %s"

# The lock keeps the next holder out until the transaction ends.
CHECK_LEASE = """
SELECT 1 FROM recalld.leases
WHERE name = 'indexes' AND holder = %s AND fence = %s AND expires_at > clock_timestamp() FOR SHARE
"""

LOCK_POINTERS = "SELECT pg_advisory_xact_lock(hashtextextended('generations of ' || %(tenant)s || '/' || %(agent)s, 0))"
INSERT_GENERATION = """
INSERT INTO recalld.generations (tenant, agent, generation, state, fingerprint, identity, takeover)
VALUES (%(tenant)s, %(agent)s, %(generation)s, 'old', %(fingerprint)s, %(identity)s, %(takeover)s)
"""
RETIRE = """
UPDATE recalld.generations
SET state = 'old', meta = meta || jsonb_build_object('retired_at', extract(epoch FROM clock_timestamp())::text)
WHERE tenant = %(tenant)s AND agent = %(agent)s AND state = %(state)s
"""
_OF = "tenant = %(tenant)s AND agent = %(agent)s AND generation = %(generation)s"
POINT = f"UPDATE recalld.generations SET state = %(state)s WHERE {_OF}"  # noqa: S608 - constants
DELETE_GENERATION = f"DELETE FROM recalld.generations WHERE {_OF} AND state = 'old'"  # noqa: S608

# The bound is read once, however few rows the planner expects. Dead letters are few.
_LAST_ID = "(SELECT id FROM {0} WHERE {1} ORDER BY id OFFSET %(most)s - 1 LIMIT 1)"
DELETE_ROWS = tuple(
    f"DELETE FROM {table} WHERE {_OF} AND id <= coalesce({_LAST_ID.format(table, _OF)}, 9223372036854775807)"  # noqa: S608
    for table in ("recalld.chunks", "recalld.files")
)
DELETE_DEAD_LETTERS = f"DELETE FROM recalld.dead_letters WHERE {_OF}"  # noqa: S608 - a constant


class OwnerLease(IndexOwner):
    """Ownership of all generations of a fleet, by a lease. Its holder renews it when it is asked for it."""

    def __init__(self, store: StoreSettings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = Database.of(store)
        self._clock = clock
        self._holder = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._lock = threading.Lock()
        self._fence: int | None = None
        self._ask_at = -math.inf  # by the clock

    def owns(self) -> bool:
        with self._lock:
            now = self._clock()
            if now >= self._ask_at:
                self._fence = None
                with suppress(RecalldError), self._database.transaction(DEFAULT_TENANT) as connection:
                    row = connection.execute(TAKE_LEASE, {"holder": self._holder, "seconds": LEASE_SECONDS}).fetchone()
                    self._fence = row[0] if row is not None else None
                self._ask_at = now + (RETRY_SECONDS if self._fence is None else RENEW_SECONDS)
            return self._fence is not None

    def holds(self, connection: Connection) -> bool:
        """Return True if the lease is this process's until the transaction ends."""
        if connection.execute(CHECK_LEASE, (self._holder, self._fence)).fetchone() is not None:
            return True
        self._ask_at = -math.inf
        return False

    def close(self) -> None:
        with self._lock, suppress(RecalldError):
            if self._fence is not None:
                self._fence, self._ask_at = None, -math.inf
                with self._database.transaction(DEFAULT_TENANT) as connection:
                    connection.execute(LEAVE_LEASE, (self._holder,))


class PostgresGenerationWriter(PostgresGenerations, GenerationWriter):
    """Generations of one agent in PostgreSQL. All changes of the pointers under one lock are one transaction."""

    _memory_seconds = -1.0

    def __init__(self, store: StoreSettings, agent_id: str, *, owner: IndexOwner | None = None) -> None:
        PostgresGenerations.__init__(self, store, agent_id)
        GenerationWriter.__init__(self, owner=owner)
        self._key = {"tenant": self._scope.tenant, "agent": self._scope.agent}
        self._connection: Connection | None = None  # of the transaction that holds the lock

    def sweep(self, *, older_than_seconds: float, kept_corrupt: int | None = KEPT_CORRUPT_FILES) -> None:  # noqa: ARG002 - of files
        seconds = max(older_than_seconds, READERS_SECONDS)
        for name in [row.name for row in self._rows() if row.pointer == "OLD" and row.retired >= seconds]:
            while self._delete_some(name):
                pass

    def _delete_some(self, name: str) -> bool:
        """Delete rows of a generation in one transaction; return False after the last ones."""
        with self._locked():
            self.require_owner()
            room = DELETED_A_STEP
            for statement in DELETE_ROWS:
                room -= self._execute(statement, generation=name, most=room)
                if not room:
                    return True
            self._execute(DELETE_DEAD_LETTERS, generation=name)
            self._execute(DELETE_GENERATION, generation=name)
            return False

    def look_again(self) -> None:
        self._database.look_again()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._lock, self._database.transaction(self._scope) as connection:
            self._connection = connection
            try:
                self._execute(LOCK_POINTERS)
                yield
            finally:
                self._connection = None

    def _owns(self) -> bool:
        lease = self._owner if isinstance(self._owner, OwnerLease) else None
        return super()._owns() and (lease is None or self._connection is None or lease.holds(self._connection))

    def _rows(self) -> Sequence[GenerationRow]:
        with self._lock:
            if self._connection is None:
                return super()._rows()
            self._read(self._connection)
            return self._last_rows

    def _existing(self) -> tuple[str | None, str | None]:
        names = {row.pointer: row.name for row in self._rows()}
        return names.get(CURRENT), names.get(NEXT)

    def _exists(self, name: str) -> bool:
        return any(row.name == name for row in self._last_rows)

    def _has(self, name: str, fingerprint: str) -> bool:
        return any((row.name, row.fingerprint) == (name, fingerprint) for row in self._last_rows)

    def _create(self, fingerprint: Fingerprint, takeover: str | None) -> str:
        name = new_name(fingerprint)
        facts = {"fingerprint": fingerprint.digest, "identity": fingerprint.description, "takeover": takeover}
        self._execute(INSERT_GENERATION, generation=name, **facts)
        return name

    def _point(self, pointer: str, name: str | None) -> None:
        self._execute(RETIRE, state=pointer.lower())
        self._execute(POINT, state=pointer.lower(), generation=name)
        self._rows()

    def _execute(self, statement: str, **values: object) -> int:
        """Run a statement in the transaction that holds the lock; return the number of rows."""
        assert self._connection is not None  # noqa: S101 - the caller holds the lock
        return self._connection.execute(statement.encode(), {**self._key, **values}).rowcount

    def _opened(self, name: str) -> Store:
        return PostgresStore(self._database, self._scope, name, options=self._options)
