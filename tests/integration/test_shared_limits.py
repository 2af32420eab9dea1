"""One account, many processes: the answer to one of them counts for all of them. On a real Valkey."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
import redis

from memory.embedding.providers.provider import ProviderLimits
from memory.embedding.rate_limit import RateLimiter, Urgency
from schemas.errors import Paced, Terminal, Throttled, Transient
from schemas.settings import Settings
from schemas.status import EndpointCondition, EndpointStatus
from tests.waiting import wait_until
from workers.health.health_store import HealthStore
from workers.limits.circuit_breaker import CircuitBreaker
from workers.limits.coordination import shared_limiter
from workers.queue.connection import IMPATIENT_SECONDS, PATIENT_SECONDS, connect
from workers.queue.names import Keys, account_key
from workers.queue.private_server import BrokerServer

QUOTA = Terminal("the quota is used up: raise it at the provider")


def limits(*, requests: int | None = None) -> ProviderLimits:
    return ProviderLimits(
        inputs=10, tokens=10_000, input_bytes=8000, concurrency=4, chunks_per_second=100, requests_per_minute=requests
    )


Make = Callable[..., RateLimiter]


@pytest.fixture
def make(settings: Settings, broker_server: BrokerServer) -> Iterator[Make]:
    """Limiters as separate processes have them: each with a connection of its own."""
    with ExitStack() as clients:

        def made(account: str = "account", model: str = "model", **more: object) -> RateLimiter:
            client = clients.enter_context(connect(settings))
            return shared_limiter(client, CircuitBreaker(rest_seconds=0.05), account=account, model=model, **more)  # type: ignore[arg-type]

        yield made


def standing() -> float:
    """A clock on which a test takes no time."""
    return 1000.0


def acquire(limiter: RateLimiter, urgency: Urgency = Urgency.LIVE) -> None:
    limiter.acquire(tokens=10.0, urgency=urgency)


def fill(limiter: RateLimiter) -> int:
    """Requests that may leave at once."""
    sent = 0
    try:
        while True:
            acquire(limiter)
            sent += 1
    except Paced:
        return sent


def test_a_request_to_wait_that_one_process_got_stops_all_of_them(make: Make) -> None:
    one, other = make(clock=standing), make(clock=standing)
    acquire(other)
    one.report(Throttled("slow down", retry_after=20))
    for urgency in Urgency:
        with pytest.raises(Transient) as waiting:
            acquire(other, urgency)
        assert waiting.value.retry_after == pytest.approx(20, abs=1)
    hold = other.hold()
    assert hold is not None
    assert hold.seconds == pytest.approx(20, abs=1)


def test_a_cool_down_is_the_account_s_and_a_refusal_the_model_s(make: Make) -> None:
    small, large, stranger = make(model="small"), make(model="large"), make(account="another")
    small.report(Terminal("no model is called 'small'"))
    with pytest.raises(Terminal, match="no model is called 'small'"):
        acquire(small)
    acquire(large)
    large.report(Throttled("slow down", retry_after=20))
    with pytest.raises(Transient, match="asked to wait"):
        acquire(make(model="third"))
    acquire(stranger)


def test_failures_of_several_processes_in_a_row_make_the_backoff_longer(make: Make) -> None:
    now = [1000.0]
    for _ in range(5):
        limiter = make(clock=lambda: now[0])
        limiter.report(Transient("broken connection"))
        hold = limiter.hold()
        now[0] += hold.seconds + 0.01 if hold is not None else 0.01
    assert hold is not None
    assert hold.seconds == pytest.approx(2, abs=0.1)
    acquire(make(model="other"))


def test_every_process_gives_the_refusal_that_one_of_them_got(make: Make, client: redis.Redis, keys: Keys) -> None:
    one, other, begun = make(), make(), time.time()
    one.report(QUOTA)
    with pytest.raises(Terminal, match="the quota is used up: raise it at the provider"):
        acquire(other)
    state = HealthStore(client, keys).endpoint("account", "model")
    assert state is not None
    assert (state.condition, state.reason) == (EndpointCondition.STOPPED, str(QUOTA))
    assert state.until is not None
    assert begun + 59 < state.until <= time.time() + 61


def test_limits_a_minute_are_shared_and_each_process_applies_its_own(make: Make) -> None:
    wide, other, narrow = (make(limits=limits(requests=number), clock=standing) for number in (300, 300, 10))
    assert 29 <= fill(wide) <= 31
    assert fill(other) <= 1
    with pytest.raises(Paced) as paced:
        acquire(narrow)
    assert paced.value.retry_after is not None
    assert paced.value.retry_after > 0.3, "what the others sent counts against the narrow limit, too"


def test_while_nothing_is_wrong_a_request_costs_one_command_of_the_client(make: Make, client: redis.Redis) -> None:
    limiter = make()
    acquire(limiter)
    before = client.info("commandstats")["cmdstat_evalsha"]["calls"]
    for _ in range(10):
        assert limiter.hold() is None
        acquire(limiter)
        limiter.report(None)
    assert client.info("commandstats")["cmdstat_evalsha"]["calls"] - before == 10


def test_nothing_of_an_account_stays_for_ever(make: Make, client: redis.Redis) -> None:
    limiter = make(limits=limits(requests=10), clock=standing)
    acquire(limiter)
    assert 0 < client.ttl(account_key("account")) <= 86_400
    client.persist(account_key("account"))
    limiter.report(QUOTA)
    assert 0 < client.ttl(account_key("account")) <= 86_400


def test_while_the_broker_is_away_each_process_goes_by_its_own_answers(make: Make, broker_server: BrokerServer) -> None:
    limiter, healthy = make(clock=standing), make(account="another", clock=standing)
    limiter.report(Throttled("slow down", retry_after=20))
    healthy.report(None)
    broker_server.stop()
    with pytest.raises(Transient, match="asked to wait"):
        acquire(limiter)
    acquire(healthy)
    healthy.report(QUOTA)
    with pytest.raises(Terminal, match="the quota is used up"):
        acquire(healthy)
    hold = healthy.hold()
    assert hold is not None
    assert hold.refusal == str(QUOTA)


def test_a_broker_that_hangs_is_waited_for_a_second_and_then_left_alone(
    settings: Settings, client: redis.Redis
) -> None:
    server = client.info("server")["process_id"]
    with connect(settings, answer_seconds=IMPATIENT_SECONDS) as impatient:
        limiter = shared_limiter(impatient, CircuitBreaker(), account="account", model="model")
        acquire(limiter)
        os.kill(server, signal.SIGSTOP)
        try:
            begun = time.monotonic()
            acquire(limiter)
            assert time.monotonic() - begun < PATIENT_SECONDS
            begun = time.monotonic()
            for _ in range(100):
                acquire(limiter)
                assert limiter.hold() is None
            assert time.monotonic() - begun < PATIENT_SECONDS, "not a second each"
        finally:
            os.kill(server, signal.SIGCONT)


def test_what_left_before_the_broker_went_away_still_counts(make: Make, broker_server: BrokerServer) -> None:
    limiter = make(limits=limits(requests=10), clock=standing)
    assert fill(limiter) == 1
    broker_server.stop()
    with pytest.raises(Paced):
        acquire(limiter)


def test_an_operator_ends_a_backoff_and_no_time_that_the_provider_named(
    make: Make, client: redis.Redis, keys: Keys
) -> None:
    board, failing, asked = HealthStore(client, keys), make(), make(account="another")
    for _ in range(3):
        wait_until(lambda: failing.hold() is None)
        failing.report(Transient("broken connection"))
    board.ask_again("account", "model")
    wait_until(lambda: failing.hold() is None)
    asked.report(Throttled("slow down", retry_after=20))
    board.ask_again("another", "model")
    with pytest.raises(Transient, match="asked to wait"):
        acquire(asked)


def test_the_state_of_an_endpoint_is_public(make: Make, client: redis.Redis, keys: Keys) -> None:
    board = HealthStore(client, keys)
    assert board.endpoint("", "model") is None
    assert board.endpoint("account", "model") == EndpointStatus(EndpointCondition.OK)
    limiter = make()
    limiter.report(Transient("HTTP 500"))
    state = board.endpoint("account", "model")
    assert state is not None
    assert (state.condition, state.until) == (EndpointCondition.FAILING, None), "from the first one on"
    limiter.report(None)
    assert board.endpoint("account", "model") == EndpointStatus(EndpointCondition.OK)
    begun = time.time()
    limiter.report(Throttled("slow down", retry_after=20))
    state = board.endpoint("account", "model")
    assert state is not None
    assert state.condition is EndpointCondition.COOLING_DOWN
    assert state.until is not None
    assert begun + 19 < state.until <= time.time() + 21


def test_without_a_broker_the_state_of_an_endpoint_is_not_known(settings: Settings, keys: Keys) -> None:
    with connect(settings) as unreachable:
        assert HealthStore(unreachable, keys).endpoint("account", "model") is None
