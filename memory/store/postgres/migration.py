"""Migration of the fleet's database, by a role of its own."""

from __future__ import annotations

from memory.store.errors import StoreUnreadable
from memory.store.postgres.connection import Connection, connect, read_facts, translated
from memory.store.postgres.schema import MIGRATIONS, SCHEMA_NUMBER

#: Rights that the first migration needs, with the statement by which an administrator stands in for each.
_RIGHTS = """
SELECT r.rolsuper OR EXISTS (SELECT FROM pg_extension WHERE extname = 'vector'), 'CREATE EXTENSION vector'
FROM pg_roles AS r WHERE rolname = current_user
UNION ALL
SELECT r.rolsuper OR r.rolcreaterole OR to_regrole(role) IS NOT NULL, 'CREATE ROLE ' || role
FROM pg_roles AS r, unnest(ARRAY['recalld_writer', 'recalld_reader']) AS role WHERE rolname = current_user
UNION ALL
SELECT to_regnamespace('recalld') IS NOT NULL OR has_database_privilege(current_database(), 'CREATE'),
    format('CREATE SCHEMA recalld AUTHORIZATION %I', current_user)
"""


def migrate(url: str, *, lock_seconds: float = 10.0) -> list[str]:
    """Bring the tables up to date, in one transaction a migration; return the names of the migrations.

    Several processes may do so at once.

    Raises:
        StoreAway: the server cannot be reached.
        StoreUnreadable: it cannot serve a store, the tables are newer, or the role may not make them.
        StoreBusy: another process holds a lock for more than `lock_seconds`.
    """
    with connect(url) as connection, translated():
        names = []
        _require_rights(connection)
        for number in range(read_facts(connection).number + 1, SCHEMA_NUMBER + 1):
            with connection.transaction():
                connection.execute(f"SET LOCAL lock_timeout = {round(lock_seconds * 1000)}")
                connection.execute("SELECT pg_advisory_xact_lock(hashtext('recalld migrate'))")
                # Another process may have made it meanwhile.
                if read_facts(connection).number < number:
                    name, statements = MIGRATIONS[number - 1]
                    connection.execute(statements)
                    connection.execute(
                        "INSERT INTO recalld.schema_steps (number, name) VALUES (%s, %s)", (number, name)
                    )
                    names.append(name)
        return names


def _require_rights(connection: Connection) -> None:
    """Raise StoreUnreadable if the server, its schema or the role does not let this version migrate."""
    facts = read_facts(connection)
    if facts.number == 0:
        missing = [statement for is_there, statement in connection.execute(_RIGHTS) if not is_there]
        if missing:
            raise StoreUnreadable(
                f"the role {facts.role} may not make all parts of the store; have an administrator run in this "
                f"database: {'; '.join(missing)}"
            )
        if facts.is_superuser:
            connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
            facts = read_facts(connection)
    problem = facts.server_problem() or (facts.schema_problem() if facts.number > SCHEMA_NUMBER else None)
    if problem is not None:
        raise StoreUnreadable(problem)
