"""A batcher among others: claims of other processes, limits a minute, outages, and who pays."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from memory.chunking.chunker import text_hash
from memory.embedding.batcher import EmbeddingBatcher, Ticket
from memory.embedding.cache import EmbeddingCache
from memory.embedding.coordination import Claims, Coordination
from memory.embedding.providers.provider import Embeddings, ProviderLimits
from memory.embedding.providers.stub import StubProvider
from memory.embedding.rate_limit import RateLimiter
from memory.embedding.sender import TRIALS
from memory.store.writer import Refusal
from schemas.documents import Lane
from schemas.errors import RecalldError, Transient
from schemas.ports import Usage
from tests.waiting import wait_until


class Provider(StubProvider):
    """The stub, which fails as a rule says, is held back on request, and bills so many tokens a text if told to."""

    def __init__(
        self,
        *,
        rule: Callable[[Sequence[str]], None] = lambda texts: None,
        requests_per_minute: int | None = None,
        billed: int = 0,
    ) -> None:
        limits = ProviderLimits(
            inputs=64,
            tokens=100_000,
            input_bytes=8191,
            concurrency=2,
            chunks_per_second=1e4,
            requests_per_minute=requests_per_minute,
        )
        super().__init__(limits=limits)
        self.rule = rule
        self.billed = billed
        self.open = threading.Event()
        self.open.set()

    def embed_documents(self, texts: Sequence[str]) -> Embeddings:
        answer = super().embed_documents(texts)
        assert self.open.wait(60)
        self.rule(texts)
        return Embeddings(answer.vectors, self.billed * len(texts)) if self.billed else answer


class SharedClaims(Claims):
    """What two batchers, as if of two processes, share."""

    def __init__(self, owner: str, owners: dict[str, str]) -> None:
        self.owner = owner
        self.owners = owners

    def take(self, hashes: Collection[str]) -> set[str]:
        return {one for one in hashes if self.owners.setdefault(one, self.owner) == self.owner}

    def release(self, hashes: Collection[str]) -> None:
        for one in hashes:
            self.owners.pop(one, None)


class Bill:
    """Adds up what was recorded."""

    def __init__(self) -> None:
        self.all: list[Usage] = []
        self.agents: list[Mapping[str, Usage]] = []

    def record_usage(self, usage: Usage, *, agents: Mapping[str, Usage], queries: bool = False) -> None:
        self.all.append(usage)
        self.agents.append(agents)


Make = Callable[..., EmbeddingBatcher]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[EmbeddingBatcher] = []

    def build(provider: StubProvider, cache: EmbeddingCache | None = None, **options: object) -> EmbeddingBatcher:
        made.append(EmbeddingBatcher(provider, cache, **options))  # type: ignore[arg-type]
        return made[-1]

    yield build
    for batcher in made:
        batcher.close(timeout_seconds=5)


def texts(prefix: str, count: int) -> dict[str, str]:
    return {text_hash(f"{prefix} {i}"): f"{prefix} {i}" for i in range(count)}


def settled(ticket: Ticket) -> Ticket:
    assert ticket.wait(60)
    return ticket


def two(make: Make, tmp_path: Path) -> tuple[Provider, EmbeddingBatcher, Provider, EmbeddingBatcher, dict[str, str]]:
    """Two batchers with a provider and a cache connection each, which share the cache file and the claims."""
    owners: dict[str, str] = {}
    built = []
    for name in ("one", "two"):
        provider = Provider()
        coordination = Coordination(RateLimiter(), SharedClaims(name, owners))
        built += [provider, make(provider, EmbeddingCache(tmp_path / "cache.sqlite"), coordination=coordination)]
    return (*built, owners)  # type: ignore[return-value]


def test_two_processes_that_want_the_same_texts_at_once_pay_once(make: Make, tmp_path: Path) -> None:
    first, one, second, other, owners = two(make, tmp_path)
    first.open.clear()
    wanted = texts("both", 20)
    mine = one.submit(wanted, lane=Lane.LIVE)
    wait_until(lambda: first.requests == 1)
    more = wanted | texts("only the second", 5)
    theirs = other.submit(more, lane=Lane.BACKFILL)
    wait_until(lambda: len(theirs.results()) == 5, what="what nobody else claims goes at once")
    first.open.set()
    assert len(settled(mine).results()) == 20
    assert len(settled(theirs).results()) == 25
    assert (first.inputs, second.inputs) == (20, 5)
    wait_until(lambda: not owners, what="claims are given back")


def test_texts_whose_claim_ends_without_vectors_are_embedded_by_who_waits(make: Make, tmp_path: Path) -> None:
    _, _, second, other, owners = two(make, tmp_path)
    wanted = texts("left behind", 3)
    owners.update(dict.fromkeys(wanted, "a process that dies"))
    ticket = other.submit(wanted, lane=Lane.LIVE)
    assert not ticket.wait(0.1)
    assert second.requests == 0
    owners.clear()
    assert len(settled(ticket).results()) == 3
    assert second.inputs == 3


def test_a_ticket_that_is_cancelled_leaves_no_claimed_text_behind(make: Make, tmp_path: Path) -> None:
    _, _, second, other, owners = two(make, tmp_path)
    wanted = texts("given up", 3)
    owners.update(dict.fromkeys(wanted, "somebody"))
    ticket = other.submit(wanted, lane=Lane.LIVE)
    assert not ticket.wait(0.1)
    ticket.cancel()
    owners.clear()
    assert len(settled(other.submit(texts("next", 1), lane=Lane.LIVE)).results()) == 1
    assert second.inputs == 1


def test_nobody_waits_for_claims_where_there_is_no_cache_to_find_vectors_in(make: Make) -> None:
    provider = Provider()
    wanted = texts("alone", 3)
    claims = SharedClaims("me", dict.fromkeys(wanted, "somebody"))
    batcher = make(provider, coordination=Coordination(RateLimiter(), claims))
    assert len(settled(batcher.submit(wanted, lane=Lane.LIVE)).results()) == 3


def test_a_text_that_breaks_the_endpoint_is_refused_alone(make: Make) -> None:
    def rule(batch: Sequence[str]) -> None:
        if "poison 7" in batch:
            raise Transient("HTTP 500: stack trace")

    provider = Provider(rule=rule)
    ticket = settled(make(provider, patience_seconds=0.01).submit(texts("poison", 30), lane=Lane.BACKFILL))
    assert len(ticket.results()) == 30, "its neighbours got their vectors"
    refusal = ticket.results()[text_hash("poison 7")]
    assert isinstance(refusal, Refusal)
    assert f"failed on it {TRIALS} times while it answered others: HTTP 500: stack trace" in refusal.reason
    assert provider.inputs - provider.batches.count(["memory"]) < 30 + 2 * 32 + TRIALS


def test_a_text_that_breaks_the_endpoint_for_a_while_is_not_refused(make: Make) -> None:
    errors = [Transient("HTTP 500")] * 2

    def rule(batch: Sequence[str]) -> None:
        if batch != ["memory"] and errors:
            raise errors.pop()

    ticket = settled(make(Provider(rule=rule), patience_seconds=0.0).submit(texts("fine", 1), lane=Lane.LIVE))
    assert not isinstance(ticket.results()[text_hash("fine 0")], Refusal)


def test_an_endpoint_that_fails_for_every_text_refuses_none(make: Make) -> None:
    def down(batch: Sequence[str]) -> None:
        raise Transient("HTTP 502")

    provider = Provider(rule=down)
    batcher = make(provider, patience_seconds=0.01)
    for _ in range(5):
        ticket = settled(batcher.submit(texts("fine", 1), lane=Lane.LIVE))
        assert ticket.results() == {}


def test_an_endpoint_that_is_down_is_asked_every_few_seconds(make: Make) -> None:
    broken = threading.Event()
    broken.set()

    def down(batch: Sequence[str]) -> None:
        if broken.is_set():
            raise Transient("connection refused")

    provider = Provider(rule=down)
    now = [1000.0]
    limiter = RateLimiter(clock=lambda: now[0])
    batcher = make(provider, patience_seconds=0.0, coordination=Coordination(limiter))
    for number in range(100):
        settled(batcher.submit(texts(f"try {number}", 3), lane=Lane.LIVE))
        now[0] += 0.1
    assert provider.requests < 15, "100 texts in ten seconds"
    broken.clear()
    now[0] += 60
    assert len(settled(batcher.submit(texts("back", 3), lane=Lane.LIVE)).results()) == 3


def test_a_limit_a_minute_spaces_requests_out_and_is_no_error(make: Make) -> None:
    provider = Provider(requests_per_minute=600)  # a burst of 60, less what is left for live texts, then 9 a second
    batcher = make(provider)
    begun = time.monotonic()
    tickets = [
        batcher.submit({text_hash(f"{n}/{i}"): f"{n}/{i}" for i in range(64)}, lane=Lane.BACKFILL) for n in range(46)
    ]
    for ticket in tickets:
        assert len(settled(ticket).results()) == 64
        assert ticket.error() is None
    took = time.monotonic() - begun
    assert provider.requests == 46
    assert took > 0.25, "42 at once, the others nine a second"


def test_a_request_is_charged_to_the_agents_whose_texts_it_carried(make: Make) -> None:
    provider, bill = Provider(billed=3), Bill()
    batcher = make(provider, linger_seconds=0.05, coordination=Coordination(RateLimiter(), usage=bill))
    mine = batcher.submit(texts("mine", 6), lane=Lane.BACKFILL, agent="me")
    yours = batcher.submit(texts("yours", 2), lane=Lane.BACKFILL, agent="you")
    settled(mine)
    settled(yours)
    assert bill.all == [Usage("stub", provider.model, requests=1, inputs=8, tokens=24)]
    (agents,) = bill.agents
    assert (agents["me"].inputs, agents["you"].inputs) == (6, 2)
    assert agents["me"].tokens + agents["you"].tokens == 24
    assert agents["me"].tokens > agents["you"].tokens > 0


@pytest.mark.parametrize("billed", [10**30, -(10**30)])
def test_a_count_of_tokens_that_cannot_be_is_replaced_by_the_estimate(make: Make, billed: int) -> None:
    provider, bill = Provider(billed=billed), Bill()
    batcher = make(provider, coordination=Coordination(RateLimiter(), usage=bill))
    settled(batcher.submit(texts("any", 4), lane=Lane.LIVE, agent="me"))
    assert [one.requests for one in bill.all] == [1]
    assert 0 < bill.all[0].tokens == bill.agents[0]["me"].tokens < 100


def test_failed_requests_are_counted_and_cost_nothing(make: Make) -> None:
    errors: list[RecalldError] = [Transient("HTTP 500"), Transient("HTTP 500")]

    def rule(batch: Sequence[str]) -> None:
        if errors:
            raise errors.pop()

    provider, bill = Provider(rule=rule), Bill()
    batcher = make(provider, coordination=Coordination(RateLimiter(), usage=bill))
    settled(batcher.submit(texts("any", 4), lane=Lane.LIVE, agent="me"))
    assert [(one.requests, one.failed, one.inputs) for one in bill.all] == [(1, 1, 0), (1, 1, 0), (1, 0, 4)]
    assert [one.tokens > 0 for one in bill.all] == [False, False, True]
