"""Connections to the fleet's PostgreSQL, its checks at first use, and translation of its errors into the store's."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import psycopg
from psycopg import errors, sql
from psycopg_pool import ConnectionPool, PoolTimeout

from memory.store.errors import StoreAway, StoreBusy, StoreFull, StoreUnreadable
from memory.store.postgres.schema import SCHEMA_NUMBER
from schemas.agents import Scope

if TYPE_CHECKING:
    from schemas.settings import StoreSettings

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

#: Seconds to wait for a connection to the server.
CONNECT_SECONDS = 5.0

#: Options of every connection. PgBouncer may stand before the server, so nothing is prepared. Keepalives end a
#: connection whose other host went away without a word within half a minute.
_OPTIONS: dict[str, Any] = {
    "autocommit": True,
    "prepare_threshold": None,
    "connect_timeout": int(CONNECT_SECONDS),
    "application_name": "recalld",
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}

#: Seconds to wait for a pooled connection, before the server is asked for the reason.
_PATIENCE_SECONDS = 0.25

#: Connections of one process. PgBouncer, or `max_connections`, has to have room for those of all processes.
POOL_SIZE = 10

#: Oldest versions that serve the store.
LEAST_SERVER, LEAST_PGVECTOR = 16, (0, 8)

_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

#: Tenant of statements that list tenants and agents, as the policies of these tables know it.
_EVERY_TENANT = "*"


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Facts about a server, a database and the role that uses it.

    `server` is `server_version_num`, such as 160014. `pgvector` is its version in the database, None without it.
    `number` is that of the schema, 0 without one.
    """

    server: int
    pgvector: str | None
    role: str
    number: int
    is_superuser: bool
    bypasses_policies: bool
    is_owner: bool

    def server_problem(self) -> str | None:
        """Return a sentence about the server's fault, and its remedy; None if it can serve a store."""
        if self.server < LEAST_SERVER * 10_000:
            return (
                f"this PostgreSQL is version {self.server // 10_000}; "
                f"the fleet's store needs {LEAST_SERVER} or newer, so upgrade the server"
            )
        if self.pgvector is None:
            return (
                "this database has no pgvector; install pgvector 0.8 or newer on the server, and have an "
                "administrator run: CREATE EXTENSION vector"
            )
        if tuple(map(int, re.findall(r"\d+", self.pgvector)[:2])) < LEAST_PGVECTOR:
            return (
                f"this database has pgvector {self.pgvector}; the fleet's store needs 0.8 or newer, so upgrade it and "
                "have an administrator run: ALTER EXTENSION vector UPDATE"
            )
        return None

    def role_problem(self) -> str | None:
        """Return a sentence about a role that row-level security does not hold back; None for a safe one."""
        faults = (
            (self.is_superuser, "is a superuser"),
            (self.bypasses_policies, "has BYPASSRLS"),
            (self.is_owner, "owns tables of the store, or is a member of their owner"),
        )
        for is_so, fault in faults:
            if is_so:
                return (
                    f"the role {self.role} {fault}, so it could read every tenant's memory; put a user into store.url "
                    "that is a member of recalld_writer or recalld_reader only"
                )
        return None

    def schema_problem(self) -> str | None:
        """Return a sentence about tables of another version; None for those of this one."""
        if self.number > SCHEMA_NUMBER:
            return (
                f"the store's tables are of a newer recalld (schema {self.number}, this one knows {SCHEMA_NUMBER}); "
                "install the version that migrated them"
            )
        if self.number < SCHEMA_NUMBER:
            return "the database lacks tables of this recalld; run `recalld migrate`"
        return None


_FACTS = """
SELECT current_setting('server_version_num')::integer,
    (SELECT extversion FROM pg_extension WHERE extname = 'vector'),
    current_user,
    EXISTS (SELECT FROM pg_class WHERE relname = 'schema_steps' AND relnamespace = to_regnamespace('recalld')),
    EXISTS (SELECT FROM pg_roles WHERE rolsuper AND pg_has_role(oid, 'MEMBER')),
    EXISTS (SELECT FROM pg_roles WHERE rolbypassrls AND pg_has_role(oid, 'MEMBER')),
    EXISTS (SELECT FROM pg_class WHERE relnamespace = to_regnamespace('recalld') AND pg_has_role(relowner, 'MEMBER'))
"""

_NUMBER = "SELECT coalesce(max(number), 0) FROM recalld.schema_steps"


def connect(url: str) -> Connection:
    """Return a connection of its own, in autocommit mode. Raise StoreAway if the server cannot be reached."""
    with translated():
        return psycopg.connect(url, **_OPTIONS)


def read_facts(connection: Connection) -> ServerFacts:
    """Return facts about the server and the role of a connection."""
    (server, pgvector, role, has_numbers, *faults), *_ = connection.execute(_FACTS)
    number = next(iter(connection.execute(_NUMBER)))[0] if has_numbers else 0
    return ServerFacts(server, pgvector, role, number, *faults)


def check_store(connection: Connection) -> None:
    """Raise StoreUnreadable unless the server, its schema and the connection's role may serve a store."""
    with translated():
        facts = read_facts(connection)
    problem = facts.server_problem() or facts.role_problem() or facts.schema_problem()
    if problem is not None:
        raise StoreUnreadable(problem)


