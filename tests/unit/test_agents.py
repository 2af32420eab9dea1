"""Names of agents of a fleet."""

from __future__ import annotations

import pytest

from schemas.agents import NAME, Scope


@pytest.mark.parametrize(
    ("agent_id", "scope"), [("acme/anna", Scope("acme", "anna")), ("anna", Scope("default", "anna"))]
)
def test_an_agents_id_names_its_scope_and_the_reverse(agent_id: str, scope: Scope) -> None:
    assert Scope.of(agent_id) == scope
    assert scope.agent_id == agent_id


def test_the_default_tenant_may_be_written_out() -> None:
    assert Scope.of("default/anna") == Scope.of("anna")


@pytest.mark.parametrize("name", ["", "*", "a/b", "-a", "a b", "a\n", "a" * 65, "ä"])
def test_some_texts_are_no_names(name: str) -> None:
    assert NAME.fullmatch(name) is None
