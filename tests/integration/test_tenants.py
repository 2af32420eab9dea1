"""Tenants, access tokens and agents of a fleet, in a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from memory.store.errors import StoreUnreadable
from memory.store.postgres.administration import Administration, bind_machine
from memory.store.postgres.connection import Database
from memory.store.postgres.directory import TRUSTED_SECONDS, AccessToken, FleetDirectory, token_hash
from schemas.agents import Scope
from schemas.errors import UserError
from schemas.settings import Settings, has_agent
from tests.postgres_server import Urls
from tests.working import Workers
from workers.runtime import Runtime


class _Clock:
    """Monotonic time that a test sets."""

    now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def reading(fleet_urls: Urls) -> Iterator[Database]:
    """The database as the query service opens it."""
    database = Database(fleet_urls.reader)
    yield database
    database.close()


@pytest.fixture
def fleet(database: Database) -> Administration:
    """The administration of a fleet with the tenants acme and umbrella."""
    fleet = Administration(database, actor="root")
    fleet.add_tenant("acme")
    fleet.add_tenant("umbrella")
    return fleet


@pytest.fixture
def clock() -> _Clock:
    return _Clock()


@pytest.fixture
def directory(fleet: Administration, reading: Database, settings: Settings, clock: _Clock) -> FleetDirectory:
    return FleetDirectory(settings.model_copy(update={"agents": ()}), reading, clock=clock)


def audit(database: Database, tenant: str) -> list[tuple[Any, ...]]:
    with database.transaction(tenant) as connection:
        return connection.execute("SELECT actor, act, subject FROM recalld.audit ORDER BY id").fetchall()


#: Rows of an agent: a generation, and as many documents, chunks and cached vectors as are asked for.
ROWS = """
INSERT INTO recalld.generations (tenant, agent, generation, state, fingerprint, identity)
    VALUES (%(tenant)s, %(agent)s, %(tenant)s || %(agent)s, 'current', '', '');
INSERT INTO recalld.files (tenant, agent, generation, id, source, path, size, mtime_ns, inode, content_hash, revision,
    indexed_at, notes)
    SELECT %(tenant)s, %(agent)s, %(tenant)s || %(agent)s, n, 'memory', n || '.md', 1, 1, 1, '', 1, 1, ''
    FROM generate_series(1, 1500) n;
INSERT INTO recalld.chunks (tenant, agent, generation, id, file_id, ordinal, start_line, end_line, text_hash,
    vector_state, text, words)
    SELECT %(tenant)s, %(agent)s, %(tenant)s || %(agent)s, n, n, 0, 1, 1, '', 'pending', '', ''
    FROM generate_series(1, 1500) n;
INSERT INTO recalld.embeddings (tenant, identity, hash, vector, used)
    SELECT %(tenant)s, '', sha256((%(agent)s || n)::bytea), '', 1 FROM generate_series(1, 1500) n
"""


def fill(fleet: Administration, database: Database, agent: str) -> None:
    """Add an agent with 1,500 documents."""
    scope = Scope.of(agent)
    fleet.add_agent(scope.tenant, scope.agent)
    with database.transaction(scope) as connection:
        for statement in ROWS.split(";"):
            connection.execute(statement.encode(), {"tenant": scope.tenant, "agent": scope.agent})


def rows_of(fleet_urls: Urls, tenant: str) -> dict[str, int]:
    """Count the tenant's rows in every table, past all policies."""
    import psycopg

    with psycopg.connect(fleet_urls.superuser) as connection:
        tables = connection.execute(
            "SELECT table_name FROM information_schema.columns "
            "WHERE table_schema = 'recalld' AND column_name = 'tenant'"
        ).fetchall()
        counts = {}
        for (table,) in tables:
            query = f"SELECT count(*) FROM recalld.{table} WHERE tenant = %s"
            (counts[table],) = connection.execute(query.encode(), (tenant,)).fetchone() or (0,)
    return {table: count for table, count in counts.items() if count}


def test_a_token_is_in_the_store_as_its_hash_alone(fleet: Administration, fleet_urls: Urls):
    import psycopg

    secret = fleet.add_token("acme", "bot", rights=["search"])
    with psycopg.connect(fleet_urls.superuser) as connection:
        rows = connection.execute("SELECT t::text FROM recalld.access_tokens AS t").fetchall()
        rows += connection.execute("SELECT a::text FROM recalld.audit AS a").fetchall()
    assert token_hash(secret).hex() in rows[0][0]
    assert not any(secret.removeprefix("rcl_") in row for (row,) in rows)


