"""Access tokens of a fleet, and the memory that each opens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from memory.http.authorization import AccessDenied
from memory.store.postgres.directory import VIEW_AGENTS, AccessToken, FleetAuthorizer, new_token, token_hash
from schemas.agents import Scope

SECRET = new_token()
TOKEN = AccessToken(tenant="acme", name="bot", rights=("search",))

#: Names that acme's token must not tell apart: unknown ones, other tenants' and malformed ones.
CLOSED = [
    "carl",
    "eve",
    "umbrella/eve",
    "umbrella/anna",
    "anna/anna",
    "acme/acme/anna",
    "",
    "*",
    "ANNA",
    "anna\x00",
    "ä",
]


class _Directory:
    """Tokens and agents in memory."""

    def __init__(self, tokens: Mapping[str, AccessToken], agents: Sequence[str]) -> None:
        self._tokens = {token_hash(secret): token for secret, token in tokens.items()}
        self._agents = {Scope.of(agent) for agent in agents}
        self.token = self._tokens.get

    def agent(self, agent_id: str) -> str:
        if Scope.of(agent_id) not in self._agents:
            raise KeyError(agent_id)
        return agent_id

    def page(self, tenant: str, *, after: str = "", limit: int = VIEW_AGENTS) -> Sequence[str]:
        names = sorted(scope.agent for scope in self._agents if scope.tenant == tenant)
        return [name for name in names if name > after][:limit]


def gate(token: AccessToken = TOKEN, *agents: str, now: float = 0.0) -> FleetAuthorizer:
    directory = _Directory({SECRET: token}, agents or ("acme/bob", "acme/anna", "umbrella/eve", "umbrella/anna"))
    return FleetAuthorizer((), {}, clock=lambda: now, directory=directory)


def denied(gate: FleetAuthorizer, requested: str | None, header: str | None = f"Bearer {SECRET}") -> tuple[int, str]:
    with pytest.raises(AccessDenied) as caught:
        gate.agent(header, requested)
    return caught.value.status, str(caught.value)


def test_a_token_is_long_random_and_marked_as_one():
    assert len({new_token() for _ in range(100)}) == 100
    assert len(SECRET) >= 47
    assert SECRET.startswith("rcl_")


def test_a_name_means_the_agent_of_the_tokens_tenant():
    assert gate().agent(f"Bearer {SECRET}", "anna") == gate().agent(f"Bearer {SECRET}", "acme/anna") == "acme/anna"
    default = replace(TOKEN, tenant="default")
    assert gate(default, "anna").agent(f"Bearer {SECRET}", "anna") == "anna"


def test_another_tenants_agent_and_an_unknown_one_get_one_answer():
    for token in (TOKEN, replace(TOKEN, agents=("anna", "bob"))):
        answers = {denied(gate(token), name) for name in CLOSED}
        assert len(answers) == 1
        assert answers.pop()[0] == 404


def test_an_agent_that_a_token_does_not_name_is_unknown_to_it():
    assert denied(gate(replace(TOKEN, agents=("anna",))), "bob") == denied(gate(), "carl")
    assert denied(gate(replace(TOKEN, agents=("carl",))), "carl") == denied(gate(), "carl")


def test_a_token_for_several_agents_opens_the_first_by_default():
    assert gate(replace(TOKEN, agents=("bob", "anna"))).agent(f"Bearer {SECRET}", None) == "acme/bob"
    assert gate().agent(f"Bearer {SECRET}", None) == "acme/anna"
    assert denied(gate(TOKEN, "umbrella/eve"), None) == denied(gate(), "carl")


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Bearer rcl_", f"Basic {SECRET}", f"Bearer {new_token()}", f"bearer x{SECRET}"],
    ids=["none", "empty", "no token", "no secret", "another scheme", "unknown", "changed"],  # alike in all processes
)
def test_a_request_without_a_valid_token_is_refused(header: str | None):
    assert denied(gate(), "anna", header)[0] == 401


def test_an_expired_token_is_refused_at_once():
    expiring = replace(TOKEN, expires_at=100.0)
    assert gate(expiring, now=99.9).agent(f"Bearer {SECRET}", "anna") == "acme/anna"
    assert denied(gate(expiring, now=100.0), "anna") == denied(gate(), "anna", f"Bearer {new_token()}")


def test_a_token_has_only_the_rights_that_it_was_given():
    sender = gate(replace(TOKEN, rights=("ingest",)))
    assert denied(sender, "anna")[0] == 403
    assert sender.token(f"Bearer {SECRET}", "ingest").name == "bot"
    assert sender.agent(f"Bearer {SECRET}", "anna", right="ingest") == "acme/anna"


def test_a_view_shows_the_tokens_agents_page_by_page():
    names = [f"agent{number:03}" for number in range(VIEW_AGENTS + 2)]
    everyone = ("umbrella/eve", *(f"acme/{name}" for name in names))
    for token in (TOKEN, replace(TOKEN, agents=tuple(reversed(names)))):
        first = gate(token, *everyone).visible(f"Bearer {SECRET}")
        assert first == tuple(f"acme/{name}" for name in names[:VIEW_AGENTS])
        assert gate(token, *everyone).visible(f"Bearer {SECRET}", after=names[VIEW_AGENTS - 1]) == (
            f"acme/{names[-2]}",
            f"acme/{names[-1]}",
        )
    assert gate().visible(f"Bearer {SECRET}", "bob") == ("acme/bob",)
    assert gate().measurable(f"Bearer {SECRET}") == ("acme/anna", "acme/bob")
    assert not gate().is_owner(f"Bearer {SECRET}")
