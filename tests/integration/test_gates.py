"""What every gate promises: the one of this process, and the one in a real Valkey that everybody shares."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Protocol

import pytest
import redis

from memory.embedding.gate import OUTAGE_FAILURES, Admission, Gate, LocalGate, Urgency
from memory.embedding.providers.provider import ProviderLimits
from schemas.errors import Paced, Permanent, Terminal, Throttled, Transient
from schemas.settings import Settings
from workers.limits.circuit_breaker import CircuitBreaker
from workers.limits.rate_limit import BrokerGate
from workers.queue.connection import connect
from workers.queue.private_server import BrokerServer


class Clock:
    """Seconds that a test lets pass."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


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


class Make(Protocol):
    def __call__(self, wanted: ProviderLimits | None = None) -> Gate: ...


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="module")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[redis.Redis]:
    """A client of a real server that all tests of this module share, each with an account of its own."""
    settings = Settings.model_validate({"home": tmp_path_factory.mktemp("broker")})
    server = BrokerServer(settings)
    server.ensure()
    with connect(settings) as client:
        yield client
    server.stop()


@pytest.fixture(params=["local", "broker"])
def make(request: pytest.FixtureRequest, clock: Clock) -> Iterator[Make]:
    """Makes the one gate of an account and model."""
    if request.param == "local":
        yield lambda wanted=None: LocalGate(wanted, clock=clock)
        return
    valkey, account = request.getfixturevalue("valkey"), secrets.token_hex(8)
    yield lambda wanted=None: BrokerGate(
        valkey, CircuitBreaker(), account=account, model="model", limits=wanted, clock=clock
    )


@pytest.fixture
def gate(make: Make) -> Gate:
    return make()


def enter(gate: Gate, *, tokens: float = 10.0, urgency: Urgency = Urgency.LIVE) -> Admission:
    return gate.enter(tokens=tokens, urgency=urgency)


def told(gate: Gate, error: Exception | None) -> None:
    """One request that ends so."""
    gate.leave(enter(gate), error)


def fail(gate: Gate, times: int) -> None:
    """Requests that were on their way together and failed in passing."""
    for admission in [enter(gate) for _ in range(times)]:
        gate.leave(admission, Transient("broken connection"))


def count_admitted(gate: Gate, clock: Clock, *, seconds: int, tokens: float = 10.0) -> int:
    """Requests that leave within so many seconds, of somebody who always wants to send more."""
    admitted = 0
    until = clock.now + seconds
    while clock.now < until:
        try:
            enter(gate, tokens=tokens)
            admitted += 1
        except Paced as wait:
            clock.now += max(wait.retry_after or 0.0, 0.001)
    return admitted


def fill(gate: Gate, urgency: Urgency) -> int:
    """Requests that may leave at once."""
    count = 0
    try:
        while True:
            enter(gate, urgency=urgency)
            count += 1
    except Paced:
        return count


