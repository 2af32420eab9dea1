"""Administration of a fleet: tenants, access tokens, and the audit rows that every such act leaves.

An audit row has names alone. It stays when its tenant is removed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from psycopg.types.json import Jsonb

from memory.store.postgres.connection import Connection, Database
from memory.store.postgres.directory import AccessToken, new_token, token_hash
from schemas.agents import NAME, SHARED_CACHE, Scope
from schemas.errors import UserError

#: Rows of one partition that a transaction of `remove_tenant` deletes at most.
_BATCH_ROWS = 1_000

#: Deleted first, in this order: without them no request and no commit adds rows while the others go.
_GATES = ("access_tokens", "agents", "generations")

#: A budget of 0 is none.
_ADD_TENANT = """
INSERT INTO recalld.tenants (tenant, weight, tokens_a_day) VALUES (%s, coalesce(%s, 1), nullif(%s, 0))
ON CONFLICT DO NOTHING
"""
_SET_TENANT = """
UPDATE recalld.tenants
SET weight = coalesce(%s, weight), tokens_a_day = nullif(coalesce(%s, tokens_a_day), 0) WHERE tenant = %s
"""
_TENANTS = """
SELECT json_build_object('tenant', tenant, 'weight', weight, 'tokensADay', tokens_a_day,
    'agents', (SELECT count(*) FROM recalld.agents AS a WHERE a.tenant = t.tenant))
FROM recalld.tenants AS t ORDER BY tenant
"""
_ADD_HASH = """
INSERT INTO recalld.access_tokens (hash, tenant, name, rights, agents, expires_at)
VALUES (%s, %s, %s, %s, %s, now() + %s * interval '1 day') ON CONFLICT DO NOTHING
"""
_TOKENS = """
SELECT json_build_object('tenant', tenant, 'name', name,
    'state', CASE WHEN revoked_at IS NOT NULL THEN 'revoked' WHEN expires_at <= now() THEN 'expired' ELSE 'valid' END,
    'rights', rights, 'agents', agents, 'madeAt', made_at, 'expiresAt', expires_at, 'usedOn', used_on,
    'machine', machine, 'refusedMachines', ARRAY(SELECT subject->>'machine' FROM recalld.audit AS a
        WHERE a.tenant = t.tenant AND act = 'refuse machine' AND subject->>'token' = t.name ORDER BY id))
FROM recalld.access_tokens AS t WHERE tenant = %s ORDER BY name
"""
_REVOKE = "UPDATE recalld.access_tokens SET revoked_at = now() WHERE tenant = %s AND name = %s AND revoked_at IS NULL"
_BIND = """
UPDATE recalld.access_tokens SET machine = %(machine)s, used_on = current_date
WHERE tenant = %(tenant)s AND name = %(token)s AND coalesce(machine, %(machine)s) = %(machine)s
"""
_REFUSE = """
INSERT INTO recalld.audit (tenant, actor, act, subject) SELECT %(tenant)s, %(token)s, 'refuse machine', %(subject)s
WHERE NOT EXISTS (SELECT FROM recalld.audit
    WHERE tenant = %(tenant)s AND act = 'refuse machine' AND subject = %(subject)s)
"""
#: Every table with rows of a tenant, later ones too.
_TABLES = """
SELECT c.relname FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attname = 'tenant'
WHERE c.relnamespace = 'recalld'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
    AND c.relname <> ALL (%s) ORDER BY c.relname
"""
#: Rows of two partitions may have one ctid; all of them are the tenant's.
_DELETE = """
DELETE FROM recalld.{table} WHERE tenant = %(tenant)s
    AND ctid = ANY (ARRAY(SELECT ctid FROM recalld.{table} WHERE tenant = %(tenant)s LIMIT %(rows)s))
