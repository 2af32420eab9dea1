"""The fleet's database: its migration, its checks at first use, and its failures."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import psycopg
import pytest
from pydantic import SecretStr

from memory.store.errors import StoreAway, StoreBusy, StoreFull, StoreUnreadable
from memory.store.postgres.administration import Administration
from memory.store.postgres.connection import POOL_SIZE, Database, ServerFacts
from memory.store.postgres.migration import migrate
from memory.store.postgres.schema import MIGRATIONS, SCHEMA_NUMBER, Migration
from recalld.cli import run
from recalld.doctor import machine
from schemas.agents import Scope
from schemas.errors import Transient
from schemas.settings import StoreSettings
from tests.daemon import REPOSITORY
from tests.postgres_server import MIGRATOR, WRITER, PostgresServer, Urls

ACME = Scope("acme", "anna")
_ADD = "INSERT INTO recalld.tenants (tenant) VALUES ('acme')"
_COUNT = "SELECT count(*) FROM recalld.tenants"


@pytest.fixture
def new_server(tmp_path: Path) -> Iterator[PostgresServer]:
    """A server without databases, roles and tables."""
    server = PostgresServer(tmp_path / "server")
    server.start()
    yield server
    server.kill()


def refusal(url: str) -> str:
    """Return the sentence with which a database is refused."""
    with closing(Database(url)) as database, pytest.raises(StoreUnreadable) as refused, database.transaction(ACME):
        pass
    assert "\n" not in str(refused.value)
    return str(refused.value)


def count(database: Database) -> int:
    with database.transaction(ACME, read_only=True) as connection:
        return int(next(connection.execute(_COUNT))[0])


# Migration


def test_migrate_makes_the_tables_once_and_names_the_next_step(
    postgres_server: PostgresServer, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = postgres_server.empty_database()
    url = postgres_server.url(name, MIGRATOR)
    assert "recalld migrate" in refusal(postgres_server.url(name, WRITER))
    assert run(["--home", str(home), "migrate", "--url", url]) == 0
    assert "GRANT recalld_writer TO" in capsys.readouterr().out
    monkeypatch.setenv("RECALLD_STORE__MIGRATE_URL", url)
    assert run(["--home", str(home), "migrate"]) == 0
    output = capsys.readouterr().out
    assert "nothing to do" in output
    assert "GRANT" not in output
    with closing(Database(postgres_server.url(name, WRITER))) as database:
        assert count(database) == 0


def test_migrate_without_a_database_is_wrong_usage(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--home", str(home), "migrate"]) == 2
    assert "store.migrate_url" in capsys.readouterr().err


def test_a_url_that_cannot_be_read_is_refused_without_its_password(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["--home", str(home), "migrate", "--url", "postgresql://owner:pass@word@db:port/x"]) == 1
    assert "word@" not in capsys.readouterr().err


def test_concurrent_migrations_make_the_tables_once(postgres_server: PostgresServer) -> None:
    url = postgres_server.url(postgres_server.empty_database(), MIGRATOR)
    with ThreadPoolExecutor(4) as pool:
        outcomes = list(pool.map(migrate, [url] * 4))
    assert sum(map(len, outcomes)) == SCHEMA_NUMBER


def test_migrate_gives_up_when_a_lock_is_held(postgres_server: PostgresServer) -> None:
    url = postgres_server.url(postgres_server.empty_database(), MIGRATOR)
    with psycopg.connect(url) as holder:
        holder.execute("SELECT pg_advisory_xact_lock(hashtext('recalld migrate'))")
        with pytest.raises(StoreBusy):
            migrate(url, lock_seconds=0.05)


def test_a_failed_migration_leaves_nothing_behind(postgres_server: PostgresServer) -> None:
    name = postgres_server.empty_database()
    postgres_server.execute(f"CREATE SCHEMA recalld AUTHORIZATION {MIGRATOR}", database=name)
    postgres_server.execute("CREATE TABLE recalld.batch_texts ()", database=name)
    url = postgres_server.url(name, MIGRATOR)
    with pytest.raises(psycopg.errors.DuplicateTable):
        migrate(url)
    postgres_server.execute("DROP TABLE recalld.batch_texts", database=name)
    assert len(migrate(url)) == SCHEMA_NUMBER


def test_the_named_statements_are_all_that_an_administrator_must_run(new_server: PostgresServer) -> None:
    new_server.execute("CREATE ROLE plain LOGIN; CREATE ROLE worker1 LOGIN")
    url = new_server.url("postgres", "plain")
    with pytest.raises(StoreUnreadable) as refused:
        migrate(url)
    statements = str(refused.value).partition("database: ")[2].split("; ")
    assert statements[0] == "CREATE EXTENSION vector"
    for statement in statements:
        new_server.execute(statement)
    assert len(migrate(url)) == SCHEMA_NUMBER
    new_server.execute("GRANT recalld_writer TO worker1")
    with closing(Database(new_server.url("postgres", "worker1"))) as database:
        assert count(database) == 0


# Checks at first use


@pytest.mark.parametrize(
    ("server", "pgvector", "word"), [(150_010, "0.8.1", "16"), (160_014, None, "0.8"), (160_014, "0.7.4", "0.8")]
)
def test_old_servers_are_refused(server: int, pgvector: str | None, word: str) -> None:
    facts = ServerFacts(server, pgvector, "worker1", False, False, False, 0)
    assert word in (facts.fault() or "")
    assert facts.fault() == facts.fault(migrates=True)


@pytest.mark.parametrize("pgvector", ["0.8.0", "0.10.1", "1.0"])
def test_newer_versions_are_served(pgvector: str) -> None:
    assert ServerFacts(180_004, pgvector, "owner1", False, False, False, 0).fault(migrates=True) is None


def test_a_database_without_pgvector_is_refused(postgres_server: PostgresServer) -> None:
    assert "pgvector" in refusal(postgres_server.url(postgres_server.empty_database(with_pgvector=False), WRITER))


def test_migrate_needs_pgvector_on_the_server_and_brings_it_into_the_database(postgres_server: PostgresServer) -> None:
    url = postgres_server.url(postgres_server.empty_database(with_pgvector=False))
    with pytest.raises(StoreUnreadable, match="no pgvector"):
        migrate(f"{url}?options=-c%20extension_control_path%3D/nowhere")
    assert len(migrate(url)) == SCHEMA_NUMBER


@pytest.mark.parametrize(("works_with", "is_refused"), [(1, False), (SCHEMA_NUMBER + 1, True), (None, True)])
def test_tables_of_a_newer_version_are_refused_where_a_step_breaks_older_code(
    postgres_server: PostgresServer, works_with: int | None, is_refused: bool
) -> None:
    urls = postgres_server.database()
    later = Migration("later", "ALTER TABLE recalld.files ADD COLUMN colour text;", works_with or 1)
    assert migrate(urls.migrate, migrations=(*MIGRATIONS, later)) == ["later"]
    if works_with is None:
        with psycopg.connect(urls.migrate, autocommit=True) as connection:
            connection.execute("ALTER TABLE recalld.schema_steps DROP COLUMN works_with")
    if is_refused:
        assert f"(schema {SCHEMA_NUMBER + 1})" in refusal(urls.writer)
        with pytest.raises(StoreUnreadable, match=rf"\(schema {SCHEMA_NUMBER + 1}\)"):
            migrate(urls.migrate)
    else:
        assert Database(urls.writer).check().number == SCHEMA_NUMBER + 1
        assert migrate(urls.migrate) == []


@pytest.mark.parametrize(
    ("role", "word"),
    [
        ("LOGIN SUPERUSER", "superuser"),
        ("LOGIN BYPASSRLS IN ROLE recalld_writer", "BYPASSRLS"),
        (f"LOGIN IN ROLE {MIGRATOR}", "owns"),
        ("LOGIN", "GRANT"),
    ],
)
def test_a_user_whom_row_security_does_not_hold_is_refused(
    fleet_urls: Urls, postgres_server: PostgresServer, role: str, word: str
) -> None:
    unsafe = f"unsafe{os.getpid()}"  # other processes of the run have the same roles
    postgres_server.execute(f"CREATE ROLE {unsafe} {role}")
    try:
        url = fleet_urls.writer.replace(WRITER, unsafe)
        sentence = refusal(url)
        assert word in sentence
        finding = machine.store(StoreSettings(url=SecretStr(url)))
        assert (finding.message, finding.is_open) == (sentence, True)
    finally:
        postgres_server.execute(f"DROP ROLE {unsafe}")


def test_the_owner_of_the_tables_is_refused(fleet_urls: Urls) -> None:
    assert "owns" in refusal(fleet_urls.migrate)


def test_the_doctor_names_server_and_user_of_a_store_that_is_well(fleet_urls: Urls) -> None:
    finding = machine.store(StoreSettings(url=SecretStr(fleet_urls.reader)))
    assert not finding.is_open
    assert "query1" in finding.message


def test_the_doctor_stops_at_an_unsafe_store(
    fleet_urls: Urls, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECALLD_STORE__URL", fleet_urls.migrate)
    assert run(["--home", str(home), "doctor", "--json"]) == 4
    last = json.loads(capsys.readouterr().out)["findings"][-1]
    assert (last["check"], last["level"], last["message"]) == ("store", "problem", refusal(fleet_urls.migrate))


# Transactions and failures


def test_a_transaction_commits_at_its_end_and_rolls_back_after_an_error(database: Database) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero), database.transaction(ACME) as connection:
        connection.execute(f"{_ADD}; SELECT 1 / 0")
    assert count(database) == 0
    with database.transaction("acme") as connection:
        connection.execute(_ADD)
    assert count(database) == 1


def test_reads_of_one_transaction_see_one_state(database: Database) -> None:
    with database.transaction(ACME, read_only=True) as reader:
        before = reader.execute(_COUNT).fetchone()
        with database.transaction(ACME) as writer:
            writer.execute(_ADD)
        assert reader.execute(_COUNT).fetchone() == before


def read(database: Database) -> int:
    with database.reading(ACME) as connection:
        return int(next(connection.execute(_COUNT))[0])


def add(database: Database, tenant: str) -> None:
    with database.transaction(tenant) as connection:
        connection.execute("INSERT INTO recalld.tenants (tenant) VALUES (%s)", (tenant,))


def test_shared_reads_see_one_state_until_the_thread_writes_or_looks_again(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr("memory.store.postgres.connection.SHARED_SECONDS", 1e9)
    with ThreadPoolExecutor(1) as other, database.shared_reads(ACME):
        for look in (database.look_again, lambda: add(database, "umbrella")):
            before = read(database)
            with database.reading(ACME) as connection:
                database.once(connection, "query", lambda: asked.append("asked") or [])
                database.once(connection, "query", lambda: asked.append("again") or [])
            other.submit(add, database, "acme").result()
            assert read(database) == before
            look()
            assert read(database) == before + 1
            with database.transaction(ACME) as connection:
                connection.execute("DELETE FROM recalld.tenants")
    assert asked == ["asked", "asked"]
    assert count(database) == 0


def test_shared_reads_survive_an_error_and_leave_the_connection_to_a_write(database: Database) -> None:
    with database.shared_reads(ACME):
        with pytest.raises(psycopg.errors.DivisionByZero), database.reading(ACME) as connection:
            connection.execute("SELECT 1 / 0")
        with database.reading(ACME) as first:
            pass
        with database.reading(ACME) as second, database.reading(ACME) as third:
            database.look_again()  # in use: it ends with its last user
            assert first is second is third
            assert second.execute(_COUNT).fetchone() == (0,)
        with database.transaction(ACME) as writer:
            assert writer is second


def test_settings_of_a_transaction_end_with_it(database: Database) -> None:
    shown = "SELECT current_setting('recalld.tenant'), current_setting('statement_timeout')"
    with database.transaction(ACME, statement_seconds=7) as connection:
        assert connection.execute(shown).fetchone() == ("acme", "7s")
    assert connection.execute(shown).fetchone() == ("", "0")


@pytest.mark.parametrize(
    ("state", "error"), [("53100", StoreFull), ("55P03", StoreBusy), ("40P01", StoreBusy), ("57P01", StoreAway)]
)
def test_failures_of_the_server_are_those_of_the_store(database: Database, state: str, error: type[Transient]) -> None:
    with pytest.raises(error), database.transaction(ACME) as connection:
        connection.execute(f"DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '{state}'; END $$".encode())
    assert count(database) == 0


def test_a_statement_ends_at_its_deadline(database: Database) -> None:
    with pytest.raises(StoreBusy), database.transaction(ACME, statement_seconds=0.05) as connection:
        connection.execute("SELECT pg_sleep(600)")


def test_a_locked_row_is_waited_for_until_the_limit(database: Database) -> None:
    with database.transaction(ACME) as holder:
        holder.execute(_ADD)
        holder.execute("SELECT FROM recalld.tenants FOR UPDATE")
        with pytest.raises(StoreBusy), database.transaction(ACME, lock_seconds=0.05) as connection:
            connection.execute(_ADD)


def test_the_server_ends_a_transaction_whose_process_is_silent(database: Database) -> None:
    with database.transaction(ACME) as connection:
        connection.execute(_ADD)
        shown = connection.execute("SELECT current_setting('idle_in_transaction_session_timeout')").fetchone()
    assert shown == ("1min",)

    def lock_and_be_silent() -> None:
        with database.transaction(ACME, idle_seconds=0.05) as silent:
            silent.execute("SELECT FROM recalld.tenants FOR UPDATE")
            with database.transaction(ACME, lock_seconds=100.0) as other:
                other.execute("UPDATE recalld.tenants SET weight = 2")
            silent.execute("SELECT")

    with pytest.raises(StoreBusy):
        lock_and_be_silent()
    with database.transaction(ACME, read_only=True) as connection:
        assert connection.execute("SELECT weight FROM recalld.tenants").fetchone() == (2.0,)


def test_a_server_that_is_away_comes_back(own_server: PostgresServer) -> None:
    with closing(Database(own_server.urls().writer)) as database:
        with database.transaction(ACME) as connection:
            connection.execute(_ADD)
        own_server.kill()
        for _ in range(2):
            with pytest.raises(StoreAway):
                count(database)
        with closing(Database(own_server.url("postgres"))) as other, pytest.raises(StoreAway):
            count(other)
        own_server.start()
        assert count(database) == 1


def test_a_connection_that_breaks_within_a_transaction_is_replaced(database: Database) -> None:
    with pytest.raises(StoreAway), database.transaction(ACME) as connection:
        connection.execute(f"{_ADD}; SELECT pg_terminate_backend(pg_backend_pid())")
    assert count(database) == 0


def test_connections_that_broke_while_they_were_idle_are_replaced(database: Database, fleet_urls: Urls) -> None:
    with ExitStack() as transactions:
        for _ in range(POOL_SIZE):
            transactions.enter_context(database.transaction(ACME))
    with psycopg.connect(fleet_urls.superuser) as administrator:
        administrator.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND usename = %s",
            [WRITER],
        )
    assert count(database) == 0


def test_a_server_that_never_answers_is_away() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        closing(Database(f"postgresql://worker1@127.0.0.1:{silent.getsockname()[1]}/x")) as database,
        pytest.raises(StoreAway),
    ):
        count(database)


# Without a fleet


@pytest.mark.long
def test_a_home_in_sqlite_needs_no_client_of_postgresql(home: Path, workspace: Path) -> None:
    (workspace / "MEMORY.md").write_text("The cat is called Pixel.\n")
    code = (
        "import sys; sys.modules['psycopg'] = sys.modules['psycopg_pool'] = None\n"
        "import memory.service.run, recalld.up.daemon, recalld.doctor.examination, workers.run\n"
        "from recalld.cli import run\n"
        f"home, workspace = ['--home', {str(home)!r}], ['--workspace', {str(workspace)!r}]\n"
        "print([run([*home, *words, *workspace]) for words in (['index'], ['search', 'cat'])])\n"
        "run([*home, 'migrate', '--url', 'postgresql://x/y'])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "[0, 0]" in ended.stdout, ended.stdout + ended.stderr
    assert "recalld[fleet]" in ended.stderr


def test_a_connection_that_is_older_than_the_writer_takes_its_vectors(fleet_urls: Urls) -> None:
    code = f"""
