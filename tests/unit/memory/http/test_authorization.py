"""Tokens of agents, and the memory that each opens."""

from __future__ import annotations

from pathlib import Path

import pytest

from memory.http.authorization import AccessDenied, Authorizer, ensure_tokens
from memory.http.origin_guard import is_loopback

TOKENS = {"ada": "token-of-ada", "bob": "token-of-bob"}


def denied(gate: Authorizer, authorization: str | None, asked: str | None) -> AccessDenied:
    with pytest.raises(AccessDenied) as caught:
        gate.agent(authorization, asked)
    return caught.value


@pytest.mark.parametrize(
    ("names", "loopback"),
    [
        (["localhost", "LOCALHOST", "127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost."], True),
        (["", "0.0.0.0", "::", "10.0.0.1", "localhost.evil.example", "127.0.0.1.nip.io", "2130706433"], False),
    ],
)
def test_names_of_this_machine(names: list[str], loopback: bool):
    assert [is_loopback(name) for name in names] == [loopback] * len(names)


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer ", "token-of-ada", "Basic token-of-ada", "Bearer wrong", "Bearer sécret"]
)
def test_without_a_known_token_no_client_comes_in(header: str | None):
    for tokens in (TOKENS, {}):
        assert denied(Authorizer(("ada", "bob"), tokens), header, "ada").status == 401


def test_every_agent_gets_its_own_token_that_no_other_user_can_read(tmp_path: Path):
    tokens = ensure_tokens(tmp_path, ["ada", "bob"])

    assert len(set(tokens.values())) == 2
    assert all(len(token) >= 40 for token in tokens.values())
    folder = tmp_path / "run" / "tokens"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {(folder / agent).stat().st_mode & 0o777 for agent in tokens} == {0o600}
    assert sorted(entry.name for entry in folder.iterdir()) == ["ada", "bob"]