"""


class Administration:
    """Acts of an `actor`: the user of a command, or the name of a token. Lists are JSON objects, by name.

    Every method raises UserError for a wrong name, and the errors of `Database`.
    """

    def __init__(self, database: Database, *, actor: str) -> None:
        self._database, self._actor = database, actor

    def tenants(self) -> list[dict[str, Any]]:
        """Return all tenants."""
        with self._database.directory() as connection:
            return [tenant for (tenant,) in connection.execute(_TENANTS).fetchall()]

    def agent_ids(self) -> list[str]:
        """Return the ids of all agents."""
        with self._database.directory() as connection:
            rows = connection.execute("SELECT tenant, agent FROM recalld.agents ORDER BY tenant, agent").fetchall()
        return [Scope(*row).agent_id for row in rows]

    def add_tenant(self, tenant: str, *, weight: float | None = None, tokens_a_day: int | None = None) -> None:
        """Add a tenant."""
        with self._acting(tenant, "add tenant", is_new=True, weight=weight, tokensADay=tokens_a_day) as connection:
            if not connection.execute(_ADD_TENANT, (tenant, weight, tokens_a_day)).rowcount:
                raise UserError(f"there is a tenant {tenant} already; `recalld tenant set {tenant}` changes it")

    def set_tenant(self, tenant: str, *, weight: float | None = None, tokens_a_day: int | None = None) -> None:
        """Change the weight, the budget, or both; a budget of 0 is taken away."""
        with self._acting(tenant, "set tenant", weight=weight, tokensADay=tokens_a_day) as connection:
            connection.execute(_SET_TENANT, (weight, tokens_a_day, tenant))

    def remove_tenant(self, tenant: str, *, force: bool = False) -> int:
        """Delete a tenant with its tokens, agents and indexes, and return the number of rows. Resumes after a crash.

        Raises:
            UserError: there are documents, without `force`.
        """
        with self._acting(tenant, "remove tenant", force=force) as connection:
            count = "SELECT count(*), count(DISTINCT agent) FROM recalld.files WHERE tenant = %s"
            documents, agents = connection.execute(count, (tenant,)).fetchone() or (0, 0)
            if documents and not force:
                raise UserError(
                    f"{tenant} has {agents:,} agents with {documents:,} documents, which would be deleted for good; "
                    "--force deletes them"
                )
            tables = [name for (name,) in connection.execute(_TABLES, ([*_GATES, "tenants", "audit"],)).fetchall()]
        return sum(self._delete(tenant, table) for table in (*_GATES, *tables, "tenants"))

    def tokens(self, tenant: str) -> list[dict[str, Any]]:
        """Return the tenant's access tokens, revoked ones as well."""
        with self._acting(tenant, None) as connection:
            return [token for (token,) in connection.execute(_TOKENS, (tenant,)).fetchall()]

    def add_token(
        self, tenant: str, name: str, *, rights: Collection[str], agents: Sequence[str] = (), days: float | None = None
    ) -> str:
        """Return a new access token, for all agents if none is named. Missing agents are added."""
        for text in (name, *agents):
            _check_name(text)
        token = new_token()
        row = (token_hash(token), tenant, name, sorted(rights), list(agents) or None, days)
        subject: dict[str, Any] = {"token": name, "rights": sorted(rights), "agents": list(agents)}
        with self._acting(tenant, "add token", **subject) as connection:
            if not connection.execute(_ADD_HASH, row).rowcount:
                raise UserError(f"{tenant} has, or had, a token {name}; choose another name")
        for agent in agents:
            self.add_agent(tenant, agent)
        return token

    def add_agent(self, tenant: str, agent: str) -> None:
        """Add an agent to its tenant, unless it is there."""
        _check_name(agent)
        with self._acting(tenant, "add agent", agent=agent) as connection:
            statement = "INSERT INTO recalld.agents (tenant, agent) VALUES (%s, %s) ON CONFLICT DO NOTHING"
            connection.execute(statement, (tenant, agent))

    def revoke(self, tenant: str, name: str) -> None:
        """Revoke a token. Services refuse it within five seconds."""
        with self._acting(tenant, "revoke token", token=name) as connection:
            if not connection.execute(_REVOKE, (tenant, name)).rowcount:
                raise UserError(f"{tenant} has no valid token {name}; `recalld token list {tenant}` lists its tokens")

    @contextmanager
    def _acting(self, tenant: str, act: str | None, *, is_new: bool = False, **subject: Any) -> Iterator[Connection]:
        """Lend a connection in a transaction of a tenant that notes the act. Raise UserError if there is no tenant."""
        _check_name(tenant)
        with self._database.transaction(tenant) as connection:
            query = "SELECT FROM recalld.tenants WHERE tenant = %s"
            if not is_new and connection.execute(query, (tenant,)).fetchone() is None:
                raise UserError(f"there is no tenant {tenant}; `recalld tenant list` lists them")
            yield connection
            if act is not None:
                note = "INSERT INTO recalld.audit (tenant, actor, act, subject) VALUES (%s, %s, %s, %s)"
                connection.execute(note, (tenant, self._actor, act, Jsonb(subject)))

    def _delete(self, tenant: str, table: str) -> int:
        """Delete all rows of a tenant in one table, in transactions of bounded size."""
        deleted, statement = 0, _DELETE.format(table=table).encode()
        while True:
            with self._database.transaction(tenant) as connection:
                rows = connection.execute(statement, {"tenant": tenant, "rows": _BATCH_ROWS}).rowcount
            deleted += rows
            if not rows:
                return deleted


def bind_machine(database: Database, token: AccessToken, machine: str) -> bool:
    """Bind a token to the first machine that uses it. Return False for any other machine, which is listed once."""
    names = {"tenant": token.tenant, "token": token.name, "machine": machine}
    with database.transaction(token.tenant) as connection:
        if connection.execute(_BIND, names).rowcount:
            return True
        connection.execute(_REFUSE, {**names, "subject": Jsonb({"token": token.name, "machine": machine})})
        return False


def _check_name(name: str) -> None:
    if name == SHARED_CACHE or not NAME.fullmatch(name):
        problem = "it is reserved, or is not 1 to 64 letters, digits, dots, dashes and underscores"
        raise UserError(f"{name!r} cannot be a name here: {problem}", exit_code=2)