def test_a_service_knows_a_token_and_its_rights(fleet: Administration, directory: FleetDirectory):
    secret = fleet.add_token("acme", "bot", rights=["search", "ingest"], agents=["bob", "anna"], days=1)
    token = directory.token(token_hash(secret))
    assert token is not None
    assert (token.tenant, token.name, token.rights) == ("acme", "bot", ("ingest", "search"))
    assert token.agents == ("bob", "anna")
    assert token.expires_at is not None
    assert directory.token(token_hash("rcl_other")) is None


def test_a_revoked_token_is_unknown_after_five_seconds(fleet: Administration, directory: FleetDirectory, clock: _Clock):
    digest = token_hash(fleet.add_token("acme", "bot", rights=["search"]))
    assert directory.token(digest) is not None
    fleet.revoke("acme", "bot")
    clock.now += TRUSTED_SECONDS
    assert directory.token(digest) is None
    assert TRUSTED_SECONDS <= 5.0
    assert [token["state"] for token in fleet.tokens("acme")] == ["revoked"]


def test_an_agents_row_is_laid_over_the_settings_of_the_process(
    fleet: Administration, database: Database, directory: FleetDirectory, clock: _Clock
):
    fleet.add_agent("acme", "anna")
    before = directory.agent("acme/anna")
    overrides = '{"provider": "none", "query": {"max_results": 3}}'
    with database.transaction("acme") as connection:
        connection.execute("UPDATE recalld.agents SET settings = %s", (overrides,))
    assert directory.agent("acme/anna") == before
    clock.now += TRUSTED_SECONDS
    after = directory.agent("acme/anna")
    assert (after.id, after.provider, after.query.max_results) == ("acme/anna", "none", 3)
    assert after.query.min_score == before.query.min_score
    with database.transaction("acme") as connection:
        connection.execute("""UPDATE recalld.agents SET settings = '{"provider": "nonsense"}'""")
    clock.now += TRUSTED_SECONDS
    with pytest.raises(UserError, match=r"acme/anna.*provider"):
        directory.agent("acme/anna")


def test_agents_with_the_same_overrides_share_the_values_in_memory(fleet: Administration, directory: FleetDirectory):
    for agent in ("anna", "ben"):
        fleet.add_agent("acme", agent)
    anna, ben = map(directory.agent, ("acme/anna", "acme/ben"))
    assert anna.query is ben.query
    assert anna.workspace != ben.workspace


def test_a_new_agent_is_there_at_once_and_an_unknown_one_is_not(fleet: Administration, directory: FleetDirectory):
    for unknown in ("acme/anna", "umbrella/anna", "anna"):
        with pytest.raises(KeyError):
            directory.agent(unknown)
    fleet.add_agent("acme", "anna")
    assert directory.agent("acme/anna").id == "acme/anna"
    assert not has_agent(directory, "umbrella/anna")


def test_agents_are_listed_page_by_page(fleet: Administration, database: Database, directory: FleetDirectory):
    with database.transaction("acme") as connection:
        connection.execute(
            "INSERT INTO recalld.agents (tenant, agent) SELECT 'acme', to_char(n, 'FM0000') "
            "FROM generate_series(1, 1200) AS n"
        )
    fleet.add_agent("umbrella", "eve")
    assert list(directory.agent_ids()) == [*(f"acme/{number:04}" for number in range(1, 1201)), "umbrella/eve"]
    assert directory.page("acme", after="0003", limit=2) == ["0004", "0005"]
    assert directory.page("umbrella", after="", limit=2) == ["eve"]


def test_an_ingest_token_belongs_to_the_first_machine_that_uses_it(fleet: Administration, database: Database):
    fleet.add_token("acme", "laptop", rights=["ingest"])
    token = AccessToken(tenant="acme", name="laptop", rights=("ingest",))
    assert [bind_machine(database, token, machine) for machine in ("m1", "m2", "m1", "m2")] == [
        True,
        False,
        True,
        False,
    ]
    (listed,) = fleet.tokens("acme")
    assert (listed["machine"], listed["refusedMachines"]) == ("m1", ["m2"])
    assert listed["usedOn"] is not None


