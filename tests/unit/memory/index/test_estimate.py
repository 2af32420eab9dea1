"""Estimates: money from tokens, time from the limits, and requests from both."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from memory.documents.agent_files import AgentFiles
from memory.embedding.providers.provider import ProviderLimits
from memory.embedding.providers.stub import StubProvider
from memory.embedding.selection import ProviderChoice
from memory.index.estimate import Estimate, estimate, requests_for
from memory.index.generations import Generations
from memory.store.options import StoreOptions
from tests.indexing import FAST, World

A_MINUTE = replace(FAST, requests_per_minute=6)


@pytest.mark.parametrize(
    ("limits", "seconds"),
    [(FAST, 1 / 5_000), (A_MINUTE, 10), (replace(A_MINUTE, tokens_per_minute=375), 60)],
    ids=["chunks a second", "requests a minute", "tokens a minute"],
)
def test_money_follows_from_tokens_and_time_from_the_limits(world: World, limits: ProviderLimits, seconds: float):
    key = world.write("memory/a.md", "word " * 300)

    def estimated(**settings: Any) -> Estimate:
        agent = world.agent(**settings)
        generations = Generations(world.folder / "indexes" / "main", StoreOptions())
        provider = StubProvider(limits=limits)
        provider.name = "openai"
        choice = ProviderChoice(provider, requested="openai")
        return estimate(
            agent, [key], files=AgentFiles(agent), generations=generations, choice=choice, cache=world.cache
        )

    assert estimated().dollars is None
    found = estimated(remote={"price_per_million_tokens": 2.0})
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
