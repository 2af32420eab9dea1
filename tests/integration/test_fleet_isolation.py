"""Row security of the fleet's tables, listed from the catalogue so that a new table cannot be forgotten."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import cache
from typing import Any

import psycopg
import pytest
from psycopg import errors, sql

from memory.store.postgres.connection import Database
from tests.postgres_server import Urls

#: Tables without a tenant: the version of the schema, and the owner of all indexes.
COMMON = {"schema_steps", "leases"}

#: Tables that one transaction may list for all tenants.
LISTED = {"tenants", "agents"}

_TABLES = """
SELECT relname, relispartition, relkind, relrowsecurity AND relforcerowsecurity, EXISTS (
    SELECT FROM pg_attribute WHERE attrelid = c.oid AND attname = 'tenant'
) FROM pg_class AS c WHERE relnamespace = 'recalld'::regnamespace AND relkind NOT IN ('i', 'I', 'S', 't', 'c')
"""

_COLUMNS = """
SELECT attname, format_type(atttypid, NULL) FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0
AND attnotnull AND NOT atthasdef AND attidentity = ''
"""

_VALUES: dict[str, Any] = {
    **dict.fromkeys(("text", "numeric", "integer", "bigint", "double precision"), "7"),
    "text[]": "{}",
    "timestamp with time zone": "2026-01-01",
}
_STATES = {"vector_state": "pending", "state": "old"}


class Fleet:
    """A database in which the tenants `acme` and `other` have a row in every table."""

    def __init__(self, urls: Urls, connections: ExitStack) -> None:
        self.urls = urls
        self._connect = cache(lambda url: connections.enter_context(closing(psycopg.connect(url))))
        with psycopg.connect(urls.superuser, autocommit=True) as connection:
            self.tables = connection.execute(_TABLES).fetchall()
            self.parents = [name for name, is_partition, _, _, has_tenant in self.tables if has_tenant > is_partition]
            self.partitions = [name for name, is_partition, *_ in self.tables if is_partition]
            self.columns = {name: connection.execute(_COLUMNS, [f"recalld.{name}"]).fetchall() for name in self.parents}
            for table in self.parents:
                for tenant in ("acme", "other"):
                    connection.execute(*self.insertion(table, tenant))

    def insertion(self, table: str, tenant: str) -> tuple[sql.Composed, list[Any]]:
        """Return a statement that inserts a tenant's row, and its values."""
        row = {
            column: tenant.encode() if kind == "bytea" else _STATES.get(column, _VALUES.get(kind))
            for column, kind in self.columns[table]
        } | {"tenant": tenant}
        if "generation" in row:
            row["generation"] = f"of {tenant}"  # the names are unique
        names, places = sql.SQL(", ").join(map(sql.Identifier, row)), sql.SQL(", ").join([sql.Placeholder()] * len(row))
        return self.statement("INSERT INTO {} ({}) VALUES ({})", table, names, places), list(row.values())

    @staticmethod
    def statement(text: str, table: str, *more: sql.Composable) -> sql.Composed:
        """Return a statement about a table."""
        return sql.SQL(text).format(sql.Identifier("recalld", table), *more)  # type: ignore[arg-type]

    @contextmanager
    def session(self, url: str, tenant: str | None) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        """Lend a transaction of a tenant, or of none, that is rolled back."""
        connection = self._connect(url)
        try:
            if tenant is not None:
                connection.execute("SELECT set_config('recalld.tenant', %s, true)", [tenant])
            yield connection
        finally:
            connection.rollback()

    def tenants_seen(self, url: str, tenant: str | None, table: str) -> set[str]:
        with self.session(url, tenant) as connection:
            return {name for (name,) in connection.execute(self.statement("SELECT tenant FROM {}", table))}

    def refusal(self, url: str, tenant: str | None, statement: sql.Composed, values: list[Any] | None = None) -> bool:
        """Return True if a statement is refused, or changes no row."""
        with self.session(url, tenant) as connection:
            try:
                return connection.execute(statement, values).rowcount == 0
            except errors.InsufficientPrivilege:
                return True


@pytest.fixture
def fleet(fleet_urls: Urls) -> Iterator[Fleet]:
    with ExitStack() as connections:
        yield Fleet(fleet_urls, connections)


@pytest.fixture(params=["writer", "reader"])
def user_url(request: pytest.FixtureRequest, fleet: Fleet) -> str:
    return str(getattr(fleet.urls, request.param))


def test_every_table_but_two_belongs_to_tenants_and_is_guarded(fleet: Fleet) -> None:
    assert {name for name, _, _, _, has_tenant in fleet.tables if not has_tenant} == COMMON
    assert not [name for name, _, _, is_guarded, has_tenant in fleet.tables if has_tenant and not is_guarded]
    assert {kind for _, _, kind, _, _ in fleet.tables} == {"r", "p"}, "a view reads with its owner's rights"
    assert len(fleet.tables) > 64 * 2


