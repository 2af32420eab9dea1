"""One account, many processes: what one of them is told, all of them know. On a real Valkey."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
import redis

from memory.embedding.gate import OUTAGE_FAILURES, Admission, Urgency
from memory.embedding.providers.provider import ProviderLimits
from schemas.errors import Paced, Terminal, Throttled, Transient
from schemas.ports import EndpointCondition, EndpointStatus
from schemas.settings import Settings
from tests.daemon import REPOSITORY
from tests.waiting import wait_until
from workers.health.health_store import HealthStore
from workers.limits.circuit_breaker import CircuitBreaker
from workers.limits.rate_limit import BrokerGate
from workers.queue.connection import IMPATIENT_SECONDS, PATIENT_SECONDS, connect
from workers.queue.names import Keys, account_key
from workers.queue.private_server import BrokerServer

QUOTA = Terminal("the quota is used up: raise it at the provider")


def limits(*, requests: int | None = None) -> ProviderLimits:
    return ProviderLimits(
        inputs=10, tokens=10_000, input_bytes=8000, concurrency=4, chunks_per_second=100, requests_per_minute=requests
    )


Make = Callable[..., BrokerGate]


@pytest.fixture
def make(settings: Settings, broker_server: BrokerServer) -> Iterator[Make]:
    """Gates as separate processes have them: each with a connection of its own."""
    with ExitStack() as clients:

        def made(account: str = "account", model: str = "model", **more: object) -> BrokerGate:
            client = clients.enter_context(connect(settings))
            return BrokerGate(client, CircuitBreaker(rest_seconds=0.05), account=account, model=model, **more)  # type: ignore[arg-type]

        yield made


def standing() -> float:
    """A clock on which a test takes no time."""
    return 1000.0


def enter(gate: BrokerGate, urgency: Urgency = Urgency.LIVE) -> Admission:
    return gate.enter(tokens=10.0, urgency=urgency)


def fill(gate: BrokerGate) -> int:
    """Requests that may leave at once."""
    sent = 0
    try:
        while True:
            enter(gate)
            sent += 1
    except Paced:
        return sent


def test_a_request_to_wait_that_one_process_got_stops_all_of_them(make: Make) -> None:
    one, other = make(clock=standing), make(clock=standing)
    assert enter(other) is Admission.NORMAL
    one.leave(enter(one), Throttled("slow down", retry_after=20))
    for urgency in Urgency:
        with pytest.raises(Transient) as told:
            enter(other, urgency)
        assert told.value.retry_after == pytest.approx(20, abs=1)
    assert other.delay() == pytest.approx(20, abs=1)


def test_a_cool_down_is_the_account_s_and_a_refusal_the_model_s(make: Make) -> None:
    small, large, stranger = make(model="small"), make(model="large"), make(account="another")
    small.leave(enter(small), Terminal("no model is called 'small'"))
    with pytest.raises(Terminal, match="no model is called 'small'"):
        enter(small)
    assert enter(large) is Admission.NORMAL
    large.leave(Admission.NORMAL, Throttled("slow down", retry_after=20))
    with pytest.raises(Transient, match="asked to wait"):
        enter(make(model="third"))
    assert enter(stranger) is Admission.NORMAL


def test_an_outage_of_one_model_s_endpoint_is_noticed_by_all_together(make: Make) -> None:
    gates = [make() for _ in range(4)]
    for number in range(OUTAGE_FAILURES):
        gates[number % 4].leave(Admission.NORMAL, Transient("broken connection"))
    assert make().careful
    assert make(model="other").careful is False


def test_everybody_says_the_sentence_that_one_of_them_was_told(make: Make, client: redis.Redis, keys: Keys) -> None:
    one, other, begun = make(), make(), time.time()
    one.leave(enter(one), QUOTA)
    assert str(other.refusal()) == str(QUOTA)
    with pytest.raises(Terminal, match="the quota is used up: raise it at the provider"):
        enter(other)
    state = HealthStore(client, keys).endpoint("account", "model")
    assert state is not None
    assert (state.condition, state.reason) == (EndpointCondition.STOPPED, str(QUOTA))
    assert begun + 59 < state.until <= time.time() + 61


def test_of_many_processes_one_probes_and_its_success_lets_all_of_them_go_on(make: Make) -> None:
    now = [1000.0]
    gates = [make(clock=lambda: now[0]) for _ in range(5)]
    gates[0].leave(enter(gates[0]), QUOTA)
    now[0] += 61.0
    admitted: list[BrokerGate] = []
    for gate in gates:
        try:
            assert enter(gate) is Admission.PROBE
            admitted.append(gate)
        except Terminal as error:
            assert str(error) == str(QUOTA)  # noqa: PT017 - four of five end here
    assert len(admitted) == 1
    admitted[0].leave(Admission.PROBE, None)
    assert [enter(gate) for gate in gates] == [Admission.NORMAL] * 5
    assert not any(gate.careful for gate in gates)


def test_limits_a_minute_are_everybody_s_together_and_each_applies_its_own(make: Make) -> None:
    wide, other, narrow = (make(limits=limits(requests=number), clock=standing) for number in (300, 300, 10))
    assert 29 <= fill(wide) <= 31
    assert fill(other) <= 1
    with pytest.raises(Paced) as paced:
        enter(narrow)
    assert paced.value.retry_after is not None
    assert paced.value.retry_after > 0.3, "what the others sent counts against the narrow limit, too"


def test_separate_processes_together_stay_within_the_limit(settings: Settings, client: redis.Redis) -> None:
    script = textwrap.dedent(f"""
        import time
        from pathlib import Path
        from memory.embedding.gate import Urgency
        from schemas.errors import Paced
        from schemas.settings import Settings
        from tests.integration.test_shared_gate import enter, limits
        from workers.queue.connection import connect
        from workers.limits.circuit_breaker import CircuitBreaker
        from workers.limits.rate_limit import BrokerGate

        settings = Settings.model_validate({{"home": Path({str(settings.home)!r})}})
        with connect(settings) as client:
            gate = BrokerGate(client, CircuitBreaker(), account="account", model="model", limits=limits(requests=1200))
            sent, paced, until = 0, 0, time.monotonic() + 0.6
            while time.monotonic() < until or not paced:
                try:
                    enter(gate)
                    sent += 1
                except Paced:
                    paced += 1
        print(sent)
    """)
    begun = time.monotonic()
    children = [
        subprocess.Popen([sys.executable, "-c", script], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    sent = [int(child.communicate()[0]) for child in children]
    lasted = time.monotonic() - begun
    # 120 at once and 18 a second after that.
    assert 120 <= sum(sent) <= 120 + 18 * lasted + 1


def test_what_is_known_costs_no_round_trip_each_time(make: Make, client: redis.Redis) -> None:
    gate = make(clock=standing)
    gate.leave(enter(gate), None)
    before = client.info("commandstats")["cmdstat_evalsha"]["calls"]
    for _ in range(1000):
        assert (gate.refusal(), gate.delay(), gate.careful) == (None, 0.0, False)
    assert client.info("commandstats")["cmdstat_evalsha"]["calls"] - before < 10


def test_what_others_were_told_is_known_soon_without_sending_anything(make: Make) -> None:
    one, other = make(), make()
    assert one.refusal() is None
    other.leave(enter(other), QUOTA)
    wait_until(lambda: one.refusal() is not None)


def test_nothing_of_an_account_stays_for_ever(make: Make, client: redis.Redis) -> None:
    gate = make(limits=limits(requests=10), clock=standing)
    enter(gate)
    assert 0 < client.ttl(account_key("account")) <= 86_400
    client.persist(account_key("account"))
    gate.leave(Admission.NORMAL, None)
    assert 0 < client.ttl(account_key("account")) <= 86_400


def test_while_the_broker_is_away_each_process_goes_by_what_it_knows(make: Make, broker_server: BrokerServer) -> None:
    gate, healthy = make(clock=standing), make(account="another", clock=standing)
    gate.leave(enter(gate), Throttled("slow down", retry_after=20))
    healthy.leave(enter(healthy), None)
    broker_server.stop()
    with pytest.raises(Transient, match="asked to wait"):
        enter(gate)
    assert gate.delay() == pytest.approx(20, abs=2)
    assert enter(healthy) is Admission.NORMAL
    healthy.leave(Admission.NORMAL, QUOTA)
    with pytest.raises(Terminal, match="the quota is used up"):
        enter(healthy)
    assert str(healthy.refusal()) == str(QUOTA)
    assert healthy.careful


def test_a_broker_that_hangs_is_waited_for_a_second_and_then_left_alone(
    settings: Settings, client: redis.Redis
) -> None:
    server = client.info("server")["process_id"]
    with connect(settings, answer_seconds=IMPATIENT_SECONDS) as impatient:
        gate = BrokerGate(impatient, CircuitBreaker(), account="account", model="model")
        enter(gate)
        os.kill(server, signal.SIGSTOP)
        try:
            begun = time.monotonic()
            assert enter(gate) is Admission.NORMAL
            assert time.monotonic() - begun < PATIENT_SECONDS
            begun = time.monotonic()
            for _ in range(100):
                assert enter(gate) is Admission.NORMAL
                assert gate.refusal() is None
            assert time.monotonic() - begun < PATIENT_SECONDS, "not a second each"
        finally:
            os.kill(server, signal.SIGCONT)


def test_what_left_before_the_broker_went_away_still_counts(make: Make, broker_server: BrokerServer) -> None:
    gate = make(limits=limits(requests=10), clock=standing)
    assert fill(gate) == 1
    broker_server.stop()
    with pytest.raises(Paced):
        enter(gate)


def test_what_one_process_was_told_while_the_broker_was_away_is_told_to_all_when_it_is_back(
    make: Make, broker_server: BrokerServer
) -> None:
    told, waiting, other, third = make(), make(account="another"), make(), make(account="another")
    broker_server.stop()
    told.leave(enter(told), QUOTA)
    waiting.leave(enter(waiting), Throttled("slow down", retry_after=20))
    broker_server.ensure()
    wait_until(lambda: refused(told) and refused(waiting) and other.refusal() is not None and third.delay() > 0)
    assert third.delay() == pytest.approx(20, abs=5)


def refused(gate: BrokerGate) -> bool:
    """Whether a request may not leave now."""
    try:
        gate.leave(enter(gate), None)
    except (Transient, Terminal):
        return True
    return False


def test_a_breaker_that_others_closed_is_closed_for_one_who_loses_the_broker(
    make: Make, broker_server: BrokerServer
) -> None:
    now = [1000.0]
    one, other = make(clock=lambda: now[0]), make(clock=lambda: now[0])
    one.leave(enter(one), QUOTA)
    now[0] += 61.0
    other.leave(enter(other), None)
    assert one.refusal() is None
    broker_server.stop()
    assert enter(one) is Admission.NORMAL


def test_the_state_of_an_endpoint_is_public(make: Make, client: redis.Redis, keys: Keys) -> None:
    board = HealthStore(client, keys)
    assert board.endpoint("", "model") is None
    assert board.endpoint("account", "model") == EndpointStatus(EndpointCondition.OK)
    gate = make()
    gate.leave(enter(gate), Transient("HTTP 500"))
    state = board.endpoint("account", "model")
    assert state is not None
    assert (state.condition, state.until) == (EndpointCondition.FAILING, None), "from the first one on"
    gate.leave(enter(gate), None)
    assert board.endpoint("account", "model") == EndpointStatus(EndpointCondition.OK)
    begun = time.time()
    gate.leave(enter(gate), Throttled("slow down", retry_after=20))
    state = board.endpoint("account", "model")
    assert state is not None
    assert state.condition is EndpointCondition.COOLING_DOWN
    assert begun + 19 < state.until <= time.time() + 21
    for _ in range(OUTAGE_FAILURES):
        gate.leave(Admission.NORMAL, Transient("broken connection"))
    state = board.endpoint("account", "model")
    assert state is not None
    assert state.condition is EndpointCondition.FAILING


def test_without_a_broker_the_state_of_an_endpoint_is_not_known(settings: Settings, keys: Keys) -> None:
    with connect(settings) as nobody:
        assert HealthStore(nobody, keys).endpoint("account", "model") is None
