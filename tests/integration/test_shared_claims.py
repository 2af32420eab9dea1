"""Claims and limits that processes share in a real Valkey: who want the same vector at once pay for it once."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator

import pytest
import redis

from memory.embedding.providers.stub import StubProvider
from memory.embedding.rate_limit import RateLimiter, Urgency
from schemas.errors import Throttled, Waiting
from schemas.settings import Settings
from tests.daemon import REPOSITORY
from tests.waiting import wait_until
from workers.coordination import (
    KEPT_SECONDS,
    BrokerClaims,
    BrokerCoordination,
    CircuitBreaker,
    Presence,
    coordinating,
)
from workers.queue.connection import connect
from workers.queue.names import Keys
from workers.queue.private_server import BrokerServer


class Process:
    """Claims of one process."""

    def __init__(self, client: redis.Redis, keys: Keys, *, scope: str = "cache") -> None:
        self.presence = Presence(client, keys)
        self.claims = BrokerClaims(client, CircuitBreaker(rest_seconds=0.05), keys, self.presence, scope=scope)


@pytest.fixture
def processes(client: redis.Redis, keys: Keys) -> Iterator[tuple[Process, Process]]:
    one, other = Process(client, keys), Process(client, keys)
    yield one, other
    one.presence.close()
    other.presence.close()


@pytest.fixture
def two(processes: tuple[Process, Process]) -> tuple[BrokerClaims, BrokerClaims]:
    return processes[0].claims, processes[1].claims


def test_of_two_who_want_the_same_texts_each_text_has_one_owner(two: tuple[BrokerClaims, BrokerClaims]) -> None:
    one, other = two
    assert one.take(["a", "b"]) == {"a", "b"}
    assert other.take(["b", "c"]) == {"c"}
    assert one.take(["a", "b", "c"]) == {"a", "b"}
    assert one.take([]) == set()


def test_a_full_batch_is_claimed_and_released_whole_and_nothing_stays_for_ever(
    two: tuple[BrokerClaims, BrokerClaims], client: redis.Redis
) -> None:
    one, other = two
    hashes = [f"{number:032x}" for number in range(3000)]
    assert one.take(hashes[:2000]) == set(hashes[:2000])
    assert other.take(hashes[1000:]) == set(hashes[2000:])
    claims = [name for name in client.keys("*") if b":claim:" in name]
    assert len(claims) == 3000
    assert all(0 < client.ttl(name) <= KEPT_SECONDS for name in claims[:10])
    one.release(hashes[:2000])
    other.release(hashes[2000:])
    assert not [name for name in client.keys("*") if b":claim:" in name]


def test_the_texts_of_a_killed_process_are_free_within_a_second(
    client: redis.Redis, keys: Keys, settings: Settings
) -> None:
    script = textwrap.dedent(f"""
        import threading
        from pathlib import Path
        from schemas.settings import Settings
        from tests.integration.test_shared_claims import Process
        from workers.queue.connection import connect
        from workers.queue.names import Keys

        settings = Settings.model_validate({{"home": Path({str(settings.home)!r})}})
        process = Process(connect(settings), Keys({keys.prefix.partition(":")[2]!r}))
        print(sorted(process.claims.take(["a", "b"])), flush=True)
        threading.Event().wait(60)
    """)
    child = subprocess.Popen([sys.executable, "-c", script], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    other = Process(client, keys)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "['a', 'b']\n"
        assert other.claims.take(["a", "b", "c"]) == {"c"}
        child.send_signal(signal.SIGKILL)
        child.wait()
        killed = time.monotonic()
        wait_until(lambda: other.claims.take(["a", "b"]) == {"a", "b"})
        assert time.monotonic() - killed < 5.0, "no lease runs out; a second, on a machine that does nothing else"
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
        other.presence.close()


def test_without_a_broker_everything_is_granted_and_nothing_is_waited_for(settings: Settings, keys: Keys) -> None:
    with connect(settings) as unreachable:
        process = Process(unreachable, keys)
        assert process.claims.take(["a", "b"]) == {"a", "b"}
        process.claims.release(["a"])
        process.presence.close()


def test_claims_hold_again_after_the_broker_was_away(
    settings: Settings, keys: Keys, broker_server: BrokerServer
) -> None:
    with connect(settings) as client, connect(settings) as elsewhere:
        one, other = Process(client, keys), Process(elsewhere, keys)
        one.claims.take(["a"])
        broker_server.stop()
        assert one.claims.take(["b"]) == {"b"}
        broker_server.ensure()
        texts = map(str, itertools.count())
        wait_until(lambda: one.claims.take([text := next(texts)]) and not other.claims.take([text]))
        one.presence.close()
        other.presence.close()


def test_a_user_without_channels_claims_nothing_and_works(
    client: redis.Redis, keys: Keys, broker_server: BrokerServer
) -> None:
    client.execute_command("ACL", "SETUSER", "narrow", "on", "nopass", "~recalld:*", "resetchannels", "+@all")
    with redis.Redis(unix_socket_path=client.get_connection_kwargs()["path"], username="narrow", password="") as narrow:
        one, other = Process(narrow, keys), Process(client, keys)
        assert one.claims.take(["a"]) == {"a"}
        assert other.claims.take(["a"]) == {"a"}
        assert one.claims.take(["b"]) == {"b"}
        other.presence.close()


def provider(*, account: str = "account", model: str = "model", identity: str = "identity") -> StubProvider:
    made = StubProvider()
    made.account, made.model, made.identity = account, model, identity
    return made


@pytest.fixture
def coordination(settings: Settings, broker_server: BrokerServer) -> Iterator[BrokerCoordination]:
    with coordinating(settings) as made:
        yield made


def test_a_model_on_this_machine_has_a_limiter_of_its_own_and_shares_its_claims(
    settings: Settings, coordination: BrokerCoordination
) -> None:
    local = coordination(provider(account=""))
    assert isinstance(local.limiter, RateLimiter)
    with coordinating(settings) as other_process:
        assert local.claims.take(["a"]) == {"a"}
        assert other_process(provider(account="")).claims.take(["a", "b"]) == {"b"}
        assert other_process(provider(identity="other")).claims.take(["a"]) == {"a"}


def test_homes_that_share_a_broker_share_an_account_s_cool_down_and_not_their_claims(
    client: redis.Redis, coordination: BrokerCoordination
) -> None:
    other_keys = Keys("another-home")
    other_home = BrokerCoordination(client, other_keys, cache_scope="elsewhere")
    one, other = coordination(provider()), other_home(provider())
    one.limiter.report(Throttled("slow down", retry_after=20))
    with pytest.raises(Waiting, match="asked to wait"):
        other.limiter.acquire(tokens=1, urgency=Urgency.LIVE)
    assert one.claims.take(["a"]) == other.claims.take(["a"]) == {"a"}
    other_home.close()
