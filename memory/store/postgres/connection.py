"""Connections to the fleet's PostgreSQL, its checks at first use, and translation of its errors into the store's."""

from __future__ import annotations

import math
import os
import re
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

from memory.store.errors import StoreAway, StoreBusy, StoreFull, StoreRefuses, StoreUnreadable
from memory.store.postgres.schema import SCHEMA_NUMBER
from schemas.agents import NAME, Scope
from schemas.errors import RecalldError
from schemas.version import install_command

try:
    import psycopg
    from psycopg import errors, sql
    from psycopg.adapt import Dumper
    from psycopg.conninfo import conninfo_to_dict
    from psycopg.pq import Format
    from psycopg_pool import ConnectionPool, PoolTimeout
except ImportError as error:
    raise StoreUnreadable(f"PostgreSQL needs further packages: {install_command('fleet')}") from error

if TYPE_CHECKING:
    from schemas.settings import StoreSettings

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]
Rows: TypeAlias = list[tuple[Any, ...]]

#: Seconds to wait for a connection; seconds without a free one before the server tells the reason; most connections
#: of one process.
CONNECT_SECONDS, PATIENCE_SECONDS, POOL_SIZE = 5, 0.25, 10

#: Seconds for which shared reads see one state.
SHARED_SECONDS = 1.0

#: Seconds without a statement after which the server ends a transaction: the host of its process may be cut off.
IDLE_SECONDS = 60.0

#: Words of PostgreSQL, PgBouncer and libpq for a connection that no waiting mends. A failed connection has no SQLSTATE
#: in libpq. In another language the words count as an outage, and the log shows them.
_REFUSED = re.compile(
    r"authentication failed|no password supplied|(?:role|database) \"[^\"]*\" does not exist|no such (?:user|database)"
    r"|no pg_hba\.conf entry|not permitted to log in|permission denied for database"
)

#: PgBouncer may stand before the server, so nothing is prepared. Keepalives end a connection to a host that vanished.
_OPTIONS: dict[str, Any] = {"autocommit": True, "prepare_threshold": None, "connect_timeout": CONNECT_SECONDS}
_OPTIONS |= {"keepalives_idle": 10, "keepalives_interval": 10, "tcp_user_timeout": 30_000}


class BinaryArray(bytes):
    """Array in PostgreSQL's binary form."""


class _BinaryDumper(Dumper):
    """Hand bytes over as they are. The statement tells their type."""

    format = Format.BINARY

    def dump(self, obj: bytes) -> bytes:
        return bytes(obj)


# Here, because a connection knows only the dumpers that were registered before it was made.
psycopg.adapters.register_dumper(BinaryArray, _BinaryDumper)


class ServerFacts(NamedTuple):
    """Facts about a server, a database and its user.

    `server` is `server_version_num`, such as 160014; `number` is that of the schema, 0 without one. `works_with` is the
    number of the oldest code that works on it. A user is also a superuser, or an owner of tables, as a member of such a
    role.
    """

    server: int
    pgvector: str | None
    user: str
    is_superuser: bool
    bypasses_policies: bool
    is_owner: bool
    number: int
    works_with: int = 0

    def fault(self, *, migrates: bool = False) -> str | None:
        """Return a sentence about the first fault for which the store is refused; None without one."""
        install = "install 0.8 or newer on the server, and have an administrator run:"
        version = tuple(map(int, re.findall(r"\d+", self.pgvector or "0.8")[:2]))
        faults = [
            (self.server < 160_000, f"PostgreSQL {self.server // 10_000} is too old; the store needs 16 or newer"),
            (self.pgvector is None, f"the database has no pgvector; {install} CREATE EXTENSION vector"),
            (version < (0, 8), f"pgvector {self.pgvector} is too old; {install} ALTER EXTENSION vector UPDATE"),
            (
                self.works_with > SCHEMA_NUMBER,
                f"a newer recalld made the tables (schema {self.number}), where this one fails; install it here, too",
            ),
        ]
        if not migrates:
            unsafe = f"so {self.user} could read every tenant's memory; in store.url, name a user who has no right but "
            unsafe += "recalld_writer or recalld_reader"
            faults += [
                (self.is_superuser, f"{self.user} is a superuser, {unsafe}"),
                (self.bypasses_policies, f"{self.user} has BYPASSRLS, {unsafe}"),
                (self.is_owner, f"{self.user} owns tables of the store, {unsafe}"),
                (self.number < SCHEMA_NUMBER, "the database lacks tables; run `recalld migrate`"),
            ]
        return next((sentence for applies, sentence in faults if applies), None)