def test_every_act_leaves_an_audit_row_without_a_secret(fleet: Administration, database: Database):
    secret = fleet.add_token("acme", "bot", rights=["search"], agents=["anna"])
    fleet.set_tenant("acme", weight=2)
    fleet.revoke("acme", "bot")
    fleet.remove_tenant("acme")
    rows = audit(database, "acme")
    acts = ["add tenant", "add token", "add agent", "set tenant", "revoke token", "remove tenant"]
    assert [(actor, act) for actor, act, _ in rows] == [("root", act) for act in acts]
    assert secret not in str(rows)
    assert len(audit(database, "umbrella")) == 1


def test_a_tenants_weight_and_budget_are_changed_apart(fleet: Administration):
    fleet.set_tenant("acme", tokens_a_day=1000)
    fleet.set_tenant("acme", weight=0.5)
    acme, umbrella = fleet.tenants()
    assert acme == {"tenant": "acme", "weight": 0.5, "tokensADay": 1000, "agents": 0}
    assert umbrella == {"tenant": "umbrella", "weight": 1, "tokensADay": None, "agents": 0}
    fleet.set_tenant("acme", tokens_a_day=0)
    assert fleet.tenants()[0]["tokensADay"] is None


def test_a_tenant_with_documents_is_removed_only_by_force(fleet: Administration, database: Database, fleet_urls: Urls):
    for agent in ("acme/anna", "acme/bob", "umbrella/anna"):
        fill(fleet, database, agent)
    fleet.add_token("acme", "bot", rights=["search"])
    kept = rows_of(fleet_urls, "umbrella")
    before = rows_of(fleet_urls, "acme")
    with pytest.raises(UserError, match="2 agents with 3,000 documents"):
        fleet.remove_tenant("acme")
    assert rows_of(fleet_urls, "acme") == before
    fleet.remove_tenant("acme", force=True)
    assert list(rows_of(fleet_urls, "acme")) == ["audit"]
    assert rows_of(fleet_urls, "umbrella") == kept
    assert [tenant["tenant"] for tenant in fleet.tenants()] == ["umbrella"]


def test_a_name_that_cannot_be_one_is_refused(fleet: Administration):
    for name in ("shared", "*", "", "a/b", "-a", "ä", "a" * 65, "a\n", "a'b", "a\x00"):
        for act in (fleet.add_tenant, fleet.set_tenant, fleet.remove_tenant, fleet.tokens):
            with pytest.raises(UserError) as caught:
                act(name)
            assert caught.value.exit_code == 2
        for token, agents in ((name, ()), ("bot", (name,))):
            with pytest.raises(UserError):
                fleet.add_token("acme", token, rights=["search"], agents=agents)
    assert fleet.tokens("acme") == []


def test_the_default_tenant_may_have_a_row(fleet: Administration, directory: FleetDirectory):
    fleet.add_tenant("default")
    fleet.add_agent("default", "main")
    assert directory.agent("main").id == "main"
    assert list(directory.agent_ids()) == ["main"]


def test_acts_on_unknown_names_change_nothing(fleet: Administration, database: Database):
    for act in (
        lambda: fleet.set_tenant("other", weight=2),
        lambda: fleet.remove_tenant("other"),
        lambda: fleet.add_token("other", "bot", rights=["search"]),
        lambda: fleet.add_agent("other", "anna"),
        lambda: fleet.revoke("acme", "bot"),
        lambda: fleet.add_tenant("acme"),
    ):
        with pytest.raises(UserError):
            act()
    assert len(audit(database, "acme")) == 1
    assert audit(database, "other") == []


def test_a_reader_may_not_administer_and_is_answered_with_the_remedy(fleet_urls: Urls, reading: Database):
    with pytest.raises(StoreUnreadable, match="GRANT it recalld_writer"):
        Administration(reading, actor="root").add_tenant("acme")


def test_a_worker_knows_agents_by_their_rows(fleet: Administration, settings: Settings, fleet_urls: Urls):
    of_fleet = {"home": settings.home, "provider": "none", "store": {"url": fleet_urls.writer}}
    workers = Workers(Settings.model_validate(of_fleet))
    runtime = Runtime(workers.settings, workers.queue, workers.health)
    fleet.add_agent("acme", "anna")
    with runtime.indexer("acme/anna") as indexer:
        assert indexer.agent.id == "acme/anna"
    with pytest.raises(KeyError), runtime.indexer("umbrella/anna"):
        pass
    runtime.close()
    workers.client.close()
