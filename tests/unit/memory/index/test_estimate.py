"""Estimates: what counts as changed, cached and paid for, and how it adds up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from memory.documents.agent_files import AgentFiles
from memory.embedding.cache import EmbeddingCache
from memory.embedding.providers.endpoint import Endpoint
from memory.embedding.providers.openai import OpenAIProvider
from memory.embedding.providers.provider import ProviderLimits
from memory.embedding.providers.stub import StubProvider
from memory.embedding.selection import ProviderChoice
from memory.embedding.supply import EmbeddingSupply
from memory.index.estimate import Estimate, estimate, requests_for
from memory.index.generation_writer import GenerationWriter
from memory.index.generations import Generations
from memory.index.indexer import Indexer
from memory.store.options import StoreOptions
from memory.store.writer import Refusal
from schemas.documents import DocumentKey, Lane
from schemas.settings import AgentSettings

FAST = ProviderLimits(inputs=64, tokens=100_000, input_bytes=8191, concurrency=2, chunks_per_second=5_000.0)


class World:
    """One workspace, and the index that an agent makes of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.workspace = folder / "workspace"
        (self.workspace / "memory").mkdir(parents=True)
        self.cache = EmbeddingCache(folder / "embeddings.sqlite")
        self.provider = StubProvider(limits=FAST)
        self.price: float | None = None
        self.open: list[Indexer] = []

    def agent(self, name: str = "main") -> AgentSettings:
        return AgentSettings.model_validate(
            {"id": name, "workspace": self.workspace, "remote": {"price_per_million_tokens": self.price}}
        )

    def choice(self, *, vectors: bool = True, name: str = "openai") -> ProviderChoice:
        return ProviderChoice(self.provider if vectors else None, name, name if vectors else "none", None, None)

    def write(self, path: str, text: str) -> DocumentKey:
        (self.workspace / path).write_text(text, encoding="utf-8")
        return DocumentKey("memory", path)

    def index(self, *keys: DocumentKey, vectors: bool = True) -> Indexer:
        """Index documents; without `vectors` they wait for theirs."""
        agent = self.agent()
        self.provider.limits = FAST if vectors else replace(FAST, chunks_per_second=0.001)
        made = Indexer(
            agent,
            files=AgentFiles(agent),
            generations=GenerationWriter(self.folder / "indexes" / "main", StoreOptions()),
            supply=EmbeddingSupply(self.choice(), self.cache),
        )
        self.open.append(made)
        made.index(keys, lane=Lane.BACKFILL, on_done=lambda _keys: None)
        self.provider.limits = FAST
        return made

    def estimate(
        self, *keys: DocumentKey, vectors: bool = True, fresh: bool = False, bought: set[tuple[str, str]] | None = None
    ) -> Estimate:
        agent = self.agent()
        return estimate(
            agent,
            keys,
            files=AgentFiles(agent),
            generations=Generations(self.folder / "indexes" / "main", StoreOptions()),
            choice=self.choice(vectors=vectors),
            cache=self.cache,
            fresh=fresh,
            bought=bought,
        )

    def close(self) -> None:
        for indexer in self.open:
            indexer.supply.close()
            indexer.generations.close()
        self.cache.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def test_a_text_that_two_documents_share_is_embedded_once(world: World) -> None:
    found = world.estimate(world.write("memory/a.md", "The same.\n"), world.write("memory/b.md", "The same.\n"))
    assert (found.documents, found.chunks, found.texts, found.cached, found.to_embed) == (2, 2, 1, 0, 1)
    assert world.provider.requests == 0


def test_what_another_agent_buys_first_is_not_bought_again(world: World) -> None:
    key = world.write("memory/a.md", "Shared by two agents.\n")
    bought: set[tuple[str, str]] = set()
    assert world.estimate(key, bought=bought).to_embed == 1
    again = world.estimate(key, bought=bought)
    assert (again.texts, again.cached, again.to_embed, again.tokens) == (1, 1, 0, 0)


