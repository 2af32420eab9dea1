"""Tokens of agents, and the memory that each opens."""

from __future__ import annotations

from pathlib import Path

import pytest

from memory.http.authorization import AccessDenied, Authorizer, ensure_tokens, read_tokens
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


def test_with_one_agent_nothing_needs_to_be_said():
    gate = Authorizer(("main",), None)

    assert gate.agent(None, None) == gate.agent(None, "main") == "main"
    assert denied(gate, None, "other").status == 404


def test_on_a_trusted_loopback_the_agent_is_named():
    gate = Authorizer(("ada", "bob"), None)

    assert gate.agent(None, "bob") == "bob"
    refusal = denied(gate, None, None)
    assert refusal.status == 400
    assert str(refusal) == "say which agent: ada, bob"


def test_a_token_opens_its_own_agent_only():
    gate = Authorizer(("ada", "bob"), TOKENS)

    assert gate.agent("Bearer token-of-ada", None) == gate.agent("bearer token-of-ada", "ada") == "ada"
    other, nobody = denied(gate, "Bearer token-of-ada", "bob"), denied(gate, "Bearer token-of-ada", "nobody")
    assert (other.status, str(other)) == (nobody.status, str(nobody)) == (403, str(other))
    assert gate.visible("Bearer token-of-ada") == ("ada",)


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer ", "token-of-ada", "Basic token-of-ada", "Bearer wrong", "Bearer sécret"]
)
def test_without_a_known_token_nobody_comes_in(header: str | None):
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


def test_tokens_stay_and_only_missing_ones_are_made(tmp_path: Path):
    first = ensure_tokens(tmp_path, ["ada"])
    second = ensure_tokens(tmp_path, ["ada", "bob"])

    assert second["ada"] == first["ada"]
    assert read_tokens(tmp_path, ["ada", "bob", "eve"]) == second


def test_an_empty_file_is_no_token(tmp_path: Path):
    folder = tmp_path / "run" / "tokens"
    folder.mkdir(parents=True)
    (folder / "ada").write_text("\n")

    assert read_tokens(tmp_path, ["ada"]) == {}
    assert ensure_tokens(tmp_path, ["ada"])["ada"]
    assert (folder / "ada").stat().st_mode & 0o777 == 0o600
