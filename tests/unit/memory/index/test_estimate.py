"""Estimates: money from tokens, time from the limits, and requests from both."""

from __future__ import annotations

from typing import Any

import pytest

from memory.documents.agent_files import AgentFiles
from memory.index.estimate import Estimate, Sample, estimate, requests_for
from schemas.documents import DocumentKey
from schemas.settings import Settings
from tests.indexing import FAST, World
from tests.transcript_files import FORMATS, transcript


@pytest.mark.parametrize(
    ("limits", "seconds"),
    [
        ({}, None),
        ({"requests_per_minute": 6}, 10),
        ({"requests_per_minute": 6, "tokens_per_minute": 375}, 60),
    ],
    ids=["nothing known", "requests a minute", "tokens a minute"],
)
def test_money_follows_from_tokens_and_time_from_the_limits(
    world: World, limits: dict[str, int], seconds: float | None
):
    key = world.write("memory/a.md", "word " * 300)

    def estimated(**remote: Any) -> Estimate:
        agent = world.agent(provider="openai", model="unlisted", remote={"api_key": "k", **limits, **remote})
        settings = Settings(home=world.folder, agents=(agent,))
        return estimate(settings, agent, [key], files=AgentFiles(agent), cache=None)

    assert estimated().dollars is None
    found = estimated(price_per_million_tokens=2.0)
    assert (found.tokens, found.dollars) == (375, pytest.approx(375 * 2.0 / 1e6))
    assert found.seconds == seconds


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


def test_a_sample_tells_about_all_and_the_most_that_it_leaves_possible(world: World) -> None:
    for number in range(60):
        data = transcript(FORMATS[number % 4], turns=20 + number, seed=number)
        (world.sessions / f"{number}.jsonl").write_bytes(data)
    keys = [DocumentKey("sessions", f"sessions/{number}.jsonl") for number in range(60)]
    agent = world.agent(provider="openai", remote={"api_key": "k"})
    settings, files = Settings(home=world.folder, agents=(agent,)), AgentFiles(agent)
    sizes = {key: files.path_of(key).stat().st_size for key in keys}
    exact = estimate(settings, agent, keys, files=files, cache=None)

    def sampled(seconds: float) -> Estimate:
        return estimate(settings, agent, (), files=files, cache=None, sample=Sample(sizes, seconds))

    one = sampled(0.0)
    assert one.at_most is not None
    assert exact.tokens / 2 < one.tokens < exact.tokens * 2
    assert exact.tokens < one.at_most == one.upper.tokens
    assert (one.documents, one.upper.to_embed > one.to_embed) == (60, True)
    everything = sampled(600.0)
    assert everything.at_most is None
    assert sum(everything.programs.values()) == pytest.approx(exact.tokens, abs=4)
    assert everything.tokens == exact.tokens