from memory.store.postgres.connection import connect
connection = connect({fleet_urls.writer!r})
kind = next(connection.execute("SELECT 'halfvec'::regtype::oid::integer"))[0]
import numpy as np
from memory.store.postgres.rows import halfvecs
query = "SELECT (%s::halfvec[])[1]::text"
print(next(connection.execute(query, (halfvecs([np.ones(2)], kind),)))[0])
connection.close()
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.stdout.strip(), ended.stderr) == ("[1,1]", "")


def test_the_users_of_the_deployment_are_all_that_a_fleet_needs(new_server: PostgresServer) -> None:
    new_server.execute("CREATE DATABASE fleet")
    names = ("OWNER", "WORKER", "QUERY", "BACKUP", "PGBOUNCER")
    file = REPOSITORY / "deploy" / "compose" / "fleet.sql"
    made = new_server.client("psql", "-d", new_server.url("fleet"), "-f", file, **{f"{n}_PASSWORD": "p" for n in names})
    assert made.returncode == 0, made.stderr

    assert migrate(new_server.url("fleet", "recalld_owner")) == [step.name for step in MIGRATIONS]
    with closing(Database(new_server.url("fleet", "recalld_worker"))) as worker:
        Administration(worker, actor="test").add_tenant("acme")
    assert Database(new_server.url("fleet", "recalld_query")).check().user == "recalld_query"
    for user, code in (("recalld_owner", 1), ("recalld_backup", 0)):
        dump = new_server.client("pg_dump", "-n", "recalld", "-d", new_server.url("fleet", user))
        assert (dump.returncode, "\nacme\t" in dump.stdout) == (code, not code), user
