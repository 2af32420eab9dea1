"""A broker that is away costs one request, not every request."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import dramatiq
import pytest

from schemas.conditions import ConditionCode
from schemas.errors import BrokerUnavailable
from schemas.ports import Event
from schemas.settings import Settings
from tests.waiting import wait_until
from workers.health.health_store import HealthStore
from workers.queue.connection import BrokerAway, BrokerClient, CircuitBreaker, connect
from workers.queue.job_queue import BrokerJobQueue, EventQueue
from workers.queue.names import Keys
from workers.queue.private_server import BrokerServer


@contextmanager
def silent_server(path: Path) -> Iterator[socket.socket]:
    """Yield the listener of a server that never answers; it does not block."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(64)
        listener.setblocking(False)
        yield listener


def connections(listener: socket.socket) -> int:
    """Return the number of connections made since the last look, and close them."""
    count = 0
    try:
        while True:
            listener.accept()[0].close()
            count += 1
    except BlockingIOError:
        return count


def test_a_broker_that_is_away_is_asked_again_only_after_a_rest(settings: Settings, tmp_path: Path) -> None:
    now = [100.0]
    path = tmp_path / "silent.sock"
    circuit = CircuitBreaker(rest_seconds=2.0, clock=lambda: now[0])
    at_server = settings.model_copy(
        update={"broker": settings.broker.model_validate({"url": f"unix://{path}", "namespace": "team"})}
    )
    with silent_server(path) as listener, connect(at_server, answer_seconds=0.1, circuit=circuit) as client:
        health = HealthStore(client, Keys("team"))
        assert health.pending("main") is None
        assert connections(listener) > 0

        assert (health.pending("other"), health.broker().reachable, health.fleet()) == (None, False, None)
        with pytest.raises(BrokerAway):
            client.ping()
        assert connections(listener) == 0

        now[0] += 2.0
        assert health.pending("main") is None
        assert connections(listener) > 0


def test_an_answer_closes_the_circuit_and_a_refused_command_leaves_it_closed(
    settings: Settings, broker_server: BrokerServer
) -> None:
    now = [100.0]
    with connect(settings, answer_seconds=1.0, circuit=CircuitBreaker(clock=lambda: now[0])) as client:
        broker_server.stop()
        with pytest.raises(BrokerAway):
            client.ping()
        broker_server.ensure()
        with pytest.raises(BrokerAway):
            client.ping()

        def answered() -> bool:
            now[0] += 2.0
            with suppress(BrokerAway):  # it takes more than half a second
                return bool(client.ping())
            return False

        wait_until(answered)
        with pytest.raises(BrokerAway) as refused:
            client.execute_command("NO-SUCH-COMMAND")
        assert refused.value.answered
        assert client.ping()


def pipelined(client: BrokerClient) -> None:
    with client.pipeline() as pipe:
        pipe.ping()
        pipe.execute()


@pytest.mark.parametrize("request_of", [BrokerClient.ping, pipelined, lambda client: client.pubsub().subscribe("one")])
def test_commands_pipelines_and_subscriptions_raise_one_error(
    settings: Settings, request_of: Callable[[BrokerClient], object]
) -> None:
    with connect(settings) as client, pytest.raises(BrokerAway) as away:
        request_of(client)
    assert (away.value.answered, away.value.refusal) == (False, None)
    assert isinstance(away.value, dramatiq.ConnectionClosed), "Dramatiq connects again"


FLUSH = Event("flush", "main", ticket="ticket")


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        (lambda queue, _events, _health: queue.epoch(), None),
        (lambda queue, _events, _health: queue.hold_back(["main"], active=True), None),
        (lambda queue, _events, _health: queue.may_retry("index", "main", "live", job="job", seconds=1.0), True),
        (lambda _queue, events, _health: events.take(0.1), None),
        (lambda _queue, events, _health: events.ask(FLUSH, 0.1), False),
        (lambda _queue, events, _health: events.answer(FLUSH), None),
        (lambda _queue, _events, health: health.stalled_seconds(), 0.0),
        (lambda _queue, _events, health: health.held_up(["main"]), {}),
        (lambda _queue, _events, health: health.backlog(), None),
        (lambda _queue, _events, health: health.report(ConditionCode.STORE_FULL), None),
    ],
)
def test_ports_that_never_raise_answer_without_the_broker(
    settings: Settings, call: Callable[..., object], answer: object
) -> None:
    with connect(settings) as client:
        keys = Keys("team")
        queue = BrokerJobQueue(client, keys)
        assert call(queue, EventQueue(client, keys), HealthStore(client, keys)) == answer
        with pytest.raises(BrokerUnavailable):
            queue.request_vectors("main")
