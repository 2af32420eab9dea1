"""Migration of the fleet's database, by a user who owns its tables."""

from __future__ import annotations

from collections.abc import Sequence

from memory.store.errors import StoreUnreadable
from memory.store.postgres.connection import connect, read_facts, translated
from memory.store.postgres.schema import ADD_WORKS_WITH, GUARD, MIGRATIONS, NOTE_MIGRATION, Migration

#: Rights for the first migration, each with the statement by which an administrator makes up for it.
_RIGHTS = """
SELECT rolsuper OR EXISTS (SELECT FROM pg_extension WHERE extname = 'vector'), 'CREATE EXTENSION vector'
FROM pg_roles WHERE rolname = current_user
UNION ALL
SELECT rolsuper OR rolcreaterole OR to_regrole(role) IS NOT NULL, 'CREATE ROLE ' || role
FROM pg_roles, unnest(ARRAY['recalld_writer', 'recalld_reader']) AS role WHERE rolname = current_user
UNION ALL
SELECT to_regnamespace('recalld') IS NOT NULL OR has_database_privilege(current_database(), 'CREATE'),
    format('CREATE SCHEMA recalld AUTHORIZATION %I', current_user)
"""

_ADD_PGVECTOR = """
DO $$ BEGIN
    IF EXISTS (SELECT FROM pg_available_extensions WHERE name = 'vector') THEN
        CREATE EXTENSION IF NOT EXISTS vector;
    END IF;
END $$
"""


def migrate(url: str, *, lock_seconds: float = 10.0, migrations: Sequence[Migration] = MIGRATIONS) -> list[str]:
    """Make the tables, or bring them up to date; return the names of the migrations, each of which is a transaction.

    Several processes may do so at once. Raises StoreAway, StoreUnreadable with the remedy, and StoreBusy after
    `lock_seconds` of waiting for another process.
    """
    names = []
    with connect(url) as connection, translated():
        facts = read_facts(connection)
        if facts.number == 0 and facts.server >= 160_000:
            missing = [statement for has_right, statement in connection.execute(_RIGHTS) if not has_right]
            if missing:
                problem = (
                    f"{facts.user} may not make all that the store needs; have an administrator run in this database"
                )
                raise StoreUnreadable(f"{problem}: {'; '.join(missing)}")
            connection.execute(_ADD_PGVECTOR)
            facts = read_facts(connection)
        fault = facts.fault(migrates=True)
        if fault is not None:
            raise StoreUnreadable(fault)
        for number in range(facts.number + 1, len(migrations) + 1):
            with connection.transaction():
                connection.execute(f"SET LOCAL lock_timeout = {round(1000 * lock_seconds)}")
                connection.execute("SELECT pg_advisory_xact_lock(hashtext('recalld migrate'))")
                # Another process may have been faster.
                if read_facts(connection).number < number:
                    name, statements, works_with = migrations[number - 1]
                    connection.execute(statements + GUARD + ADD_WORKS_WITH)
                    connection.execute(NOTE_MIGRATION, (number, name, works_with))
                    names.append(name)
    return names
