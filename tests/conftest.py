"""Fixtures that many tests share: a home, its settings and its private broker."""

from __future__ import annotations

import datetime
import ipaddress
import os
import shutil
import signal
import ssl
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis
import structlog
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from memory.status.run_files import socket_path
from memory.store.postgres.connection import Database
from schemas.settings import Settings
from tests.batch_server import BatchServer
from tests.examples import register_profiles
from tests.forked import forking
from tests.leftovers import keep_orphans, must_end, nothing_left
from tests.postgres_server import PostgresServer, Urls
from workers.queue.connection import connect, namespace
from workers.queue.names import Keys
from workers.queue.private_server import BrokerServer

register_profiles()

_exit_status = pytest.StashKey[int]()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    session.config.stash[_exit_status] = int(exitstatus)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """End although a thread goes on that failed its test; processes of a run in parallel are ended by the first one."""
    if not hasattr(config, "workerinput") and any(
        map(must_end, set(threading.enumerate()) - {threading.main_thread()})
    ):
        sys.stdout.flush()
        os._exit(config.stash.get(_exit_status, 1))


#: Seconds after which a test that hangs, or one marked `long`, has failed. No statement about speed.
LIMIT_SECONDS, LONG_LIMIT_SECONDS = 600, 1800

#: Seconds after which a test that is over its limit, and waits again for what it leaves behind, is interrupted again.
AGAIN_SECONDS = 20

_limit = pytest.StashKey[Any]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give every test its time limit."""
    for item in items:
        item.add_marker(
            pytest.mark.timeout(LONG_LIMIT_SECONDS if item.get_closest_marker("long") else LIMIT_SECONDS, "signal")
        )


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> Any:
    """Interrupt again and again: what a failing test waits for at its end may never come either."""
    item.stash[_limit] = settings
    done = yield
    signal.setitimer(signal.ITIMER_REAL, settings.timeout, AGAIN_SECONDS)
    return done


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Bound the end of a test too: pytest-timeout stops counting at the first failure."""
    item.ihook.pytest_timeout_set_timer(item=item, settings=item.stash[_limit])


class Progress:
    """A line every half a minute: tests that are over, of how many, and what takes long; and one for each failure."""

    EVERY_SECONDS = 30.0

    def __init__(self, session: pytest.Session) -> None:
        self._session = session
        self._begun = self._said = time.monotonic()
        self._over = self._failed = 0
        self._running: dict[str, float] = {}

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._running[nodeid] = time.monotonic()
        self._tell()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed += 1
            self._say(f"failed: {report.nodeid} ({report.when})")

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._running.pop(nodeid, None)
        self._over += 1
        self._tell()

    def _tell(self) -> None:
        now, wanted = time.monotonic(), self._session.testscollected
        if now - self._said < self.EVERY_SECONDS or not wanted:
            return
        self._said = now
        slow = [name for name, begun in self._running.items() if now - begun > self.EVERY_SECONDS]
        self._say(
            f"{now - self._begun:.0f} s: {self._over} of {wanted} tests ({100 * self._over // wanted} %), "
            f"{self._failed} failed{'; still at ' if slow else ''}{', '.join(slow)}"
        )

    def _say(self, line: str) -> None:
        terminal = self._session.config.pluginmanager.get_plugin("terminalreporter")
        terminal.ensure_newline()
        terminal.write_line(line)
        terminal.flush()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Tell progress where a person may look, not in the processes that run a part of the tests."""
    if not hasattr(session.config, "workerinput"):
        session.config.pluginmanager.register(Progress(session))


@pytest.fixture(scope="session", autouse=True)
def _own_signals() -> None:
    """Give processes that tests start the signals of a terminal's foreground, whatever this one was started with.

    A handler is not inherited, an ignored signal is: `nohup` ignores SIGHUP, a shell's background SIGINT and SIGQUIT.
    """
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    keep_orphans()


@pytest.fixture(scope="session", autouse=True)
def _forking(_own_signals: None) -> Iterator[None]:
    """Not below a test, which ends what it started."""
    with forking():
        yield


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    """First of a test's fixtures, so that it looks when all others are gone."""
    with nothing_left():
        yield


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home folder that nothing was written to yet."""
    return tmp_path / "home"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """An empty workspace with its memory folder."""
    folder = tmp_path / "workspace"
    (folder / "memory").mkdir(parents=True)
    return folder


@pytest.fixture
def settings(home: Path, workspace: Path) -> Settings:
    """One agent, the deterministic stub provider, everything else as it comes."""
    return Settings.model_validate(
        {"home": home, "provider": "stub", "agents": [{"id": "main", "workspace": workspace, "provider": "stub"}]}
    )


@pytest.fixture
def server() -> Iterator[BatchServer]:
    """An endpoint that embeds and counts, one text at a time or in batch jobs."""
    with BatchServer() as running:
        yield running


@pytest.fixture
def redis_url(tmp_path: Path) -> Iterator[str]:
    """A server in no home of ours, which several homes may share."""
    owner = Settings(home=tmp_path / "queue")
    server = BrokerServer(owner)
    server.ensure()
    yield f"unix://{socket_path(owner.home)}"
    server.stop()


@pytest.fixture(scope="session")
def postgres_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> PostgresServer:
    """The PostgreSQL of the run, with pgvector, which its processes share."""
    folder, owner = tmp_path_factory.getbasetemp(), os.getpid()
    if hasattr(request.config, "workerinput"):  # the variable of the worker is also that of runs which it starts
        folder, owner = folder.parent, os.getppid()
    return PostgresServer.of_run(folder / "postgres", owner=owner)


@pytest.fixture
def own_server(postgres_server: PostgresServer, tmp_path: Path) -> Iterator[PostgresServer]:
    """A migrated PostgreSQL that the test may stop."""
    server = postgres_server.copy(tmp_path / "postgres")
    server.start()
    yield server
    server.kill()
    shutil.rmtree(tmp_path / "postgres")


@pytest.fixture
def fleet_urls(postgres_server: PostgresServer) -> Iterator[Urls]:
    """A migrated database without rows."""
    with postgres_server.lent_database() as urls:
        yield urls


@pytest.fixture
def database(fleet_urls: Urls) -> Iterator[Database]:
    """That database, as a worker opens it."""
    with closing(Database(fleet_urls.writer)) as database:
        yield database


@pytest.fixture
def broker_server(settings: Settings) -> Iterator[BrokerServer]:
    """The home's private Valkey, running."""
    server = BrokerServer(settings)
    server.ensure()
    yield server
    server.stop()


@pytest.fixture
def client(settings: Settings, broker_server: BrokerServer) -> Iterator[redis.Redis]:
    """A client of the home's Valkey."""
    with connect(settings) as connected:
        yield connected


@pytest.fixture
def keys(settings: Settings) -> Keys:
    """The home's key names."""
    return Keys(namespace(settings))


@pytest.fixture(autouse=True)
def _plain_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit the settings of logs of a command in this process to its own test.

    Modules keep a logger that is cached, with all that was said of it, for the tests after it.
    """
    configure = structlog.configure
    monkeypatch.setattr(
        structlog, "configure", lambda **options: configure(**{**options, "cache_logger_on_first_use": False})
    )
    structlog.reset_defaults()
    # Not to where the answers of commands are read from.
    configure(logger_factory=lambda *_: structlog.PrintLogger(sys.stderr))


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Key and certificate for 127.0.0.1, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "recalld")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = tmp_path_factory.mktemp("tls") / "certificate.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return file


@pytest.fixture
def tls(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context
