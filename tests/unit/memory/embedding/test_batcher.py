"""Batches across documents and processes: full requests, lanes, failures of every class, and nothing paid twice."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memory.chunking.chunker import text_hash
from memory.embedding.batcher import EmbeddingBatcher, Ticket
from memory.embedding.cache import EmbeddingCache
from memory.embedding.coordination import Claims, Coordination
from memory.embedding.providers.provider import Embeddings, Matrix, ProviderLimits
from memory.embedding.providers.stub import StubProvider
from memory.embedding.rate_limit import RateLimiter
from memory.embedding.sender import TRIALS
from memory.store.errors import StoreFull
from memory.store.reader import Vector
from memory.store.writer import Refusal
from schemas.documents import Lane
from schemas.errors import Permanent, RecalldError, Terminal, Transient
from schemas.ports import Usage
from tests.waiting import wait_until


class Provider(StubProvider):
    """The stub, held back on request, which fails as a rule says, and bills so many tokens a text if told to."""

    def __init__(
        self,
        *,
        rule: Callable[[Sequence[str]], None] = lambda texts: None,
        concurrency: int = 2,
        inputs: int = 256,
        tokens: int = 100_000,
        rate: float = 1e4,
        requests_per_minute: int | None = None,
        billed: int = 0,
    ) -> None:
        limits = ProviderLimits(
            inputs=inputs,
            tokens=tokens,
            input_bytes=8191,
            concurrency=concurrency,
            chunks_per_second=rate,
            requests_per_minute=requests_per_minute,
        )
        super().__init__(limits=limits)
        self.open = threading.Event()
        self.open.set()
        self.rule, self.billed = rule, billed
        self._answers: deque[Any] = deque()
        self.left_at: list[float] = []

    def answer_next(self, *answers: Exception | Matrix | Callable[[Sequence[str]], Matrix]) -> None:
        """Script the answers of the next requests."""
        self._answers.extend(answers)

    def embed_documents(self, texts: Sequence[str]) -> Embeddings:
        self.left_at.append(time.monotonic())
        answer = super().embed_documents(texts)
        scripted = self._answers.popleft() if self._answers else None
        if isinstance(scripted, Exception):
            raise scripted
        if scripted is not None:
            return Embeddings(scripted(texts) if callable(scripted) else scripted)
        assert self.open.wait(60)
        self.rule(texts)
        return Embeddings(answer.vectors, self.billed * len(texts)) if self.billed else answer


class SharedClaims(Claims):
    """Claims that two batchers share as two processes do."""

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


def always(error: RecalldError) -> Callable[[Sequence[str]], None]:
    """Return a rule that raises the error for every request."""

    def rule(batch: Sequence[str]) -> None:
        raise error

    return rule


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


@pytest.fixture
def cache(tmp_path: Path) -> EmbeddingCache:
    return EmbeddingCache(tmp_path / "cache.sqlite")


def texts(prefix: str, count: int) -> dict[str, str]:
    return {text_hash(f"{prefix} {i}"): f"{prefix} {i}" for i in range(count)}


def done(ticket: Ticket) -> dict[str, Vector | Refusal]:
    assert ticket.wait(60)
    return ticket.results()


def vectors_of(ticket: Ticket) -> dict[str, Vector]:
    results = done(ticket)
    assert ticket.error() is None
    assert not [result for result in results.values() if isinstance(result, Refusal)]
    return {key: value for key, value in results.items() if not isinstance(value, Refusal)}


def test_requests_respect_the_limits_of_tokens_and_inputs(make: Make) -> None:
    provider = Provider(inputs=30, tokens=100)
    batcher = make(provider)
    short = {text_hash(text): text for text in (f"{i:04}" for i in range(90))}  # a token each
    long = {text_hash(text): text for text in (f"{i:04}" * 60 for i in range(5))}  # 60 tokens each
    huge = {text_hash(text): text for text in ["x" * 4000]}  # 1,000 tokens
    vectors_of(batcher.submit(short, lane=Lane.BACKFILL))
    assert max(map(len, provider.batches)) == 30
    provider.batches.clear()
    vectors_of(batcher.submit({**long, **huge}, lane=Lane.BACKFILL))
    assert sorted(map(len, provider.batches)) == [1] * 6


def test_vectors_are_the_provider_s_own_rounded_and_go_to_the_right_text(make: Make) -> None:
    provider = Provider(inputs=7)
    wanted = texts("some words about", 40)
    got = vectors_of(make(provider).submit(wanted, lane=Lane.LIVE))
    for key, text in wanted.items():
        assert float(got[key] @ provider.embed_query(text).vectors[0]) > 0.9999


def test_live_overtakes_backfill(make: Make) -> None:
    provider = Provider(concurrency=1, inputs=10)
    batcher = make(provider)
    provider.open.clear()
    backfill = batcher.submit(texts("old", 100), lane=Lane.BACKFILL)
    wait_until(lambda: provider.requests == 1)
    live = batcher.submit(texts("new", 3), lane=Lane.LIVE)
    provider.open.set()
    vectors_of(live)
    vectors_of(backfill)
    assert provider.batches[1] == [f"new {i}" for i in range(3)]


def test_large_backfills_leave_a_sender_free_for_live(make: Make) -> None:
    provider = Provider(concurrency=3)
    batcher = make(provider, linger_seconds=0.0)
    provider.open.clear()
    for number in range(5):
        batcher.submit(texts(f"old {number}", 256), lane=Lane.BACKFILL)
    wait_until(lambda: provider.requests == 2)
    batcher.submit(texts("new", 1), lane=Lane.LIVE)
    wait_until(lambda: provider.batches[-1] == ["new 0"])
    assert provider.requests == 3
    provider.open.set()


def test_a_backfill_text_that_becomes_live_is_moved_up_and_sent_once(make: Make) -> None:
    provider = Provider(concurrency=1, inputs=10)
    batcher = make(provider)
    provider.open.clear()
    old = batcher.submit(texts("old", 50), lane=Lane.BACKFILL)
    wait_until(lambda: provider.requests == 1)
    urgent = {text_hash("old 45"): "old 45"}
    live = batcher.submit(urgent, lane=Lane.LIVE)
    provider.open.set()
    vectors_of(live)
    vectors_of(old)
    assert provider.batches[1] == ["old 45"]
    assert provider.inputs == 50


def test_the_same_text_of_several_tickets_is_sent_once(make: Make, cache: EmbeddingCache) -> None:
    provider = Provider()
    batcher = make(provider, cache)
    provider.open.clear()
    same = texts("same", 20)
    first = batcher.submit(same, lane=Lane.LIVE)
    wait_until(lambda: provider.requests == 1)
    others = [batcher.submit(same, lane=lane) for lane in (Lane.LIVE, Lane.BACKFILL)]
    provider.open.set()
    for ticket in (first, *others):
        assert vectors_of(ticket).keys() == same.keys()
    vectors_of(batcher.submit(same, lane=Lane.BACKFILL))  # asked too late to join, in time for the cache
    assert provider.inputs == 20


def test_the_cache_holds_a_vector_before_anybody_sees_it(make: Make, tmp_path: Path) -> None:
    seen: list[bool] = []
    tickets: list[Ticket] = []

    class Watched(EmbeddingCache):
        def put_many(self, identity: str, vectors: Mapping[str, Vector]) -> None:
            wait_until(lambda: bool(tickets))
            seen.append(bool(tickets[0].results()))
            super().put_many(identity, vectors)

    cache = Watched(tmp_path / "cache.sqlite")
    provider = Provider()
    wanted = texts("precious", 5)
    tickets.append(make(provider, cache).submit(wanted, lane=Lane.LIVE))
    got = vectors_of(tickets[0])
    assert seen == [False]
    kept = EmbeddingCache(tmp_path / "cache.sqlite").get_many(provider.identity, list(wanted))
    assert all(np.array_equal(kept[key], got[key]) for key in wanted)


def test_cancel_forgets_what_was_not_sent_and_nobody_else_wants(make: Make, cache: EmbeddingCache) -> None:
    provider = Provider(concurrency=1, inputs=10)
    batcher = make(provider, cache)
    provider.open.clear()
    ticket = batcher.submit(texts("gone", 30), lane=Lane.BACKFILL)
    wait_until(lambda: provider.requests == 1)
    shared = {text_hash("gone 25"): "gone 25"}
    other = batcher.submit(shared, lane=Lane.BACKFILL)
    ticket.cancel()
    assert ticket.wait(0)
    provider.open.set()
    vectors_of(other)
    assert provider.batches == [[f"gone {i}" for i in range(10)], ["gone 25"]]
    assert cache.entries() == 11, "what was in flight reaches the cache all the same"


def refusing(word: str, error: RecalldError) -> Callable[[Sequence[str]], None]:
    """Return a rule that raises the error for requests with a text that holds the word."""

    def rule(batch: Sequence[str]) -> None:
        if any(word in text.split() for text in batch):
            raise error

    return rule


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Permanent("HTTP 400", reason="too long for the model"), "too long for the model"),
        (Transient("HTTP 500: stack trace"), f"failed on it {TRIALS} times while it answered others: HTTP 500: stack"),
    ],
    ids=["refused", "breaks the endpoint"],
)
def test_one_bad_input_is_refused_and_its_neighbours_are_not(make: Make, error: RecalldError, reason: str) -> None:
    provider = Provider(concurrency=1, rule=refusing("17", error))
    results = done(make(provider, patience_seconds=0.01).submit(texts("bad", 100), lane=Lane.BACKFILL))
    refused = {key: result.reason for key, result in results.items() if isinstance(result, Refusal)}
    assert list(refused) == [text_hash("bad 17")]
    assert reason in refused[text_hash("bad 17")]
    assert len(results) == 100
    answered = [text for batch in provider.batches if "bad 17" not in batch for text in batch if text != "memory"]
    assert len(answered) == len(set(answered)) == 99, "no neighbour is paid twice"
    assert provider.requests - provider.batches.count(["memory"]) <= 20


def test_an_endpoint_that_refuses_every_text_is_not_asked_for_each_of_them(make: Make) -> None:
    provider = Provider(concurrency=1, rule=always(Permanent("the service refused the text")))
    ticket = make(provider).submit(texts("any", 200), lane=Lane.BACKFILL)
    assert done(ticket) == {}
    assert isinstance(ticket.error(), Terminal)
    assert "every text" in str(ticket.error())
    assert provider.requests == 2


def test_a_passing_failure_is_retried_within_the_request(make: Make) -> None:
    provider = Provider()
    provider.answer_next(Transient("HTTP 500"), Transient("connection reset"))
    vectors_of(make(provider).submit(texts("any", 5), lane=Lane.LIVE))
    assert [len(batch) for batch in provider.batches] == [5, 5, 5]


@pytest.mark.parametrize(
    "answers",
    [[Transient("HTTP 503")] * 100, [np.zeros((5, 64), dtype=np.float32)] * 50, [RuntimeError("a defect")]],
    ids=["an endpoint that is down", "only unusable vectors", "a defect of the provider"],
)
def test_failures_of_the_endpoint_end_in_a_passing_failure_and_refuse_no_text(make: Make, answers: list[Any]) -> None:
    provider = Provider()
    provider.answer_next(*answers)
    batcher = make(provider, patience_seconds=0.2)
    ticket = batcher.submit(texts("any", 5), lane=Lane.LIVE)
    assert done(ticket) == {}
    assert isinstance(ticket.error(), Transient)
    assert provider.requests <= 16
    if len(answers) == 1:
        vectors_of(batcher.submit(texts("any", 5), lane=Lane.LIVE))


def test_a_short_retry_after_is_waited_for_by_everybody(make: Make) -> None:
    provider = Provider(concurrency=4, inputs=10)
    provider.answer_next(Transient("HTTP 429", retry_after=0.4))
    batcher = make(provider)
    first = batcher.submit(texts("first", 10), lane=Lane.LIVE)
    wait_until(lambda: provider.requests == 1)
    told_at = provider.left_at[0]
    others = [batcher.submit(texts(f"other {n}", 10), lane=Lane.LIVE) for n in range(3)]
    for ticket in (first, *others):
        vectors_of(ticket)
    assert all(left - told_at >= 0.4 for left in provider.left_at[1:])


def test_a_long_retry_after_is_handed_to_the_job_and_nothing_leaves_meanwhile(make: Make) -> None:
    provider = Provider(concurrency=1, inputs=10)
    provider.open.clear()
    provider.answer_next(Transient("HTTP 429", retry_after=60))
    batcher = make(provider)
    sent = batcher.submit(texts("sent", 10), lane=Lane.BACKFILL)
    queued = batcher.submit(texts("queued", 10), lane=Lane.BACKFILL)
    provider.open.set()
    for ticket in (sent, queued, batcher.submit(texts("late", 1), lane=Lane.LIVE)):
        assert done(ticket) == {}
        error = ticket.error()
        assert isinstance(error, Transient)
        assert error.retry_after is not None
        assert 50 < error.retry_after <= 60
    assert provider.requests == 1
    assert batcher.estimate_seconds(1) > 50


def test_after_a_refusal_for_good_nothing_leaves_for_a_minute(make: Make) -> None:
    provider = Provider(concurrency=1, inputs=10)
    provider.answer_next(Terminal("no credit left: top it up"))
    now = [1000.0]
    batcher = make(provider, coordination=Coordination(RateLimiter(clock=lambda: now[0])))
    tickets = [batcher.submit(texts(f"a {n}", 10), lane=Lane.BACKFILL) for n in range(3)]
    for ticket in tickets:
        assert done(ticket) == {}
        assert isinstance(ticket.error(), Terminal)
    fast = batcher.submit(texts("b", 10), lane=Lane.LIVE)
    assert fast.wait(0)
    assert str(fast.error()) == "no credit left: top it up"
    assert batcher.estimate_seconds(1) == math.inf
    assert provider.requests == 1
    now[0] += 61
    assert batcher.estimate_seconds(1) < math.inf
    vectors_of(batcher.submit(texts("d", 30), lane=Lane.BACKFILL))


@pytest.mark.parametrize("value", [np.nan, 0.0])
@pytest.mark.parametrize("times", [1, 10])
def test_an_unusable_vector_among_good_ones_is_asked_again_alone_once(make: Make, value: float, times: int) -> None:
    provider = Provider(concurrency=1)

    def spoilt(batch: Sequence[str]) -> Matrix:
        matrix = StubProvider().embed_documents(batch).vectors
        matrix[[text == "any 3" for text in batch]] = value
        return matrix

    provider.answer_next(*[spoilt] * times)
    results = done(make(provider).submit(texts("any", 5), lane=Lane.LIVE))
    assert provider.batches == [[f"any {i}" for i in range(5)], ["any 3"]]
    refused = [key for key, result in results.items() if isinstance(result, Refusal)]
    assert refused == ([text_hash("any 3")] if times > 1 else [])


def test_text_without_anything_in_it_is_refused_without_asking(make: Make) -> None:
    provider = Provider()
    results = done(make(provider).submit({"h": " \n "}, lane=Lane.LIVE))
    assert results == {"h": Refusal("there is nothing to embed")}
    assert provider.requests == 0


def test_a_full_disk_loses_no_vector_that_was_paid_for(make: Make, tmp_path: Path) -> None:
    class FullForAWhile(EmbeddingCache):
        full = True

        def put_many(self, identity: str, vectors: Mapping[str, Vector]) -> None:
            if self.full:
                raise StoreFull("free some")
            super().put_many(identity, vectors)

    cache = FullForAWhile(tmp_path / "cache.sqlite")
    provider = Provider()
    batcher = make(provider, cache)
    vectors_of(batcher.submit(texts("first", 10), lane=Lane.LIVE))
    vectors_of(batcher.submit(texts("first", 10), lane=Lane.LIVE))
    assert provider.inputs == 10
    cache.full = False
    vectors_of(batcher.submit(texts("second", 5), lane=Lane.LIVE))
    assert cache.entries() == 15


def test_close_tells_those_who_queue_and_lets_what_is_in_flight_reach_the_cache(
    make: Make, cache: EmbeddingCache
) -> None:
    provider = Provider(concurrency=1, inputs=10)
    batcher = make(provider, cache)
    provider.open.clear()
    ticket = batcher.submit(texts("any", 30), lane=Lane.BACKFILL)
    wait_until(lambda: provider.requests == 1)
    closing = threading.Thread(target=batcher.close, kwargs={"timeout_seconds": 10})
    closing.start()
    wait_until(lambda: ticket.error() is not None)
    provider.open.set()
    closing.join()
    assert len(done(ticket)) == 10
    assert cache.entries() == 10
    late = batcher.submit(texts("late", 1), lane=Lane.LIVE)
    assert late.wait(0)
    assert isinstance(late.error(), Transient)


def test_the_estimate_follows_the_backlog_and_the_measured_rate(make: Make) -> None:
    provider = Provider(concurrency=1, inputs=10, rate=10.0)
    batcher = make(provider)
    assert batcher.estimate_seconds(50) == pytest.approx(5.0)
    provider.open.clear()
    ticket = batcher.submit(texts("any", 100), lane=Lane.BACKFILL)
    wait_until(lambda: provider.requests == 1)
    assert batcher.estimate_seconds(50) == pytest.approx(15.0)
    assert batcher.estimate_seconds(50, lane=Lane.LIVE) == pytest.approx(6.0)
    provider.open.set()
    vectors_of(ticket)
    vectors_of(batcher.submit(texts("more", 3_000), lane=Lane.BACKFILL))
    assert batcher.chunks_per_second > 100


# Beside other processes: claims, limits a minute, outages, and who pays


def two(make: Make, tmp_path: Path) -> tuple[Provider, EmbeddingBatcher, Provider, EmbeddingBatcher, dict[str, str]]:
    """Two batchers with a provider and a cache connection each, which share the cache file and the claims."""
    owners: dict[str, str] = {}
    built = []
    for name in ("one", "two"):
        provider = Provider(inputs=64)
        coordination = Coordination(RateLimiter(), SharedClaims(name, owners))
        built += [provider, make(provider, EmbeddingCache(tmp_path / "cache.sqlite"), coordination=coordination)]
    return (*built, owners)  # type: ignore[return-value]


def test_texts_whose_claim_ends_without_vectors_are_embedded_by_who_waits(make: Make, tmp_path: Path) -> None:
    _, _, second, other, owners = two(make, tmp_path)
    wanted = texts("left behind", 3)
    owners.update(dict.fromkeys(wanted, "a process that dies"))
    ticket = other.submit(wanted, lane=Lane.LIVE)
    assert not ticket.wait(0.1)
    assert second.requests == 0
    owners.clear()
    assert len(done(ticket)) == 3
    assert second.inputs == 3


def test_a_ticket_that_is_cancelled_leaves_no_claimed_text_behind(make: Make, tmp_path: Path) -> None:
    _, _, second, other, owners = two(make, tmp_path)
    wanted = texts("given up", 3)
    owners.update(dict.fromkeys(wanted, "another process"))
    ticket = other.submit(wanted, lane=Lane.LIVE)
    assert not ticket.wait(0.1)
    ticket.cancel()
    owners.clear()
    assert len(done(other.submit(texts("next", 1), lane=Lane.LIVE))) == 1
    assert second.inputs == 1


def test_nobody_waits_for_claims_where_there_is_no_cache_to_find_vectors_in(make: Make) -> None:
    provider = Provider(inputs=64)
    wanted = texts("alone", 3)
    claims = SharedClaims("me", dict.fromkeys(wanted, "another process"))
    batcher = make(provider, coordination=Coordination(RateLimiter(), claims))
    assert len(done(batcher.submit(wanted, lane=Lane.LIVE))) == 3


def test_a_text_that_breaks_the_endpoint_for_a_while_is_not_refused(make: Make) -> None:
    errors = [Transient("HTTP 500")] * 2

    def rule(batch: Sequence[str]) -> None:
        if batch != ["memory"] and errors:
            raise errors.pop()

    vectors_of(make(Provider(rule=rule), patience_seconds=0.0).submit(texts("fine", 1), lane=Lane.LIVE))


def test_a_limit_a_minute_spaces_requests_out_and_is_no_error(make: Make) -> None:
    provider = Provider(
        inputs=64, requests_per_minute=600
    )  # a burst of 60, less what is left for live texts, then 9 a second
    batcher = make(provider)
    begun = time.monotonic()
    tickets = [
        batcher.submit({text_hash(f"{n}/{i}"): f"{n}/{i}" for i in range(64)}, lane=Lane.BACKFILL) for n in range(46)
    ]
    for ticket in tickets:
        assert len(done(ticket)) == 64
        assert ticket.error() is None
    took = time.monotonic() - begun
    assert provider.requests == 46
    assert took > 0.25, "42 at once, the others nine a second"


def test_a_request_is_charged_to_the_agents_whose_texts_it_carried(make: Make) -> None:
    provider, bill = Provider(inputs=64, billed=3), Bill()
    batcher = make(provider, linger_seconds=0.05, coordination=Coordination(RateLimiter(), usage=bill))
    mine = batcher.submit(texts("mine", 6), lane=Lane.BACKFILL, agent="me")
    yours = batcher.submit(texts("yours", 2), lane=Lane.BACKFILL, agent="you")
    done(mine)
    done(yours)
    assert bill.all == [Usage("stub", provider.model, requests=1, inputs=8, tokens=24)]
    (agents,) = bill.agents
    assert (agents["me"].inputs, agents["you"].inputs) == (6, 2)
    assert agents["me"].tokens + agents["you"].tokens == 24
    assert agents["me"].tokens > agents["you"].tokens > 0


@pytest.mark.parametrize("billed", [10**30, -(10**30)])
def test_a_count_of_tokens_that_cannot_be_is_replaced_by_the_estimate(make: Make, billed: int) -> None:
    provider, bill = Provider(inputs=64, billed=billed), Bill()
    batcher = make(provider, coordination=Coordination(RateLimiter(), usage=bill))
    done(batcher.submit(texts("any", 4), lane=Lane.LIVE, agent="me"))
    assert [one.requests for one in bill.all] == [1]
    assert 0 < bill.all[0].tokens == bill.agents[0]["me"].tokens < 100


def test_failed_requests_are_counted_and_cost_nothing(make: Make) -> None:
    errors: list[RecalldError] = [Transient("HTTP 500"), Transient("HTTP 500")]

    def rule(batch: Sequence[str]) -> None:
        if errors:
            raise errors.pop()

    provider, bill = Provider(inputs=64, rule=rule), Bill()
    batcher = make(provider, coordination=Coordination(RateLimiter(), usage=bill))
    done(batcher.submit(texts("any", 4), lane=Lane.LIVE, agent="me"))
    assert [(one.requests, one.failed, one.inputs) for one in bill.all] == [(1, 1, 0), (1, 1, 0), (1, 0, 4)]
    assert [one.tokens > 0 for one in bill.all] == [False, False, True]
