"""Estimates: what counts as changed, cached and paid for, and how it adds up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from memory.documents.agent_files import AgentFiles
from memory.embedding.providers.endpoint import Endpoint
from memory.embedding.providers.openai import OpenAIProvider
from memory.embedding.providers.stub import StubProvider
from memory.index.estimate import Estimate, estimate, requests_for
from memory.index.generations import Generations
from memory.store.options import StoreOptions
from memory.store.writer import Refusal
from schemas.documents import DocumentKey, Lane
from tests.indexing import FAST, SLOW, World

STUB = StubProvider(limits=FAST)


@pytest.fixture
def estimated(world: World) -> Callable[..., Estimate]:
    """The estimate of documents; `provider`, an agent's `settings` and options as they are given."""

    def estimated(*keys: DocumentKey, provider: Any = STUB, **options: Any) -> Estimate:
        agent = world.agent(**options.pop("settings", {}))
        return estimate(
            agent,
            keys,
            files=AgentFiles(agent),
            generations=Generations(world.folder / "indexes" / "main", StoreOptions()),
            choice=world.choice(provider, name="openai"),
            cache=world.cache,
            **options,
        )

    return estimated


def waiting(world: World, *keys: DocumentKey) -> Any:
    """Index documents whose vectors do not come soon; returns their index."""
    indexer = world.indexer(limits=SLOW)
    indexer.index(keys, lane=Lane.BACKFILL, on_done=lambda _keys: None)
    return indexer.target()


def test_a_text_that_documents_or_agents_share_is_embedded_once(world: World, estimated: Callable[..., Estimate]):
    keys = world.write("memory/a.md", "The same.\n"), world.write("memory/b.md", "The same.\n")
    provider, bought = StubProvider(limits=FAST), set[tuple[str, str]]()
    found = estimated(*keys, provider=provider, bought=bought)
    assert (found.documents, found.chunks, found.texts, found.cached, found.to_embed) == (2, 2, 1, 0, 1)
    again = estimated(*keys, provider=provider, bought=bought)
    assert (again.texts, again.cached, again.to_embed, again.tokens, provider.requests) == (1, 1, 0, 0, 0)
    alone = estimated(*keys, provider=None)
    assert (alone.documents, alone.chunks, alone.to_embed, alone.dollars) == (2, 2, 0, 0)


def test_chunks_that_wait_already_are_paid_for_by_the_run_unless_their_document_goes(
    world: World, estimated: Callable[..., Estimate]
):
    stays, goes = world.write("memory/a.md", "Waits and stays.\n"), world.write("memory/b.md", "Waits and goes.\n")
    assert len(waiting(world, stays, goes).pending_chunks(9)) == 2
    (world.workspace / goes.path).unlink()
    found = estimated(stays, goes)
    assert (found.documents, found.vanished, found.chunks, found.to_embed) == (0, 1, 1, 1)
    assert found.tokens == round(len("Waits and stays.\n") / 4)


def test_refused_chunks_are_not_asked_for_again_except_by_a_new_index(world: World, estimated: Callable[..., Estimate]):
    key = world.write("memory/a.md", "Refused.\n")
    store = waiting(world, key)
    store.write_vectors({one.id: (one.text_hash, Refusal("no")) for one in store.pending_chunks(1)})
    assert (estimated(key).to_embed, estimated(key, fresh=True).to_embed) == (0, 1)


def test_what_cannot_be_read_is_counted_and_does_not_stop_the_rest(world: World, estimated: Callable[..., Estimate]):
    (world.workspace / "memory" / "link.md").symlink_to("/etc/hostname")
    huge = world.write("memory/huge.md", "")
    with (world.workspace / huge.path).open("wb") as file:
        file.truncate(100_000_000)
    found = estimated(huge, DocumentKey("memory", "memory/link.md"), world.write("memory/a.md", "Fine.\n"))
    assert (found.failed, found.documents, found.to_embed) == (1, 1, 1)


def test_money_follows_from_tokens_and_time_from_the_limits(world: World, estimated: Callable[..., Estimate]):
    key, price = world.write("memory/a.md", "word " * 300), {"remote": {"price_per_million_tokens": 2.0}}
    assert estimated(key).dollars is None
    found = estimated(key, settings=price)
    assert (found.tokens, found.dollars) == (375, pytest.approx(375 * 2.0 / 1e6))
    for limits, seconds in (
        (FAST, 1 / 5_000),
        (replace(FAST, requests_per_minute=6), 10),
        (replace(FAST, requests_per_minute=6, tokens_per_minute=375), 60),
    ):
        assert estimated(key, provider=StubProvider(limits=limits)).seconds == pytest.approx(seconds)


def test_a_batch_has_its_own_price_where_the_settings_want_it_and_there_is_enough_for_one(
    world: World, estimated: Callable[..., Estimate]
):
    keys = [world.write(f"memory/{number}.md", f"word{number} " * 40) for number in range(3)]
    endpoint = Endpoint(
        name="openai",
        model="text-embedding-3-small",
        base_url="https://api.openai.com/v1",
        api_key="unused",
        key_name="OPENAI_API_KEY",
        limits=FAST,
    )
    options: dict[str, Any] = {"provider": OpenAIProvider(endpoint), "settings": {"remote": {"batch": {"enabled": 1}}}}
    prices = [estimated(*keys, batch_from=batch_from, **dict(options)).price for batch_from in (3, 4, None)]
    assert prices == [0.01, 0.02, 0.02]


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
