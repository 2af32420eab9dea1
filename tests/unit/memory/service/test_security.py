"""Who may ask for what."""

from __future__ import annotations

import pytest

from memory.service.security import AccessDenied, Gatekeeper, is_loopback

TOKENS = {"ada": "token-of-ada", "bob": "token-of-bob"}


def denied(gate: Gatekeeper, authorization: str | None, asked: str | None) -> AccessDenied:
    with pytest.raises(AccessDenied) as caught:
        gate.agent(authorization, asked)
    return caught.value


@pytest.mark.parametrize("name", ["localhost", "LOCALHOST", "127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost."])
def test_loopback_names(name: str):
    assert is_loopback(name)


@pytest.mark.parametrize(
    "name", ["", "0.0.0.0", "::", "10.0.0.1", "localhost.evil.example", "127.0.0.1.nip.io", "2130706433"]
)
def test_other_names(name: str):
    assert not is_loopback(name)


def test_with_one_agent_nothing_needs_to_be_said():
    gate = Gatekeeper(("main",), None)

    assert gate.agent(None, None) == gate.agent(None, "main") == "main"
    assert denied(gate, None, "other").status == 404


def test_on_a_trusted_loopback_the_agent_is_named():
    gate = Gatekeeper(("ada", "bob"), None)

    assert gate.agent(None, "bob") == "bob"
    refusal = denied(gate, None, None)
    assert refusal.status == 400
    assert str(refusal) == "say which agent: ada, bob"


def test_a_token_opens_its_own_agent_only():
    gate = Gatekeeper(("ada", "bob"), TOKENS)

    assert gate.agent("Bearer token-of-ada", None) == gate.agent("bearer token-of-ada", "ada") == "ada"
    other, nobody = denied(gate, "Bearer token-of-ada", "bob"), denied(gate, "Bearer token-of-ada", "nobody")
    assert (other.status, str(other)) == (nobody.status, str(nobody)) == (403, str(other))
    assert gate.visible("Bearer token-of-ada") == ("ada",)


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer ", "token-of-ada", "Basic token-of-ada", "Bearer wrong"]
)
def test_without_a_known_token_nobody_comes_in(header: str | None):
    assert denied(Gatekeeper(("ada", "bob"), TOKENS), header, "ada").status == 401


def test_needed_tokens_that_do_not_exist_open_nothing():
    assert denied(Gatekeeper(("ada",), {}), "Bearer ", None).status == 401
    assert denied(Gatekeeper(("ada",), {}), "Bearer x", None).status == 401
