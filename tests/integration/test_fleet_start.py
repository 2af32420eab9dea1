"""Starts of a fleet's processes while PostgreSQL is away, or refuses them."""

from __future__ import annotations

import signal
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest

from tests.daemon import recalld, started
from tests.ports import free_port
from tests.postgres_server import READER, WRITER, PostgresServer
from tests.waiting import wait_until

COMMANDS = ("work", "serve", "ingest")


@pytest.fixture
def server(own_server: PostgresServer, tmp_path: Path) -> PostgresServer:
    """A server that wants a password of one user."""
    own_server.execute("CREATE ROLE secretive LOGIN PASSWORD 'right'")
    own_server.kill()
    users = tmp_path / "postgres" / "data" / "pg_hba.conf"
    users.write_text(f"host all secretive 127.0.0.1/32 scram-sha-256\n{users.read_text()}")
    own_server.start()
    return own_server


def status(port: int, path: str) -> int:
    with suppress(httpx.HTTPError):
        return httpx.get(f"http://127.0.0.1:{port}/{path}").status_code
    return 0


@pytest.mark.long
def test_processes_that_start_before_postgresql_wait_and_go_on(
    server: PostgresServer, redis_url: str, tmp_path: Path
) -> None:
    url = server.urls().writer
    server.kill()
    ports, processes = {name: free_port() for name in COMMANDS}, {}
    with ExitStack() as stack:
        for name, port in ports.items():
            user = url.replace(WRITER, READER) if name == "serve" else url
            environment = {"RECALLD_STORE__URL": user, "REDIS_URL": redis_url, "RECALLD_PROVIDER": "local"}
            log = stack.enter_context((tmp_path / name).open("wb"))
            where = {"home": tmp_path / f"{name}-home", "environment": environment}
            processes[name] = started(name, "--port", str(port), **where, stderr=log)
            stack.enter_context(processes[name])
            stack.callback(processes[name].kill)
        for port in ports.values():
            wait_until(lambda port=port: status(port, "healthz") == 200)  # type: ignore[misc]
            assert status(port, "readyz") == 503
        server.start()
        for name, port in ports.items():
            wait_until(lambda port=port: status(port, "readyz") == 200)  # type: ignore[misc]
            assert (tmp_path / name).read_text().count("waiting_for_store") == 1
        server.kill()
        for name, process in processes.items():
            process.send_signal(signal.SIGTERM)
            assert process.wait(120) == 0, (tmp_path / name).read_text()


def test_a_process_that_waits_for_postgresql_ends_at_a_signal(redis_url: str, home: Path) -> None:
    port = free_port()
    environment = {"RECALLD_STORE__URL": "postgresql://worker1@127.0.0.1:1/x", "REDIS_URL": redis_url}
    with started("serve", "--port", str(port), home=home, environment=environment) as process:
        wait_until(lambda: status(port, "healthz") == 200)
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0


def test_a_store_that_refuses_a_process_ends_its_start_with_a_sentence(
    server: PostgresServer, redis_url: str, home: Path
) -> None:
    for command, user, database, word in (
        ("work", "postgres", "absent", "absent"),
        ("serve", "stranger", "postgres", "stranger"),
        ("ingest", "secretive:wrong", "postgres", "secretive"),
        ("work", WRITER, server.empty_database(), "recalld migrate"),
    ):
        environment = {"RECALLD_STORE__URL": server.url(database, user), "REDIS_URL": redis_url}
        ended = recalld(command, "--port", str(free_port()), home=home, environment=environment)
        assert ended.returncode == 1, word
        assert ended.stderr.count("\n") == 1, ended.stderr
        assert word in ended.stderr
        assert "wrong" not in ended.stderr


@pytest.mark.parametrize(("proxy", "said"), [("false", "without TLS"), ("true", "203.0.113.1")])
def test_the_door_goes_beyond_loopback_only_behind_a_proxy(
    postgres_server: PostgresServer, redis_url: str, home: Path, proxy: str, said: str
) -> None:
    # No machine has this address: the second door gets as far as listening.
    environment = {"RECALLD_STORE__URL": postgres_server.urls().writer, "REDIS_URL": redis_url}
    environment["RECALLD_INGEST__BEHIND_TLS_PROXY"] = proxy
    ran = recalld("ingest", "--host", "203.0.113.1", home=home, environment=environment)
    assert ran.returncode != 0
    assert said in ran.stderr
    assert ("without TLS" in ran.stderr) is (proxy == "false")
