"""Old texts wait for a consent to their cost, and are released as far as it reaches."""

from __future__ import annotations

from pathlib import Path

import pytest

from memory.chunking.chunker import estimate_tokens
from memory.embedding.consent import Consents, HeldTexts
from memory.embedding.providers.stub import StubProvider
from memory.index.completion import complete_generation, fill_vectors, release_held
from memory.index.indexer import Indexer
from schemas.documents import Lane
from tests.indexing import FAST, World
from tests.storing import key

COUNT = 10
TEXTS = [f"The heron number {number} stands in the reeds." for number in range(COUNT)]
TOKENS = [estimate_tokens(text) for text in TEXTS]


@pytest.fixture
def provider() -> StubProvider:
    return StubProvider(limits=FAST)


@pytest.fixture
def indexer(world: World, provider: StubProvider) -> Indexer:
    """An indexer whose old texts are held."""
    indexer = world.indexer(provider, holds=True)
    for number, text in enumerate(TEXTS):
        world.write(f"memory/{number}.md", text)
    index(indexer, lane=Lane.BACKFILL)
    return indexer


@pytest.fixture
def consents(tmp_path: Path) -> Consents:
    """Consents without which nothing is released, whatever the price."""
    return Consents(tmp_path / "consents" / "main.jsonl", ask_above=-1.0)


def index(indexer: Indexer, *, lane: Lane) -> None:
    indexer.index([key(f"memory/{number}.md") for number in range(COUNT)], lane=lane, on_done=lambda _: None)


def release(indexer: Indexer, consents: Consents, *, drained: bool = False) -> int:
    """Release as far as consents reach, and return how many texts are held then."""
    release_held(indexer, consents, drained=drained)
    return indexer.target().counts().vectors_held


def test_texts_are_released_in_order_as_far_as_a_consent_reaches(indexer: Indexer, consents: Consents) -> None:
    assert (release(indexer, consents), indexer.target().pending_hashes()) == (COUNT, {})
    held_ids = list(indexer.target().held_hashes())
    consents.grant("another identity", 1_000_000)
    assert release(indexer, consents) == COUNT
    consents.grant(indexer.supply.identity, round(sum(TOKENS[:4])))
    assert release(indexer, consents) == COUNT - 4
    assert list(indexer.target().pending_hashes()) == held_ids[:4]
    assert release(indexer, consents, drained=True) == COUNT - 4
    assert consents.remaining(indexer.supply.identity) < 1


def test_a_crash_between_use_and_release_loses_its_consent_alone(
    indexer: Indexer, consents: Consents, provider: StubProvider
) -> None:
    identity = indexer.supply.identity
    consents.grant(identity, round(sum(TOKENS)))
    consents.use(identity, sum(TOKENS[:4]))  # the process is killed here
    with consents.path.open("a") as file:
        file.write('\n{"time": 1, "tok')  # and here, in mid line
    assert release(indexer, consents) == 4
    consents.grant(identity, round(sum(TOKENS)))
    assert release(indexer, consents) == 0
    assert fill_vectors(indexer, seconds=60).ready == COUNT
    assert provider.inputs == COUNT


def test_little_is_released_unasked_each_day_and_everything_for_a_budget(indexer: Indexer, consents: Consents) -> None:
    little = Consents(consents.path, ask_above=0.5)
    assert release(indexer, little) == COUNT, "documents are still being read"
    assert (little.allows_unasked(5_000_000, None), little.allows_unasked(5_000_001, None)) == (True, False)
    little.grant("another model", 4_000_000, unasked=True)
    little.use("another model", 4_000_000)
    assert (little.allows_unasked(1_000_000, None), little.allows_unasked(1_000_001, None)) == (True, False)
    assert little.remaining("another model") == 0
    assert release(indexer, little, drained=True) == 0, "the stub is free"


def test_where_no_texts_are_held_any_more_everything_is_released(
    world: World, indexer: Indexer, provider: StubProvider, consents: Consents
) -> None:
    assert release(world.indexer(provider), consents) == 0
    assert len(indexer.target().pending_hashes()) == COUNT


def test_a_rest_is_noted_with_its_figures_until_it_changes(world: World, consents: Consents) -> None:
    indexer = world.indexer(holds=True)
    for number in range(COUNT):
        world.write(f"memory/{number}.md", TEXTS[number % 5])
    index(indexer, lane=Lane.BACKFILL)
    assert HeldTexts.of(indexer.target()) is None
    release(indexer, consents, drained=True)
    look = HeldTexts.of(indexer.target())
    assert look == HeldTexts(chunks=COUNT, texts=5, tokens=round(sum(TOKENS[:5])), consents=0)
    world.write("memory/0.md", "another text")
    index(indexer, lane=Lane.LIVE)
    assert HeldTexts.of(indexer.target()) is None


def test_saved_and_paid_texts_are_not_held(world: World, indexer: Indexer, provider: StubProvider) -> None:
    world.write("memory/0.md", "The egret is new.")
    world.write("memory/1.md", TEXTS[1] + " And an egret.")
    index(indexer, lane=Lane.LIVE)
    assert not fill_vectors(indexer, seconds=60).left
    counts = indexer.target().counts()
    assert (counts.vectors_ready, counts.vectors_held, provider.inputs) == (2, COUNT - 2, 2)
    for path, text in (("memory/2.md", "The egret is new."), ("memory/3.md", "A crane is new.")):
        world.write(path, text)
    index(indexer, lane=Lane.BACKFILL)
    counts = indexer.target().counts()
    assert (counts.vectors_ready, counts.vectors_held, provider.inputs) == (3, COUNT - 3, 2)


def test_a_generation_with_held_texts_is_not_whole(world: World, consents: Consents) -> None:
    for number, text in enumerate(TEXTS):
        world.write(f"memory/{number}.md", text)
    former = world.indexer()
    index(former, lane=Lane.LIVE)
    assert not fill_vectors(former, seconds=60).left
    other = world.indexer(StubProvider(dimensions=8, limits=FAST), holds=True)
    index(other, lane=Lane.BACKFILL)
    assert (other.target().counts().vectors_held, complete_generation(other)) == (COUNT, False)
    consents.grant(other.supply.identity, round(sum(TOKENS)))
    release(other, consents)
    assert not fill_vectors(other, seconds=60).left
    assert complete_generation(other)
