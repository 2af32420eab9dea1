"""The configured fallback takes over once, as a new generation, and every process agrees."""

from __future__ import annotations

import json
from typing import Any

import pytest

from memory.embedding.batcher import EmbeddingBatcher
from memory.index.generation_writer import GenerationWriter
from memory.index.provider_fallback import provider_of
from schemas.conditions import ConditionCode
from schemas.settings import Settings
from tests.embedding_server import EmbeddingServer, Failure
from tests.waiting import wait_until
from tests.working import Workers
from workers import failure_policy
from workers.queue.private_server import BrokerServer


def with_fallback(settings: Settings, server: EmbeddingServer, key: str | None = "a-key", **more: Any) -> Settings:
    remote = {"base_url": server.url, "api_key": key} if key is not None else {}
    provider = {"provider": "openai", "fallback": "stub", "remote": remote, **more}
    agent = {"id": "main", "workspace": settings.agents[0].workspace, **provider}
    return Settings.model_validate({"home": settings.home, "agents": [agent], **provider})


def identity(workers: Workers) -> str:
    with workers.reading("main") as reader:
        description = reader.meta("identity") if reader is not None else None
    return str(json.loads(json.loads(description)["embedding"])["provider"]) if description else ""


def test_the_fallback_takes_over_as_a_new_generation_and_no_vectors_are_mixed(
    settings: Settings, broker_server: BrokerServer, server: EmbeddingServer
) -> None:
    ours = with_fallback(settings, server)
    with Workers(ours) as workers:
        workers.index("memory/a.md", "The heron stands in the reeds.")
        assert identity(workers) == "openai"
        server.fail_next(Failure(status=401, message="revoked"), times=10_000)
        workers.note("memory/b.md", "The otter swims in the brook.")
        wait_until(lambda: identity(workers) == "stub", what="the fallback's generation answers")
        wait_until(workers.complete)
        counts = workers.counts()
        assert (counts.files, counts.vectors_ready) == (2, 2)
        wait_until(lambda: not workers.conditions())
        asked = server.requests
        workers.note("memory/c.md", "And a kingfisher.")
        wait_until(lambda: workers.counts().files == 3 and workers.complete())
        assert server.requests == asked, "it takes over once: the first provider is not asked any more"
    choice = provider_of(ours, ours.agents[0])
    assert (choice.name, choice.requested) == ("stub", "openai")
    assert choice.taken_over is not None
    assert choice.taken_over.startswith("stub took over: openai refused the key (HTTP 401")


def test_a_new_key_gives_the_first_provider_back_and_pays_nothing_twice(
    settings: Settings, broker_server: BrokerServer, server: EmbeddingServer
) -> None:
    with Workers(with_fallback(settings, server)) as workers:
        workers.index("memory/a.md", "The heron stands in the reeds.")
        server.fail_next(Failure(status=401), times=10_000)
        workers.note("memory/b.md", "The otter swims in the brook.")
        wait_until(lambda: identity(workers) == "stub" and workers.complete())
    server.recover()
    renewed = with_fallback(settings, server, key="another-key")
    with Workers(renewed) as workers:
        workers.note("memory/c.md", "And a kingfisher.")
        wait_until(lambda: identity(workers) == "openai" and workers.complete())
        assert workers.counts().files == 3
    assert provider_of(renewed, renewed.agents[0]).taken_over is None
    assert server.inputs == server.distinct == 3


def test_a_provider_that_cannot_even_be_made_is_taken_over_from_at_once(
    settings: Settings, broker_server: BrokerServer, server: EmbeddingServer
) -> None:
    with Workers(with_fallback(settings, server, key=None)) as workers:
        workers.index("memory/a.md", "The heron stands in the reeds.")
        assert identity(workers) == "stub"
        assert not workers.conditions()
    taken = provider_of(workers.settings, workers.settings.agents[0]).taken_over
    assert taken is not None
    assert "OPENAI_API_KEY" in taken


def test_an_endpoint_that_stays_away_is_taken_over_from_after_a_while_only(
    settings: Settings, broker_server: BrokerServer, server: EmbeddingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(EmbeddingBatcher.__init__.__kwdefaults__, "patience_seconds", 0.1)
    server.fail_next(Failure(status=502), times=10_000)
    with Workers(with_fallback(settings, server)) as workers:
        workers.note("memory/a.md", "The heron stands in the reeds.")
        wait_until(workers.conditions)
        assert identity(workers) == "openai"
        monkeypatch.setattr(failure_policy, "LOST_AFTER_SECONDS", 0.0)
        wait_until(lambda: identity(workers) == "stub" and workers.complete())
        assert not workers.conditions()


def test_a_fallback_that_finds_no_space_for_its_index_says_so_and_takes_over_when_there_is_room(
    settings: Settings,
    broker_server: BrokerServer,
    server: EmbeddingServer,
    pauses: list[tuple[str, float]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    free = [10_000_000_000]
    monkeypatch.setitem(GenerationWriter.__init__.__kwdefaults__, "free", lambda _: free[0])
    with Workers(with_fallback(settings, server)) as workers:
        workers.index("memory/a.md", "The heron stands in the reeds.")
        free[0] = 1_000_000
        server.fail_next(Failure(status=401), times=10_000)
        workers.note("memory/b.md", "The otter swims in the brook.")
        wait_until(lambda: ConditionCode.NO_SPACE in workers.conditions() and len(pauses) >= 2)
        assert sum(seconds < 60.0 for _, seconds in pauses) <= 2, "no storm; who met the takeover looks again at once"
        assert workers.finds("otter")
        assert identity(workers) == "openai"
        free[0] = 10_000_000_000
        wait_until(lambda: identity(workers) == "stub" and workers.complete())


def test_a_fallback_that_cannot_be_had_is_said_and_does_not_take_over(
    settings: Settings, broker_server: BrokerServer, server: EmbeddingServer
) -> None:
    server.fail_next(Failure(status=401), times=10_000)
    with Workers(with_fallback(settings, server, fallback="voyage")) as workers:
        workers.note("memory/a.md", "The heron stands in the reeds.")
        said = wait_until(workers.conditions)
        assert {one.subject for one in said.values()} == {"openai"}
        assert said.keys() == {ConditionCode.PROVIDER_REFUSES, ConditionCode.FALLBACK_UNUSABLE}
        assert "VOYAGE_API_KEY" in str(said[ConditionCode.FALLBACK_UNUSABLE].params["reason"])
        assert identity(workers) == "openai"