class Database:
    """Pool of connections to one PostgreSQL. It connects, and checks the server, at first use.

    Raises, from every method: StoreAway, StoreBusy, StoreFull, StoreUnreadable.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._pool: ConnectionPool[Connection] | None = None
        self._lock = threading.Lock()

    @classmethod
    def of(cls, store: StoreSettings) -> Database:
        """Return the process's database of a URL."""
        assert store.url  # noqa: S101 - the factories ask for it
        with _databases_lock:
            # A forked process has no use for its parent's connections.
            return _databases.setdefault((os.getpid(), store.url), cls(store.url))

    @contextmanager
    def transaction(
        self,
        scope: Scope | str,
        *,
        read_only: bool = False,
        statement_seconds: float | None = None,
        lock_seconds: float = 10.0,
    ) -> Iterator[Connection]:
        """Lend a connection in a transaction that sees the rows of one tenant. A text is the tenant's name.

        Commits at the end, rolls back after an error. All reads of a read-only one see the same state. Statements end
        with StoreBusy after `statement_seconds`, or after waiting `lock_seconds` for a lock.
        """
        tenant = scope.tenant if isinstance(scope, Scope) else scope
        if not _TENANT.fullmatch(tenant):
            raise ValueError(f"{tenant!r} is no name of a tenant")
        with self._begin(
            tenant, read_only=read_only, statement_seconds=statement_seconds, lock_seconds=lock_seconds
        ) as connection:
            yield connection

    @contextmanager
    def directory(self) -> Iterator[Connection]:
        """Lend a connection in a read-only transaction that sees all tenants and agents, and no other rows."""
        with self._begin(_EVERY_TENANT, read_only=True) as connection:
            yield connection

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    @contextmanager
    def _begin(
        self, tenant: str, *, read_only: bool, statement_seconds: float | None = None, lock_seconds: float = 10.0
    ) -> Iterator[Connection]:
        # One message: PgBouncer lends a server connection from BEGIN on, and the settings end with the transaction.
        begin = sql.SQL(
            "BEGIN ISOLATION LEVEL {}; SET LOCAL recalld.tenant = {}; SET LOCAL lock_timeout = {}; "
            "SET LOCAL statement_timeout = {}"
        ).format(
            sql.SQL("REPEATABLE READ READ ONLY" if read_only else "READ COMMITTED"),
            tenant,
            round(lock_seconds * 1000),
            round((statement_seconds or 0) * 1000),
        )
        with translated():
            pool = self._opened()
            connection = self._borrow(pool)
            try:
                with connection:
                    connection.execute(begin)
                    yield connection
            finally:
                pool.putconn(connection)

    def _opened(self) -> ConnectionPool[Connection]:
        """Return the pool; check the server before it is made."""
        if self._pool is None:
            with connect(self._url) as connection:
                check_store(connection)
            with self._lock:
                if self._pool is None:
                    self._pool = ConnectionPool(
                        self._url,
                        kwargs=_OPTIONS,
                        min_size=0,
                        max_size=POOL_SIZE,
                        open=True,
                        check=ConnectionPool.check_connection,
                        reconnect_timeout=0.0,
                        num_workers=1,
                    )
        return self._pool

    def _borrow(self, pool: ConnectionPool[Connection]) -> Connection:
        """Take a connection. The pool only knows that it has none: if that lasts, the server itself tells why."""
        try:
            return pool.getconn(timeout=_PATIENCE_SECONDS)
        except PoolTimeout:
            connect(self._url).close()
        try:
            return pool.getconn(timeout=CONNECT_SECONDS)
        except PoolTimeout as error:
            raise StoreBusy(f"all {POOL_SIZE} connections to PostgreSQL are in use; trying again") from error


_databases: dict[tuple[int, str], Database] = {}
_databases_lock = threading.Lock()


@contextmanager
def translated() -> Iterator[None]:
    """Raise the store's errors instead of psycopg's."""
    try:
        yield
    except psycopg.Error as error:
        ours = in_our_words(error)
        if ours is None:
            raise
        raise ours from error


def in_our_words(error: psycopg.Error) -> Exception | None:
    """Return the store's error for an error of PostgreSQL; None for a defect of this program."""
    reason = " ".join(str(error).split())
    match error:
        case errors.DiskFull():
            return StoreFull(f"PostgreSQL has no space left ({reason}); free some and indexing goes on")
        case errors.LockNotAvailable() | errors.QueryCanceled() | errors.DeadlockDetected():
            return StoreBusy(f"PostgreSQL is busy ({reason}); trying again")
        case errors.InsufficientPrivilege():
            return StoreUnreadable(
                f"PostgreSQL refuses this user ({reason}); have an administrator run GRANT recalld_writer TO it, or "
                "GRANT recalld_reader for the query service"
            )
        case errors.ReadOnlySqlTransaction():
            return StoreAway(f"PostgreSQL takes no writes ({reason}); put the address of the primary into store.url")
        case psycopg.OperationalError():
            return StoreAway(f"PostgreSQL cannot be reached ({reason}); check that it runs, and store.url")
        case errors.UndefinedTable() | errors.UndefinedColumn():
            return StoreUnreadable(f"the store lacks a table ({reason}); run `recalld migrate`")
    return None