def test_chunks_that_wait_already_are_paid_for_by_the_run_unless_their_document_goes(world: World) -> None:
    stays, goes = world.write("memory/a.md", "Waits and stays.\n"), world.write("memory/b.md", "Waits and goes.\n")
    indexer = world.index(stays, goes, vectors=False)
    assert len(indexer.target().pending_chunks(9)) == 2
    (world.workspace / goes.path).unlink()
    found = world.estimate(stays, goes)
    assert (found.documents, found.vanished, found.chunks, found.to_embed) == (0, 1, 1, 1)
    assert found.tokens == round(len("Waits and stays.\n") / 4)


def test_refused_chunks_are_not_asked_for_again_except_by_a_new_index(world: World) -> None:
    key = world.write("memory/a.md", "Refused.\n")
    store = world.index(key, vectors=False).target()
    store.write_vectors({one.id: (one.text_hash, Refusal("no")) for one in store.pending_chunks(1)})
    assert world.estimate(key).to_embed == 0
    assert world.estimate(key, fresh=True).to_embed == 1


def test_what_cannot_be_read_is_counted_and_does_not_stop_the_rest(world: World) -> None:
    (world.workspace / "memory" / "link.md").symlink_to("/etc/hostname")
    huge = world.write("memory/huge.md", "")
    with (world.workspace / huge.path).open("wb") as file:
        file.truncate(100_000_000)
    found = world.estimate(huge, DocumentKey("memory", "memory/link.md"), world.write("memory/a.md", "Fine.\n"))
    assert (found.failed, found.documents, found.to_embed) == (1, 1, 1)


def test_without_a_provider_there_is_nothing_to_pay(world: World) -> None:
    found = world.estimate(world.write("memory/a.md", "Keywords.\n"), vectors=False)
    assert (found.documents, found.chunks, found.to_embed, found.dollars) == (1, 1, 0, 0)


def test_money_follows_from_tokens_and_is_unknown_where_the_price_is(world: World) -> None:
    key = world.write("memory/a.md", "word " * 300)
    assert world.estimate(key).dollars is None
    world.price = 2.0
    found = world.estimate(key)
    assert found.tokens == 375
    assert found.dollars == pytest.approx(375 * 2.0 / 1e6)


def test_a_batch_has_its_own_price_where_the_settings_want_it_and_there_is_enough_for_one(world: World) -> None:
    keys = [world.write(f"memory/{number}.md", f"word{number} " * 40) for number in range(3)]
    agent = AgentSettings.model_validate(
        {"id": "main", "workspace": world.workspace, "remote": {"batch": {"enabled": True}}}
    )
    provider = OpenAIProvider(
        Endpoint(
            name="openai",
            model="text-embedding-3-small",
            base_url="https://api.openai.com/v1",
            api_key="unused",
            key_name="OPENAI_API_KEY",
            limits=FAST,
        )
    )

    def price(batch_from: int | None) -> float | None:
        return estimate(
            agent,
            keys,
            files=AgentFiles(agent),
            generations=Generations(world.folder / "indexes" / "main", StoreOptions()),
            choice=ProviderChoice(provider, "openai", "openai", None, None),
            cache=None,
            batch_from=batch_from,
        ).price

    assert (price(3), price(4), price(None)) == (0.01, 0.02, 0.02)


def test_time_is_bounded_by_the_rate_and_by_the_limits_a_minute(world: World) -> None:
    key = world.write("memory/a.md", "word " * 300)
    assert world.estimate(key).seconds == pytest.approx(1 / 5_000)
    world.provider.limits = replace(FAST, requests_per_minute=6)
    assert world.estimate(key).seconds == pytest.approx(10)
    world.provider.limits = replace(FAST, requests_per_minute=6, tokens_per_minute=375)
    assert world.estimate(key).seconds == pytest.approx(60)


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
def test_requests_are_filled_by_count_and_by_tokens(sizes: list[float], requests: int) -> None:
    assert requests_for(sizes, FAST) == requests