_FACTS = """
SELECT current_setting('server_version_num')::integer,
    (SELECT extversion FROM pg_extension WHERE extname = 'vector'), current_user,
    EXISTS (SELECT FROM pg_roles WHERE rolsuper AND pg_has_role(oid, 'MEMBER')),
    EXISTS (SELECT FROM pg_roles WHERE rolbypassrls AND pg_has_role(oid, 'MEMBER')),
    EXISTS (SELECT FROM pg_class WHERE relnamespace = to_regnamespace('recalld') AND pg_has_role(relowner, 'MEMBER')),
    EXISTS (SELECT FROM pg_class WHERE relnamespace = to_regnamespace('recalld') AND relname = 'schema_steps')
"""

#: A dump takes the time of the first migration along, a copy of a database has another name.
_NAME = """
SELECT 'fleet-' || left(md5(extract(epoch FROM made_at)::text || current_database()), 16)
FROM recalld.schema_steps WHERE number = 1
"""

#: Tables of the first days have no column `works_with`. A step without it breaks all code before it.
_SCHEMA = """
SELECT coalesce(max(number), 0), coalesce(max(coalesce((to_jsonb(s)->>'works_with')::integer, number)), 0)
FROM recalld.schema_steps AS s
"""


def connect(url: str) -> Connection:
    """Return a connection in autocommit mode, which the caller closes. Raises StoreAway, StoreUnreadable."""
    with translated():
        try:
            # A host with @ is a part of the password, for messages.
            if "@" not in str(conninfo_to_dict(url).get("host", "")):
                return psycopg.connect(url, **_OPTIONS)
        except psycopg.ProgrammingError:
            pass  # its message may have the password, too
    form = "postgresql://USER:PASSWORD@HOST:5432/DATABASE, with %40 for @ in a password"
    raise StoreUnreadable(f"the URL of PostgreSQL cannot be read; write it as {form}")


def read_facts(connection: Connection) -> ServerFacts:
    """Return facts about the server of a connection."""
    with translated():
        (*facts, has_tables), *_ = connection.execute(_FACTS)
        numbers = next(connection.execute(_SCHEMA)) if has_tables else (0, 0)
    return ServerFacts._make([*facts, *numbers])


@dataclass(slots=True)
class _Reads:
    """The transaction that reads of one tenant's rows share, and the answers to their queries."""

    tenant: str
    begun_at: float = -math.inf  # monotonic
    connection: Connection | None = None
    users: int = 0
    is_over: bool = False
    open: ExitStack = field(default_factory=ExitStack)
    rows: dict[Hashable, Rows] = field(default_factory=dict)

    def end(self) -> None:
        """End the transaction after its last user."""
        self.is_over = self.users > 0
        if self.is_over:
            return
        self.connection = None
        self.rows.clear()
        with suppress(RecalldError):  # nothing was written
            self.open.close()


