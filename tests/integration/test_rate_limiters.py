"""Promises of every rate limiter: the one in a real Valkey that all processes share, and cool-downs without it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import chain
from typing import Protocol

import pytest
import redis

from memory.embedding.providers.provider import ProviderLimits
from memory.embedding.providers.stub import StubProvider
from memory.embedding.rate_limit import RateLimiter
from schemas.documents import Lane
from schemas.errors import Paced, RecalldError, Terminal, Throttled, Transient
from schemas.settings import Settings
from tests.waiting import Clock
from workers.claims import shared_limiter
from workers.queue.connection import connect
from workers.queue.private_server import BrokerServer


def limits(*, requests: int | None = None, tokens: int | None = None) -> ProviderLimits:
    return ProviderLimits(
        inputs=100,
        tokens=10_000,
        input_bytes=8000,
        concurrency=4,
        chunks_per_second=100,
        requests_per_minute=requests,
        tokens_per_minute=tokens,
    )


def user_of(account: str, *, limits: ProviderLimits | None = None) -> StubProvider:
    """Return a provider whose requests count against an account."""
    provider = StubProvider(limits=limits)
    provider.account, provider.model = account, "model"
    return provider


class Make(Protocol):
    def __call__(self, wanted: ProviderLimits | None = None) -> RateLimiter: ...


@pytest.fixture
def clock() -> Clock:
    return Clock()


def made_by(client: redis.Redis, clock: Clock) -> Make:
    account = secrets.token_hex(8)
    return lambda wanted=None: shared_limiter(client, user_of(account, limits=wanted), clock=clock)


@pytest.fixture(params=["local", "broker"])
def make(request: pytest.FixtureRequest, clock: Clock) -> Make:
    """Makes the one limiter of an account and model."""
    if request.param == "local":
        return lambda wanted=None: RateLimiter(wanted, clock=clock)
    return made_by(request.getfixturevalue("client"), clock)


@pytest.fixture
def limiter(make: Make) -> RateLimiter:
    return make()


def acquire(limiter: RateLimiter, *, tokens: float = 10.0, lane: Lane | None = Lane.LIVE) -> None:
    limiter.acquire(tokens=tokens, lane=lane)


def ended(limiter: RateLimiter, error: RecalldError | None) -> None:
    """One request that ends so."""
    acquire(limiter)
    limiter.report(error)


def cool_down(limiter: RateLimiter) -> float:
    hold = limiter.hold()
    return hold.seconds if hold is not None else 0.0


def count_admitted(limiter: RateLimiter, clock: Clock, *, seconds: int, tokens: float = 10.0) -> int:
    """Requests that leave within so many seconds, of a sender that always has more."""
    admitted = 0
    until = clock.now + seconds
    while clock.now < until:
        try:
            acquire(limiter, tokens=tokens)
            admitted += 1
        except Paced as wait:
            clock.now += max(wait.retry_after or 0.0, 0.001)
    return admitted


def fill(limiter: RateLimiter, lane: Lane) -> int:
    """Requests that may leave at once."""
    count = 0
    try:
        while True:
            acquire(limiter, lane=lane)
            count += 1
    except Paced:
        return count


class TestCoolDown:
    def test_nothing_leaves_before_the_time_that_the_provider_named(self, limiter: RateLimiter, clock: Clock) -> None:
        ended(limiter, Throttled("slow down", retry_after=12.0))
        for lane in (*Lane, None):
            with pytest.raises(Transient, match="asked to wait") as refused:
                acquire(limiter, lane=lane)
            assert refused.value.retry_after == pytest.approx(12.0, abs=0.2)
        assert cool_down(limiter) == pytest.approx(12.0, abs=0.2)
        clock.now += 12.1
        assert limiter.hold() is None
        acquire(limiter)

    @pytest.mark.parametrize(
        ("error", "backoff"),
        [
            (Throttled("slow down"), [1, 2, 4, 8, 16, 32, 60, 60]),
            (Transient("broken connection"), [0, 0.25, 0.5, 1, 2, 4, 4]),
        ],
    )
    def test_without_a_time_the_backoff_doubles_until_an_answer_comes(
        self, limiter: RateLimiter, clock: Clock, error: Transient, backoff: list[float]
    ) -> None:
        pauses = []
        for _ in backoff:
            ended(limiter, error)
            pauses.append(cool_down(limiter))
            clock.now += cool_down(limiter) + 0.01
        assert pauses == pytest.approx(backoff, abs=0.1)
        ended(limiter, None)
        ended(limiter, error)
        assert cool_down(limiter) == pytest.approx(backoff[0], abs=0.1)

    def test_a_refusal_for_good_stops_all_requests_for_a_minute(self, limiter: RateLimiter, clock: Clock) -> None:
        ended(limiter, Terminal("bad key"))
        for lane in (*Lane, None):
            with pytest.raises(Terminal, match="bad key"):
                acquire(limiter, lane=lane)
        hold = limiter.hold()
        assert hold is not None
        assert (hold.refusal, hold.seconds) == ("bad key", pytest.approx(60, abs=0.2))
        limiter.report(None)
        assert limiter.hold() is not None, "an answer to a request from before"
        clock.now += 60.1
        ended(limiter, None)
        assert limiter.hold() is None


class TestLimitsAMinute:
    @pytest.fixture
    def make(self, client: redis.Redis, clock: Clock) -> Make:
        return made_by(client, clock)

    @pytest.mark.parametrize("per_minute", [60, 300])
    def test_in_no_minute_more_requests_leave_than_the_limit(self, make: Make, clock: Clock, per_minute: int) -> None:
        limiter = make(limits(requests=per_minute))
        # A second less: the server's own clock goes on while the test runs.
        first = count_admitted(limiter, clock, seconds=59)
        assert per_minute * 0.9 < first <= per_minute
        assert count_admitted(limiter, clock, seconds=59) <= per_minute

    def test_backfill_leaves_some_room_for_live_texts(self, make: Make) -> None:
        limiter = make(limits(requests=200))
        assert 10 <= fill(limiter, Lane.BACKFILL) <= 15
        assert fill(limiter, Lane.LIVE) >= 5

    def test_live_texts_that_wait_leave_before_old_ones(self, make: Make, clock: Clock) -> None:
        limiter = make(limits(requests=6))
        acquire(limiter, lane=Lane.BACKFILL)
        with pytest.raises(Paced) as paced:
            acquire(limiter)
        clock.now += (paced.value.retry_after or 0.0) - 0.5
        with pytest.raises(Paced):
            acquire(limiter)
        clock.now += 0.6
        with pytest.raises(Paced):
            acquire(limiter, lane=Lane.BACKFILL)
        acquire(limiter)

    @pytest.mark.parametrize(("others", "limit"), [(Lane.LIVE, 30), (None, None)])
    def test_old_texts_keep_a_tenth_of_the_limit_beside_live_texts_and_queries(
        self, make: Make, clock: Clock, others: Lane | None, limit: int | None
    ) -> None:
        limiter = make(limits(requests=30))
        times: dict[Lane | None, list[float]] = {others: [], Lane.BACKFILL: []}
        began_at = clock.now
        while clock.now < began_at + 600:
            for lane, admitted in times.items():
                try:
                    acquire(limiter, lane=lane)
                    admitted.append(clock.now)
                except Paced:
                    pass
            clock.now += 0.5
        assert 27 <= len(times[Lane.BACKFILL]) <= 33
        if limit is not None:
            together = sorted(chain(*times.values()))
            minutes = [sum(at <= other < at + 59.5 for other in together) for at in together]
            assert 0.9 * limit < max(minutes) <= limit

    def test_a_query_is_charged_and_never_waits(self, make: Make) -> None:
        limiter = make(limits(requests=10))
        for _ in range(5):
            acquire(limiter, lane=None)
        with pytest.raises(Paced) as paced:
            acquire(limiter)
        assert paced.value.retry_after is not None
        assert paced.value.retry_after > 20, "the five queries were charged"


# One account, many processes: the answer to one of them counts for all of them


QUOTA = Terminal("the quota is used up: raise it at the provider")


Shared = Callable[..., RateLimiter]


@pytest.fixture
def shared(settings: Settings, broker_server: BrokerServer) -> Iterator[Shared]:
    """Limiters as separate processes have them: each with a connection of its own."""
    with ExitStack() as clients:

        def made(
            account: str = "account", *, clock: Callable[[], float], limits: ProviderLimits | None = None
        ) -> RateLimiter:
            client = clients.enter_context(connect(settings))
            return shared_limiter(client, user_of(account, limits=limits), clock=clock)

        yield made


def standing() -> float:
    """A clock on which a test takes no time."""
    return 1000.0


def test_limits_a_minute_are_shared_and_each_process_applies_its_own(shared: Shared) -> None:
    wide, other, narrow = (shared(limits=limits(requests=number), clock=standing) for number in (300, 300, 10))
    assert 29 <= fill(wide, Lane.LIVE) <= 31
    assert fill(other, Lane.LIVE) <= 1
    with pytest.raises(Paced) as paced:
        acquire(narrow)
    assert paced.value.retry_after is not None
    assert paced.value.retry_after > 0.3, "what the others sent counts against the narrow limit, too"


@pytest.mark.parametrize("error", [Throttled("slow down", retry_after=600), QUOTA])
def test_a_cool_down_ends_when_the_servers_clock_is_set_back(shared: Shared, error: RecalldError) -> None:
    day = 86_400.0
    before = shared(clock=lambda: day + 1000.0)
    before.report(error)
    with pytest.raises((Transient, Terminal)):
        acquire(before)
    acquire(shared(clock=standing))


def test_while_the_broker_is_away_each_process_goes_by_its_own_answers(
    shared: Shared, broker_server: BrokerServer
) -> None:
    limiter, healthy = shared(clock=standing), shared(account="another", clock=standing)
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


def test_while_the_broker_is_away_only_queries_leave_under_a_limit(shared: Shared, broker_server: BrokerServer) -> None:
    limiter = shared(limits=limits(requests=300), clock=standing)
    acquire(limiter)
    broker_server.stop()
    with pytest.raises(Paced) as paced:
        acquire(limiter)
    assert paced.value.retry_after
    acquire(limiter, lane=None)
    assert limiter.hold() is None, "cached vectors and keywords go on"
