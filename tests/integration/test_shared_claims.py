"""Claims on texts in a real Valkey: two who want the same vector at once pay for it once."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator

import pytest
import redis

from schemas.settings import Settings
from tests.daemon import REPOSITORY
from tests.waiting import wait_until
from workers.limits.circuit_breaker import CircuitBreaker
from workers.limits.claims import BrokerClaims, Claimant
from workers.queue.connection import connect
from workers.queue.names import Keys
from workers.queue.private_server import BrokerServer


class Process:
    """What one process has: its name as a claimant, and its claims."""

    def __init__(self, client: redis.Redis, keys: Keys, *, scope: str = "cache", lease_seconds: float = 30.0) -> None:
        self.claimant = Claimant(
            client, CircuitBreaker(rest_seconds=0.05), keys, lease_seconds=lease_seconds, renewal_seconds=0.1
        )
        self.claims = BrokerClaims(client, CircuitBreaker(rest_seconds=0.05), keys, self.claimant, scope=scope)

    def close(self) -> None:
        self.claimant.close()


@pytest.fixture
def two(client: redis.Redis, keys: Keys) -> Iterator[tuple[BrokerClaims, BrokerClaims]]:
    one, other = Process(client, keys), Process(client, keys)
    yield one.claims, other.claims
    one.close()
    other.close()


def test_of_two_who_want_the_same_texts_each_text_has_one_owner(two: tuple[BrokerClaims, BrokerClaims]) -> None:
    one, other = two
    assert one.take(["a", "b"]) == {"a", "b"}
    assert other.take(["b", "c"]) == {"c"}
    assert one.take(["a", "b", "c"]) == {"a", "b"}
    assert one.take([]) == set()


def test_a_released_text_is_free_and_nobody_releases_what_others_own(two: tuple[BrokerClaims, BrokerClaims]) -> None:
    one, other = two
    one.take(["a", "b"])
    other.release(["a", "b"])
    assert other.take(["a", "b"]) == set()
    one.release(["a"])
    assert other.take(["a", "b"]) == {"a"}


def test_a_full_batch_is_claimed_and_released_whole(
    two: tuple[BrokerClaims, BrokerClaims], client: redis.Redis
) -> None:
    one, other = two
    hashes = [f"{number:032x}" for number in range(6000)]
    assert one.take(hashes[:4000]) == set(hashes[:4000])
    assert other.take(hashes[2000:]) == set(hashes[4000:])
    one.release(hashes)
    other.release(hashes)
    assert [name for name in client.keys("*") if b":claims:" in name] == [], "nothing is left behind"


def test_claims_of_another_cache_or_identity_are_nobody_else_s_business(client: redis.Redis, keys: Keys) -> None:
    one, other = Process(client, keys, scope="here"), Process(client, keys, scope="there")
    assert one.claims.take(["a"]) == {"a"}
    assert other.claims.take(["a"]) == {"a"}
    one.close()
    other.close()


def test_claims_hold_for_longer_than_the_lease_while_their_owner_lives(client: redis.Redis, keys: Keys) -> None:
    one, other = Process(client, keys, lease_seconds=2.0), Process(client, keys)
    one.claims.take(["a"])
    first = client.zscore(keys.claimants, one.claimant.owner)
    wait_until(lambda: client.zscore(keys.claimants, one.claimant.owner) > first + 2.0)
    assert other.claims.take(["a"]) == set()
    one.close()
    other.close()


def test_an_owner_that_ends_in_order_leaves_its_texts_at_once(client: redis.Redis, keys: Keys) -> None:
    one, other = Process(client, keys), Process(client, keys)
    one.claims.take(["a"])
    one.close()
    assert other.claims.take(["a"]) == {"a"}
    other.close()


def test_the_texts_of_a_killed_process_are_free_when_its_lease_is_over(
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
        process = Process(connect(settings), Keys({keys.prefix.partition(":")[2]!r}), lease_seconds=2.0)
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
        wait_until(lambda: other.claims.take(["a", "b"]) == {"a", "b"})
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
        other.close()


def test_what_the_dead_left_is_swept_and_what_the_living_hold_stays(client: redis.Redis, keys: Keys) -> None:
    dead, living = Process(client, keys), Process(client, keys)
    dead.claims.take([f"dead {number}".replace(" ", "-") for number in range(3000)])
    living.claims.take(["mine"])
    dead.close()
    living.claims.sweep()
    assert client.hkeys(keys.claims("cache")) == [b"mine"]
    living.close()


def test_without_a_broker_everything_is_granted_and_nothing_is_waited_for(settings: Settings, keys: Keys) -> None:
    with connect(settings) as nobody:
        process = Process(nobody, keys)
        assert process.claims.take(["a", "b"]) == {"a", "b"}
        process.claims.release(["a"])
        process.close()


def test_what_could_not_be_released_while_the_broker_was_away_is_released_later(
    settings: Settings, keys: Keys, broker_server: BrokerServer
) -> None:
    with connect(settings) as client, connect(settings) as elsewhere:
        one, other = Process(client, keys), Process(elsewhere, keys)
        one.claims.take(["a"])
        broker_server.stop()
        one.claims.release(["a"])
        broker_server.ensure()
        wait_until(lambda: other.claims.take(["a"]) == {"a"})
        one.close()
        other.close()


def test_a_dead_process_whose_lease_is_from_before_the_clock_was_set_back_claims_nothing(
    client: redis.Redis, keys: Keys
) -> None:
    dead, living = Process(client, keys), Process(client, keys)
    dead.claims.take(["a"])
    dead.claimant._ending.set()
    client.zadd(keys.claimants, {dead.claimant.owner: time.time() + 3600})
    assert living.claims.take(["a"]) == {"a"}
    dead.close()
    living.close()
