"""A broker behind Redis Sentinel: two servers with a password, and sentinels that replace a dead primary."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis

from schemas.documents import Lane
from schemas.errors import BrokerUnavailable, UserError
from schemas.settings import Settings
from tests.ports import free_port
from tests.waiting import wait_until
from tests.working import Workers, key
from workers.queue.connection import IMPATIENT_SECONDS, SentinelTlsConnection, connect
from workers.queue.private_server import server_binary


@dataclass(frozen=True, slots=True)
class Guarded:
    """Ports of two servers and of their sentinel, and the process of the primary."""

    primary: int
    replica: int
    sentinel: int
    process: subprocess.Popen[bytes]

    def asks(self) -> int:
        """Return the port of the primary, as the sentinel has it."""
        with redis.Redis(port=self.sentinel, password="watch") as client:
            return int(client.execute_command("SENTINEL", "get-master-addr-by-name", "team queue")[1])


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    primary, replica, sentinel = (free_port() for _ in range(3))
    common = ["--bind", "127.0.0.1", "--save", "", "--requirepass", "right", "--masterauth", "right"]
    config = tmp_path / "sentinel.conf"
    config.write_text(
        f'port {sentinel}\nbind 127.0.0.1\nrequirepass watch\nsentinel monitor "team queue" 127.0.0.1 {primary} 1\n'
        'sentinel auth-pass "team queue" right\nsentinel down-after-milliseconds "team queue" 500\n'
        'sentinel failover-timeout "team queue" 5000\n'  # else a failover that finds no replica waits for minutes
    )
    with ExitStack() as stack:

        def run(*arguments: object) -> subprocess.Popen[bytes]:
            command = [str(server_binary()), *map(str, arguments)]
            process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL)
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        process = run("--port", primary, *common)
        run("--port", replica, *common, "--replicaof", f"127.0.0.1 {primary}")
        replicated = redis.Redis(port=replica, password="right")
        wait_until(lambda: answers(replicated) and replicated.info("replication")["master_link_status"] == "up")
        run(config, "--sentinel")
        servers = Guarded(primary, replica, sentinel, process)
        with redis.Redis(port=sentinel, password="watch") as client:
            wait_until(lambda: answers(client) and client.sentinel_slaves("team queue"))
        yield servers
        replicated.close()


def answers(client: redis.Redis) -> bool:
    with suppress(redis.RedisError, BrokerUnavailable):
        return bool(client.ping())
    return False


def behind(settings: Settings, url: str) -> Settings:
    return Settings.model_validate({**settings.model_dump(), "broker": {"url": url, "namespace": "team"}})


@pytest.fixture
def fleet(settings: Settings, guarded: Guarded) -> Settings:
    """Settings that name a sentinel that is away, then the living one."""
    hosts = f"127.0.0.1:{free_port()},127.0.0.1:{guarded.sentinel}"
    return behind(settings, f"sentinel://:right@{hosts}/team%20queue/1?sentinel_password=watch")


@pytest.mark.long
def test_workers_go_on_when_the_primary_is_killed(fleet: Settings, guarded: Guarded) -> None:
    with connect(fleet, answer_seconds=IMPATIENT_SECONDS) as client, Workers(fleet) as workers:
        workers.index("memory/a.md", "The heron stands in the reeds.\n")
        assert client.connection_pool.connection_kwargs["db"] == 1
        guarded.process.send_signal(signal.SIGKILL)
        workers.write("memory/b.md", "The bittern booms at night.\n")

        def marked() -> bool:
            with suppress(BrokerUnavailable):
                workers.queue.mark_changed("main", [key("memory/b.md")], lane=Lane.LIVE)
                return True
            return False

        wait_until(marked)
        assert guarded.asks() == guarded.replica
        wait_until(lambda: workers.finds("bittern"))
        wait_until(lambda: answers(client))


def test_sentinels_without_the_primary_are_a_broker_that_is_away(settings: Settings, guarded: Guarded) -> None:
    url = f"sentinel://127.0.0.1:{guarded.sentinel}/other?sentinel_password=watch"
    with (
        connect(behind(settings, url)) as client,
        pytest.raises(BrokerUnavailable, match="No master found for 'other'"),
    ):
        client.ping()


def test_a_sentinel_url_has_the_options_of_a_redis_url(settings: Settings) -> None:
    url = "sentinels://bob:p%40ss@[::1]:5000,deep.example/main/3?ssl_ca_certs=/ca.pem&sentinel_username=eve"
    with connect(behind(settings, url)) as client:
        pool = client.connection_pool
    given = {name: pool.connection_kwargs[name] for name in ("username", "password", "db", "ssl_ca_certs")}
    assert given == {"username": "bob", "password": "p@ss", "db": 3, "ssl_ca_certs": "/ca.pem"}
    assert pool.connection_class is SentinelTlsConnection
    options = [sentinel.connection_pool.connection_kwargs for sentinel in pool.sentinel_manager.sentinels]
    assert [(each["host"], each["port"], each["ssl_ca_certs"], each["username"]) for each in options] == [
        ("::1", 5000, "/ca.pem", "eve"),
        ("deep.example", 26379, "/ca.pem", "eve"),
    ]


@pytest.mark.parametrize("url", ["sentinel://host:26379", "sentinel://host:many/main", "sentinel:///main"])
def test_a_sentinel_url_that_lacks_a_part_is_one_sentence(settings: Settings, url: str) -> None:
    with pytest.raises(UserError, match=r"broker.url \(or REDIS_URL\) is not a Redis URL"):
        connect(behind(settings, url))