class Database:
    """Pool of connections to one PostgreSQL. It checks server, tables and user at first use.

    Raises, from every transaction: StoreAway, StoreBusy, StoreFull, StoreUnreadable.
    """

    _all: ClassVar[dict[tuple[int, str], Database]] = {}
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, url: str) -> None:
        self._url = url
        self._pool: ConnectionPool[Connection] | None = None
        #: Of each thread: the reads of its `snapshot`, and its `shared` ones.
        self._of_thread = threading.local()

    @classmethod
    def of(cls, store: StoreSettings) -> Database:
        """Return the database of the settings, the same one each time."""
        assert store.url  # noqa: S101 - the factories choose by it
        url = store.url.get_secret_value()
        with cls._lock:
            # A forked process has no use for the connections of its parent.
            return cls._all.setdefault((os.getpid(), url), cls(url))

    @contextmanager
    def transaction(
        self,
        scope: Scope | str,
        *,
        read_only: bool = False,
        statement_seconds: float = 0.0,
        lock_seconds: float = 10.0,
        idle_seconds: float = IDLE_SECONDS,
    ) -> Iterator[Connection]:
        """Lend a connection whose transaction sees the rows of one tenant; a text is the name of a tenant.

        The transaction commits at the end, unless an error ends it. All reads of a read-only one see the same state.
        StoreBusy ends a statement after `statement_seconds` (0 is never), or after `lock_seconds` of waiting, and the
        transaction after `idle_seconds` between two statements.
        """
        tenant = scope.tenant if isinstance(scope, Scope) else scope
        if not NAME.fullmatch(tenant):
            raise ValueError(f"{tenant!r} is no name of a tenant")
        seconds = (statement_seconds, lock_seconds, idle_seconds)
        if not read_only:
            self.look_again()  # a thread has one connection at a time
        try:
            with self._begin(tenant, read_only=read_only, seconds=seconds) as connection:
                yield connection
        finally:
            if not read_only:
                self.look_again()  # what was read meanwhile did not see the changes

    @contextmanager
    def snapshot(self, scope: Scope) -> Iterator[None]:
        """Let this thread's `reading` of one tenant's rows within the context be a single transaction."""
        before = getattr(self._of_thread, "snapshot", None)
        with self.reading(scope) as connection:
            shared: _Reads | None = getattr(self._of_thread, "shared", None)
            is_shared = shared is not None and shared.connection is connection
            self._of_thread.snapshot = shared if is_shared else _Reads(scope.tenant, connection=connection)
            try:
                yield
            finally:
                self._of_thread.snapshot = before

    @contextmanager
    def shared_reads(self, scope: Scope) -> Iterator[None]:
        """Let this thread's `reading` of one tenant's rows within the context share transactions.

        One of them lasts until the thread writes, looks again, or for `SHARED_SECONDS`.
        """
        self._of_thread.shared = shared = _Reads(scope.tenant)
        try:
            yield
        finally:
            self._of_thread.shared = None
            shared.end()

    def look_again(self) -> None:
        """End the transaction of this thread's shared reads: the next one sees all changes."""
        shared: _Reads | None = getattr(self._of_thread, "shared", None)
        if shared is not None and shared.connection is not None:
            shared.end()

    def reading(self, scope: Scope | str) -> AbstractContextManager[Connection]:
        """Lend a connection that reads a tenant's rows: of the thread's snapshot or shared reads, or a new one."""
        tenant = scope.tenant if isinstance(scope, Scope) else scope
        snapshot: _Reads | None = getattr(self._of_thread, "snapshot", None)
        if snapshot is not None and snapshot.connection is not None and snapshot.tenant == tenant:
            return nullcontext(snapshot.connection)
        shared: _Reads | None = getattr(self._of_thread, "shared", None)
        if shared is not None and shared.tenant == tenant:
            return self._sharing(shared)
        return self.transaction(scope, read_only=True)

    def once(self, connection: Connection, query: Hashable, read: Callable[[], Rows]) -> Rows:
        """Return the rows of `read`. Within a snapshot or shared reads a connection asks each query once."""
        for name in ("snapshot", "shared"):
            reads: _Reads | None = getattr(self._of_thread, name, None)
            if reads is not None and reads.connection is connection:
                if query not in reads.rows:
                    reads.rows[query] = read()
                return reads.rows[query]
        return read()

    def keep(self, connection: Connection, query: Hashable, rows: Rows) -> None:
        """Keep the rows of a query, so that `once` does not ask it."""
        self.once(connection, query, lambda: rows)

    @contextmanager
    def _sharing(self, shared: _Reads) -> Iterator[Connection]:
        if time.monotonic() - shared.begun_at > SHARED_SECONDS:
            shared.end()
        if shared.connection is None:
            shared.connection = shared.open.enter_context(self.transaction(shared.tenant, read_only=True))
            shared.begun_at = time.monotonic()
        shared.users += 1
        try:
            with translated():
                yield shared.connection
        except BaseException:
            shared.is_over = True  # an error breaks the transaction
            raise
        finally:
            shared.users -= 1
            if shared.is_over:
                shared.end()

    @contextmanager
    def directory(self) -> Iterator[Connection]:
        """Lend a connection whose transaction reads the tenants and agents of all tenants, and no other row."""
        with self._begin("*", read_only=True, seconds=(0.0, 10.0, IDLE_SECONDS)) as connection:
            yield connection

    def check(self) -> ServerFacts:
        """Return facts about the server. Raise StoreUnreadable if it must not serve the store."""
        with connect(self._url) as connection:
            facts = read_facts(connection)
        fault = facts.fault()
        if fault is not None:
            raise StoreUnreadable(fault)
        return facts

    def name(self) -> str:
        """Return a name of the database that no other one has, the same one by each of its addresses."""
        with self.directory() as connection:
            return str(next(connection.execute(_NAME))[0])

    def close(self) -> None:
        """Close all connections."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    @contextmanager
    def _begin(self, tenant: str, *, read_only: bool, seconds: tuple[float, ...]) -> Iterator[Connection]:
        # A single message for the sake of speed. The settings end with the transaction, for the sake of PgBouncer.
        begin = sql.SQL(
            "BEGIN ISOLATION LEVEL {}; SET LOCAL recalld.tenant = {}; "
            "SET LOCAL statement_timeout = {}; SET LOCAL lock_timeout = {}; "
            "SET LOCAL idle_in_transaction_session_timeout = {}"
        ).format(
            sql.SQL("REPEATABLE READ READ ONLY" if read_only else "READ COMMITTED"),
            tenant,
            *(round(1000 * limit) for limit in seconds),
        )
        with translated():
            if self._pool is None:
                self.check()
                with self._lock:
                    self._pool = self._pool or _pool(self._url)
            pool = self._pool
            connection = self._borrow(pool, begin)
            try:
                with connection:
                    yield connection
            finally:
                pool.putconn(connection)

    def _borrow(self, pool: ConnectionPool[Connection], begin: sql.Composed) -> Connection:
        """Take a connection from the pool and begin a transaction, which shows that it works.

        A server that restarted broke all idle ones. The check of the pool itself pauses longer after each of them.
        """
        connection = self._take(pool)
        try:
            connection.execute(begin)
        except BaseException as error:
            pool.putconn(connection)
            if not isinstance(error, psycopg.OperationalError):
                raise
            pool.drain()
            connection = self._take(pool)
            try:
                connection.execute(begin)
            except BaseException:
                pool.putconn(connection)
                raise
        return connection

    def _take(self, pool: ConnectionPool[Connection]) -> Connection:
        """Take a connection from the pool, which cannot tell if the server is away or all connections are in use."""
        try:
            return pool.getconn(PATIENCE_SECONDS)
        except PoolTimeout:
            connect(self._url).close()
        try:
            return pool.getconn(CONNECT_SECONDS)
        except PoolTimeout as error:
            raise StoreBusy(f"all {POOL_SIZE} connections to PostgreSQL are in use; trying again") from error


def _pool(url: str) -> ConnectionPool[Connection]:
    size: dict[str, Any] = {"min_size": 0, "max_size": POOL_SIZE, "num_workers": 1, "reconnect_timeout": 0.0}
    return ConnectionPool(url, kwargs=_OPTIONS, open=True, **size)


@contextmanager
def translated() -> Iterator[None]:
    """Raise the store's errors instead of psycopg's; a defect of this program stays as it is."""
    try:
        yield
    except psycopg.Error as error:
        reason = " ".join(str(error).split())
        match error:
            case errors.DiskFull():
                raise StoreFull(f"PostgreSQL has no space left ({reason}); free some and indexing goes on") from error
            case (
                errors.LockNotAvailable()
                | errors.QueryCanceled()
                | errors.DeadlockDetected()
                | errors.IdleInTransactionSessionTimeout()
            ):
                raise StoreBusy(f"PostgreSQL is busy ({reason}); trying again") from error
            case errors.InsufficientPrivilege():
                message = f"PostgreSQL refuses this user ({reason}); have an administrator GRANT it recalld_writer"
                raise StoreUnreadable(f"{message}, or recalld_reader for the query service") from error
            case psycopg.OperationalError() if error.sqlstate is None and _REFUSED.search(reason):
                raise StoreRefuses(f"PostgreSQL refuses the connection ({reason}); correct store.url") from error
            case psycopg.OperationalError() | errors.ReadOnlySqlTransaction():
                raise StoreAway(f"PostgreSQL cannot be reached ({reason}); check it, and store.url") from error
        raise