class TestGate:
    def test_requests_pass_while_nothing_is_wrong(self, gate: Gate) -> None:
        for _ in range(20):
            assert enter(gate) is Admission.NORMAL
            gate.leave(Admission.NORMAL, None)
        assert (gate.refusal(), gate.delay(), gate.careful) == (None, 0.0, False)

    def test_nothing_leaves_before_the_time_that_the_provider_named(self, gate: Gate, clock: Clock) -> None:
        told(gate, Throttled("slow down", retry_after=12.0))
        for urgency in Urgency:
            with pytest.raises(Transient, match="asked to wait") as refused:
                enter(gate, urgency=urgency)
            assert refused.value.retry_after == pytest.approx(12.0, abs=0.2)
        assert gate.delay() == pytest.approx(12.0, abs=0.2)
        assert gate.refusal() is None
        clock.now += 12.1
        assert gate.delay() == 0.0
        assert enter(gate) is Admission.NORMAL

    def test_a_shorter_cool_down_never_shortens_a_longer_one(self, gate: Gate) -> None:
        first, second, third = enter(gate), enter(gate), enter(gate)
        gate.leave(first, Throttled("slow down", retry_after=30.0))
        gate.leave(second, Throttled("slow down", retry_after=2.0))
        gate.leave(third, None)
        assert gate.delay() == pytest.approx(30.0, abs=0.2)

    def test_slow_down_without_a_time_doubles_the_pause_until_an_answer_comes(self, gate: Gate, clock: Clock) -> None:
        pauses = []
        for _ in range(8):
            told(gate, Throttled("slow down"))
            pauses.append(gate.delay())
            clock.now += gate.delay() + 0.1
        assert pauses == pytest.approx([1, 2, 4, 8, 16, 32, 60, 60], abs=0.2)
        told(gate, None)
        told(gate, Throttled("slow down"))
        assert gate.delay() == pytest.approx(1.0, abs=0.2)

    def test_an_unavailable_server_that_names_a_time_is_waited_for(self, gate: Gate) -> None:
        told(gate, Transient("down for maintenance", retry_after=7.0))
        assert gate.delay() == pytest.approx(7.0, abs=0.2)
        assert not gate.careful

    def test_a_few_passing_failures_stop_nobody(self, gate: Gate) -> None:
        fail(gate, OUTAGE_FAILURES - 1)
        assert (gate.delay(), gate.careful) == (0.0, False)
        told(gate, None)
        fail(gate, OUTAGE_FAILURES - 1)
        assert enter(gate) is Admission.NORMAL

    def test_an_endpoint_that_is_out_is_tried_by_one_request_at_a_time(self, gate: Gate, clock: Clock) -> None:
        fail(gate, OUTAGE_FAILURES)
        assert gate.careful
        assert gate.refusal() is None
        assert gate.delay() == pytest.approx(1.0, abs=0.2)
        clock.now += 1.1
        assert enter(gate) is Admission.PROBE
        with pytest.raises(Transient, match="does not answer") as refused:
            enter(gate)
        assert refused.value.retry_after is not None
        gate.leave(Admission.PROBE, Transient("broken connection"))
        assert gate.delay() == pytest.approx(2.0, abs=0.2)
        clock.now += 2.1
        assert enter(gate) is Admission.PROBE
        gate.leave(Admission.PROBE, None)
        assert (gate.careful, gate.delay()) == (False, 0.0)
        assert [enter(gate), enter(gate)] == [Admission.NORMAL, Admission.NORMAL]

    def test_after_a_refusal_for_good_one_probe_a_minute_leaves(self, gate: Gate, clock: Clock) -> None:
        told(gate, Terminal("the key is refused: set OPENAI_API_KEY"))
        for urgency in Urgency:
            with pytest.raises(Terminal, match="the key is refused: set OPENAI_API_KEY"):
                enter(gate, urgency=urgency)
        assert str(gate.refusal()) == "the key is refused: set OPENAI_API_KEY"
        assert gate.delay() == 0.0
        probes = 0
        for _ in range(290):
            clock.now += 1.0
            try:
                assert enter(gate) is Admission.PROBE
            except Terminal:
                continue
            probes += 1
            gate.leave(Admission.PROBE, Terminal("the key is refused: set OPENAI_API_KEY"))
        assert probes == 4

    def test_an_answered_probe_closes_the_breaker(self, gate: Gate, clock: Clock) -> None:
        told(gate, Terminal("the quota is used up"))
        clock.now += 60.1
        assert gate.refusal() is None
        assert gate.careful
        probe = enter(gate)
        with pytest.raises(Terminal, match="the quota is used up"):
            enter(gate)
        gate.leave(probe, None)
        assert (gate.refusal(), gate.careful) == (None, False)
        assert enter(gate) is Admission.NORMAL

    def test_an_answer_to_a_request_from_before_leaves_the_breaker_open(self, gate: Gate) -> None:
        early, other = enter(gate), enter(gate)
        gate.leave(early, Terminal("the quota is used up"))
        gate.leave(other, None)
        assert gate.refusal() is not None
        assert gate.careful

    @pytest.mark.parametrize("error", [Transient("broken connection"), Throttled("slow down")])
    def test_a_probe_that_told_nothing_is_followed_by_another(self, gate: Gate, clock: Clock, error: Transient) -> None:
        told(gate, Terminal("the quota is used up"))
        clock.now += 60.1
        gate.leave(enter(gate), error)
        assert str(gate.refusal()) == "the quota is used up"
        clock.now += 1.1
        assert enter(gate) is Admission.PROBE

    def test_a_refused_text_gives_the_probe_back_and_says_nothing_else(self, gate: Gate, clock: Clock) -> None:
        told(gate, Permanent("too long"))
        assert enter(gate) is Admission.NORMAL
        told(gate, Terminal("the quota is used up"))
        clock.now += 60.1
        gate.leave(enter(gate), Permanent("too long"))
        assert gate.careful
        assert enter(gate) is Admission.PROBE

    def test_a_probe_whose_sender_died_is_forgotten(self, gate: Gate, clock: Clock) -> None:
        told(gate, Terminal("the quota is used up"))
        clock.now += 60.1
        assert enter(gate) is Admission.PROBE
        clock.now += 149.0
        with pytest.raises(Terminal):
            enter(gate)
        clock.now += 2.0
        assert enter(gate) is Admission.PROBE

    @pytest.mark.parametrize("per_minute", [60, 300])
    def test_in_no_minute_more_requests_leave_than_the_limit(self, make: Make, clock: Clock, per_minute: int) -> None:
        gate = make(limits(requests=per_minute))
        # A second less: the server's own clock goes on while the test runs.
        first = count_admitted(gate, clock, seconds=59)
        assert per_minute * 0.9 < first <= per_minute
        assert count_admitted(gate, clock, seconds=59) <= per_minute

    def test_in_no_minute_more_tokens_leave_than_the_limit(self, make: Make, clock: Clock) -> None:
        gate = make(limits(tokens=60_000))
        sent = 5000 * count_admitted(gate, clock, seconds=59, tokens=5000)
        assert 50_000 <= sent <= 60_000

    def test_a_text_larger_than_the_burst_leaves_when_nothing_else_is_in_the_way(self, make: Make) -> None:
        gate = make(limits(tokens=1000))
        assert enter(gate, tokens=900) is Admission.NORMAL
        with pytest.raises(Paced):
            enter(gate, tokens=900)

    def test_backfill_leaves_some_room_for_live_texts(self, make: Make) -> None:
        gate = make(limits(requests=200))
        backfill = fill(gate, Urgency.BACKFILL)
        assert 10 <= backfill <= 15
        assert fill(gate, Urgency.LIVE) >= 5

    def test_a_query_is_charged_and_never_waits(self, make: Make) -> None:
        gate = make(limits(requests=10))
        assert [enter(gate, urgency=Urgency.QUERY) for _ in range(5)] == [Admission.NORMAL] * 5
        with pytest.raises(Paced) as paced:
            enter(gate)
        assert paced.value.retry_after is not None
        assert paced.value.retry_after > 20, "the five queries were charged"

    def test_what_is_paced_costs_nothing(self, make: Make) -> None:
        gate = make(limits(requests=10))
        fill(gate, Urgency.LIVE)
        waits: list[float] = []
        for _ in range(5):
            with pytest.raises(Paced) as paced:
                enter(gate)
            waits.append(paced.value.retry_after or 0.0)
        assert waits == pytest.approx([waits[0]] * 5, abs=0.2)
