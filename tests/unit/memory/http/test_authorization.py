"""Tokens of agents and of their owner, and the memory that each opens."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest
from starlette.responses import Response

from memory.http.authorization import (
    LINK_SECONDS,
    SESSION_SECONDS,
    AccessDenied,
    Authorizer,
    OneTimeLinks,
    ensure_owner_token,
    ensure_tokens,
)
from memory.http.loopback import is_loopback
from memory.http.origin_guard import OriginGuard

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


def test_the_owners_token_opens_every_agent_and_is_readable_by_its_user_alone(tmp_path: Path):
    token = ensure_owner_token(tmp_path)
    assert token is not None
    assert token == ensure_owner_token(tmp_path)
    file = tmp_path / "run" / "owner-token"
    assert (file.stat().st_mode & 0o777, len(token) >= 40) == (0o600, True)
    gate, owner = Authorizer(("ada", "bob"), TOKENS, owner_token=token), f"Bearer {token}"

    assert [gate.agent(owner, agent) for agent in ("ada", "bob")] == ["ada", "bob"]
    assert gate.agent_or_all(owner, None) is None
    assert gate.visible(owner) == gate.measurable(owner) == ("ada", "bob")
    assert denied(gate, owner, "carl").status == 404
    assert denied(gate, owner, None).status == 400
    assert gate.agent_or_all(f"Bearer {TOKENS['ada']}", None) == "ada"
    assert denied(gate, "Bearer ", None).status == 401


def test_a_trusted_loopback_is_not_the_owner():
    gate = Authorizer(("ada", "bob"), None, owner_token="secret")
    assert gate.agent_or_all("Bearer secret", None) is None
    with pytest.raises(AccessDenied, match="say which agent"):
        gate.agent_or_all(None, None)


@pytest.mark.parametrize(
    ("client", "token", "status"),
    [("127.0.0.1", "the-owners", 200), ("10.0.0.9", "the-owners", 403), ("10.0.0.9", "token-of-ada", 200)],
)
def test_the_owners_token_is_taken_from_clients_on_this_machine_only(client: str, token: str, status: int):
    gate = Authorizer(("ada", "bob"), TOKENS, owner_token="the-owners")
    app = OriginGuard(Response("memory"), host="0.0.0.0", is_owner=gate.is_owner)

    async def answer() -> httpx.Response:
        transport = httpx.ASGITransport(app, client=(client, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://10.0.0.5") as caller:
            return await caller.get("/", headers={"authorization": f"Bearer {token}"})

    assert asyncio.run(answer()).status_code == status


def test_a_session_opens_all_agents_until_it_ends_and_cannot_be_made_longer():
    now = [1_000_000.0]
    gate = Authorizer(("ada", "bob"), TOKENS, owner_token="secret", clock=lambda: now[0])
    session = gate.new_session()
    assert gate.agent_or_all(f"Bearer {session}", None) is None
    assert not gate.has_owner_token(f"Bearer {session}"), "a session makes no new link"
    kind, until, signature = session.split(".")
    for forged in (f"{kind}.{int(until) + 1}.{signature}", f"{kind}.{until}.{signature[1:]}", f"{kind}.{'9' * 30}."):
        assert not gate.is_owner(f"Bearer {forged}")
    assert not Authorizer(("ada", "bob"), TOKENS, owner_token="other").is_owner(f"Bearer {session}")
    now[0] += SESSION_SECONDS
    assert not gate.is_owner(f"Bearer {session}")


def test_a_link_is_good_once_and_for_a_minute():
    now = [0.0]
    links = OneTimeLinks(clock=lambda: now[0])
    used, old = links.make(), links.make()
    links.use(used)
    for link, seconds in ((used, 0), ("never made", 0), (old, LINK_SECONDS)):
        now[0] += seconds
        with pytest.raises(AccessDenied, match="run `recalld open` again"):
            links.use(link)
