"""What a process waits for, by endpoint, and for how long."""

from __future__ import annotations

from memory.embedding.coordination import UNUSUAL_SECONDS, InFlightRequests
from memory.embedding.providers.stub import StubProvider


class Remote(StubProvider):
    """The stub, as somebody else's."""

    account = "account"
    address = "http://127.0.0.1:9/v1"


def test_a_request_is_told_from_an_unusual_time_on_until_it_is_answered_and_one_on_this_machine_never() -> None:
    now = [1000.0]
    asking = InFlightRequests(clock=lambda: now[0])
    with asking.request(Remote()), asking.request(StubProvider()):
        now[0] += UNUSUAL_SECONDS - 1
        assert asking.unanswered() == []
        now[0] += 6.0
        [one] = asking.unanswered()
        assert (one.account, one.model, one.seconds) == ("account", Remote().model, UNUSUAL_SECONDS + 5)
        assert one.address == "stub at http://127.0.0.1:9/v1"
    assert asking.unanswered() == []
