"""What a process waits for, by endpoint, and for how long."""

from __future__ import annotations

import pytest

from memory.embedding.coordination import UNUSUAL_SECONDS, InFlightRequests
from memory.embedding.providers.stub import StubProvider

LONG = UNUSUAL_SECONDS + 5.0


class Remote(StubProvider):
    """The stub, as somebody else's."""

    account = "account"
    address = "http://127.0.0.1:9/v1"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0
        self.asking = InFlightRequests(clock=lambda: self.now)

    def owed(self) -> list[float]:
        return [one.seconds for one in self.asking.unanswered()]


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_request_is_told_from_an_unusual_time_on_until_it_is_answered(clock: Clock):
    with clock.asking.request(Remote()):
        clock.now += UNUSUAL_SECONDS - 1
        assert clock.owed() == []
        clock.now += 6.0
        [one] = clock.asking.unanswered()
        assert (one.account, one.model, one.seconds) == ("account", Remote().model, UNUSUAL_SECONDS + 5)
        assert one.address == "stub at http://127.0.0.1:9/v1"
    assert clock.owed() == []


def test_a_model_on_this_machine_is_never_late(clock: Clock):
    with clock.asking.request(StubProvider()):
        clock.now += LONG
        assert clock.owed() == []
