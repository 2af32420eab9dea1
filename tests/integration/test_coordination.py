"""Claims and limits that the processes of a home share, on a real Valkey."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from memory.embedding.coordination import NoClaims
from memory.embedding.providers.stub import StubProvider
from memory.embedding.rate_limit import RateLimiter, Urgency
from schemas.errors import Throttled, Waiting
from schemas.settings import Settings
from workers.coordination import BrokerCoordination, coordinating
from workers.queue.names import Keys
from workers.queue.private_server import BrokerServer


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


def test_without_a_cache_no_text_is_claimed(settings: Settings) -> None:
    without = settings.model_copy(update={"cache": settings.cache.model_copy(update={"enabled": False})})
    with coordinating(without) as coordination:
        assert isinstance(coordination(provider()).claims, NoClaims)