def test_without_a_tenant_there_are_no_rows(fleet: Fleet, user_url: str) -> None:
    for table in fleet.parents:
        for tenant in (None, "", "nobody"):
            assert fleet.tenants_seen(user_url, tenant, table) == set(), table


def test_a_tenant_reads_its_own_rows_and_no_others(fleet: Fleet, user_url: str) -> None:
    for table in fleet.parents:
        assert fleet.tenants_seen(user_url, "acme", table) == {"acme"}, table


def test_a_tenant_changes_no_row_of_another(fleet: Fleet, user_url: str) -> None:
    for table in fleet.parents:
        update = fleet.statement("UPDATE {} SET tenant = tenant WHERE tenant = 'other'", table)
        delete = fleet.statement("DELETE FROM {} WHERE tenant = 'other'", table)
        give = fleet.statement("UPDATE {} SET tenant = 'third'", table)
        assert all(fleet.refusal(user_url, "acme", statement) for statement in (update, delete, give)), table
        for tenant in (None, "acme", "*"):
            assert fleet.refusal(user_url, tenant, *fleet.insertion(table, "third")), table


def test_a_writer_changes_rows_of_its_tenant_but_no_audit(fleet: Fleet) -> None:
    changed = {
        table
        for table in fleet.parents
        if not fleet.refusal(fleet.urls.writer, "acme", fleet.statement("DELETE FROM {}", table))
        and not fleet.refusal(fleet.urls.writer, "acme", fleet.statement("UPDATE {} SET tenant = tenant", table))
        and not fleet.refusal(fleet.urls.writer, "third", *fleet.insertion(table, "third"))
    }
    assert set(fleet.parents) - changed == {"audit"}


def test_the_directory_reads_tenants_and_agents_and_nothing_else(fleet: Fleet, user_url: str) -> None:
    for table in fleet.parents:
        expected = {"acme", "other"} if table in LISTED else set()
        assert fleet.tenants_seen(user_url, "*", table) == expected, table
        assert fleet.refusal(user_url, "*", fleet.statement("DELETE FROM {}", table)), table
    database = Database(user_url)
    with database.directory() as connection:
        assert len(connection.execute("SELECT tenant FROM recalld.tenants").fetchall()) == 2
    with pytest.raises(ValueError, match="tenant"), database.transaction("*"):
        pass
    database.close()


def test_a_token_is_found_by_its_hash_alone(fleet: Fleet, user_url: str) -> None:
    with fleet.session(user_url, "*") as connection:
        connection.execute("SELECT set_config('recalld.token_hash', %s, true)", [b"other".hex()])
        assert connection.execute("SELECT tenant FROM recalld.access_tokens").fetchall() == [("other",)]


def test_partitions_are_closed_to_both_roles(fleet: Fleet, user_url: str) -> None:
    for partition in fleet.partitions:
        with fleet.session(user_url, "acme") as connection, pytest.raises(errors.InsufficientPrivilege):
            connection.execute(fleet.statement("SELECT FROM {}", partition))


def test_a_blanket_grant_opens_no_partition(fleet: Fleet) -> None:
    with psycopg.connect(fleet.urls.superuser) as administrator:
        administrator.execute("GRANT SELECT ON ALL TABLES IN SCHEMA recalld TO recalld_reader")
        administrator.execute("SET LOCAL ROLE recalld_reader; SET LOCAL recalld.tenant = 'acme'")
        for partition in fleet.partitions:
            assert administrator.execute(fleet.statement("SELECT FROM {}", partition)).rowcount == 0
        administrator.rollback()


def test_neither_role_takes_the_guard_away(fleet: Fleet, user_url: str) -> None:
    statements = (
        "ALTER TABLE {} DISABLE ROW LEVEL SECURITY",
        "ALTER TABLE {} NO FORCE ROW LEVEL SECURITY",
        "DROP POLICY scope ON {}",
        "CREATE POLICY mine ON {} USING (true)",
        "ALTER TABLE {} ADD COLUMN extra integer",
        "TRUNCATE {}",
        "DROP TABLE {}",
    )
    for table in fleet.parents:
        for text in statements:
            with fleet.session(user_url, "acme") as connection, pytest.raises(errors.InsufficientPrivilege):
                connection.execute(fleet.statement(text, table))
        with fleet.session(user_url, "acme") as connection:
            connection.execute("SET LOCAL row_security = off")
            with pytest.raises(errors.InsufficientPrivilege):
                connection.execute(fleet.statement("SELECT FROM {}", table))
    with fleet.session(user_url, None) as connection, pytest.raises(errors.InsufficientPrivilege):
        connection.execute("CREATE TABLE recalld.mine (tenant text)")


def test_the_owner_of_the_tables_sees_no_rows_either(fleet: Fleet) -> None:
    for table in fleet.parents:
        assert fleet.tenants_seen(fleet.urls.migrate, None, table) == set(), table
