"""Estimates: money from tokens, time from the limits, and requests from both."""

from __future__ import annotations

from typing import Any

import pytest

from memory.documents.agent_files import AgentFiles
from memory.index.estimate import Estimate, estimate, requests_for
from schemas.settings import Settings
from tests.indexing import FAST, World


@pytest.mark.parametrize(
    ("limits", "seconds"),
    [
        ({}, 1 / 1_000),
        ({"requests_per_minute": 6}, 10),
        ({"requests_per_minute": 6, "tokens_per_minute": 375}, 60),
    ],
    ids=["chunks a second", "requests a minute", "tokens a minute"],
)
def test_money_follows_from_tokens_and_time_from_the_limits(world: World, limits: dict[str, int], seconds: float):
    key = world.write("memory/a.md", "word " * 300)

    def estimated(**remote: Any) -> Estimate:
        agent = world.agent(provider="openai", model="unlisted", remote={"api_key": "k", **limits, **remote})
        settings = Settings(home=world.folder, agents=(agent,))
        return estimate(settings, agent, [key], files=AgentFiles(agent), cache=None)

    assert estimated().dollars is None
    found = estimated(price_per_million_tokens=2.0)
    assert (found.tokens, found.dollars) == (375, pytest.approx(375 * 2.0 / 1e6))
    assert found.seconds == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("sizes", "requests"),
    [
        ([], 0),
        ([1.0] * 64, 1),
        ([1.0] * 65, 2),
        ([60_000.0, 40_000.0], 1),
        ([60_000.0, 40_001.0], 2),
        ([500_000.0], 1),
    ],
)
def test_requests_are_filled_by_count_and_by_tokens(sizes: list[float], requests: int):
    assert requests_for(sizes, FAST) == requests
