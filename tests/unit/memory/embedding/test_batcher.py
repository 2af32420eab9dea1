"""Batches across documents and processes: full requests, lanes, failures of every class, and nothing paid twice."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memory.chunking.chunker import text_hash
from memory.embedding.batcher import EmbeddingBatcher, Ticket
from memory.embedding.cache import EmbeddingCache
from memory.embedding.coordination import Coordination
from memory.embedding.providers.provider import Embeddings, Matrix, ProviderLimits
from memory.embedding.providers.stub import StubProvider
from memory.embedding.rate_limit import RateLimiter
from memory.embedding.sender import TRIALS
from memory.store.errors import StoreFull
from memory.store.reader import Vector
from memory.store.writer import Refusal
from schemas.documents import Lane
from schemas.errors import Permanent, RecalldError, Terminal, Throttled, Transient
from schemas.ports import Usage
from tests.storing import cache_at, cache_file, cache_reader_at
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
        billed: int = 0,
    ) -> None:
        super().__init__(limits=ProviderLimits(inputs, tokens, 8191, concurrency, chunks_per_second=1e4))
        self.open = threading.Event()
        self.open.set()
        self.rule, self.billed = rule, billed
        self._answers: deque[Any] = deque()

    def answer_next(self, *answers: Exception | Matrix | Callable[[Sequence[str]], Matrix]) -> None:
        """Script the answers of the next requests."""
        self._answers.extend(answers)

    def embed_documents(self, texts: Sequence[str]) -> Embeddings:
        answer = super().embed_documents(texts)
        scripted = self._answers.popleft() if self._answers else None
        if isinstance(scripted, Exception):
            raise scripted
        if scripted is not None:
            return Embeddings(scripted(texts) if callable(scripted) else scripted)
        assert self.open.wait(60)
        self.rule(texts)
        return Embeddings(answer.vectors, self.billed * len(texts)) if self.billed else answer


class Bill:
    """Adds up what was recorded."""

    def __init__(self) -> None:
        self.all: list[Usage] = []
        self.agents: list[Mapping[str, Usage]] = []

    def record_usage(self, usage: Usage, *, agents: Mapping[str, Usage], queries: bool = False) -> None:
        self.all.append(usage)
        self.agents.append(agents)


def refusing(word: str, error: RecalldError, *, times: int = 1000) -> Callable[[Sequence[str]], None]:
    """Return a rule that raises the error for so many requests with a text that holds the word."""
    left = [error] * times

    def rule(batch: Sequence[str]) -> None:
        if left and any(word in text for text in batch):
            raise left.pop()

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
    return cache_at(tmp_path / "cache.sqlite")


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


@pytest.mark.parametrize(
    ("at_least", "last", "count"), [(1, False, 30), (31, False, 60), (100, False, 60), (100, True, 70), (1, True, 30)]
)
def test_texts_for_whole_requests_end_where_a_request_is_full(make: Make, at_least: int, last: bool, count: int):
    batcher = make(Provider(inputs=30))
    assert len(batcher.whole_requests(texts("old", 70), at_least=at_least, last=last)) == count
    few = texts("old", 20)
    assert batcher.whole_requests(few, at_least=1, last=False) == few


def test_after_a_request_to_slow_down_one_request_of_old_texts_is_sent_at_a_time(make: Make) -> None:
    provider = Provider(concurrency=2, inputs=10)
    batcher = make(provider)
    provider.answer_next(Throttled("slow down", retry_after=0.01))
    provider.open.clear()
    ticket = batcher.submit(texts("old", 40), lane=Lane.BACKFILL)
    wait_until(lambda: provider.requests >= 2)
    provider.open.set()
    vectors_of(ticket)
    provider.open.clear()
    slowed = batcher.submit(texts("more", 40), lane=Lane.BACKFILL)
    wait_until(lambda: len(provider.batches) > 5)
    live = batcher.submit(texts("new", 1), lane=Lane.LIVE)
    wait_until(lambda: ["new 0"] in provider.batches, what="the other sender is free")
    assert sum(batch[0].startswith("more") for batch in provider.batches) == 1
    provider.open.set()
    vectors_of(slowed), vectors_of(live)


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
    assert batcher.estimate_seconds(1, lane=Lane.LIVE) * 1000 < batcher.estimate_seconds(1)
    batcher.submit(texts("new", 1), lane=Lane.LIVE)
    wait_until(lambda: provider.batches[-1] == ["new 0"])
    assert provider.requests == 3
    provider.open.set()


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


def test_the_cache_holds_a_vector_before_a_caller_sees_it(make: Make, tmp_path: Path) -> None:
    seen: list[bool] = []
    tickets: list[Ticket] = []

    class Watched(EmbeddingCache):
        def put_many(self, identity: str, vectors: Mapping[str, Vector]) -> None:
            wait_until(lambda: bool(tickets))
            seen.append(bool(tickets[0].results()))
            super().put_many(identity, vectors)

    cache = Watched(cache_file(tmp_path / "cache.sqlite"))
    provider = Provider()
    wanted = texts("precious", 5)
    tickets.append(make(provider, cache).submit(wanted, lane=Lane.LIVE))
    got = vectors_of(tickets[0])
    assert seen == [False]
    kept = cache_at(tmp_path / "cache.sqlite").get_many(provider.identity, list(wanted))
    assert all(np.array_equal(kept[key], got[key]) for key in wanted)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Permanent("HTTP 400", reason="too long for the model"), "too long for the model"),
        (Transient("HTTP 500: stack trace"), f"failed on it {TRIALS} times while it answered others: HTTP 500: stack"),
    ],
    ids=["refused", "breaks the endpoint"],
)
def test_one_bad_input_is_refused_and_its_neighbours_are_not(make: Make, error: RecalldError, reason: str) -> None:
    provider = Provider(concurrency=1, rule=refusing(" 17", error))
    results = done(make(provider, patience_seconds=0.0).submit(texts("bad", 100), lane=Lane.BACKFILL))
    refused = {key: result.reason for key, result in results.items() if isinstance(result, Refusal)}
    assert list(refused) == [text_hash("bad 17")]
    assert reason in refused[text_hash("bad 17")]
    assert len(results) == 100
    answered = [text for batch in provider.batches if "bad 17" not in batch for text in batch if text != "memory"]
    assert len(answered) == len(set(answered)) == 99, "no neighbour is paid twice"
    assert provider.requests - provider.batches.count(["memory"]) <= 20


def test_an_endpoint_that_refuses_every_text_is_not_asked_for_each_of_them(make: Make) -> None:
    provider = Provider(concurrency=1, rule=refusing("", Permanent("the service refused the text")))
    ticket = make(provider).submit(texts("any", 200), lane=Lane.BACKFILL)
    assert done(ticket) == {}
    assert isinstance(ticket.error(), Terminal)
    assert "every text" in str(ticket.error())
    assert provider.requests == 2


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


def test_a_full_disk_loses_no_vector_that_was_paid_for(make: Make, tmp_path: Path) -> None:
    class FullForAWhile(EmbeddingCache):
        full = True

        def put_many(self, identity: str, vectors: Mapping[str, Vector]) -> None:
            if self.full:
                raise StoreFull("free some")
            super().put_many(identity, vectors)

    cache = FullForAWhile(cache_file(tmp_path / "cache.sqlite"))
    provider = Provider()
    batcher = make(provider, cache)
    vectors_of(batcher.submit(texts("first", 10), lane=Lane.LIVE))
    vectors_of(batcher.submit(texts("first", 10), lane=Lane.LIVE))
    assert provider.inputs == 10
    cache.full = False
    vectors_of(batcher.submit(texts("second", 5), lane=Lane.LIVE))
    assert cache_reader_at(tmp_path / "cache.sqlite").entries() == 15


def test_close_tells_those_who_queue_and_lets_what_is_in_flight_reach_the_cache(
    make: Make, cache: EmbeddingCache, tmp_path: Path
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
    assert cache_reader_at(tmp_path / "cache.sqlite").entries() == 10
    late = batcher.submit(texts("late", 1), lane=Lane.LIVE)
    assert late.wait(0)
    assert isinstance(late.error(), Transient)


def test_a_request_is_charged_to_the_agents_whose_texts_it_carried(make: Make) -> None:
    provider, bill = Provider(inputs=8, billed=3), Bill()  # full with the texts of both
    batcher = make(provider, linger_seconds=60, coordination=Coordination(RateLimiter(), usage=bill))
    mine = batcher.submit(texts("mine", 6), lane=Lane.BACKFILL, agent="me")
    yours = batcher.submit(texts("yours", 2), lane=Lane.BACKFILL, agent="you")
    done(mine)
    done(yours)
    assert bill.all == [Usage("stub", provider.model, requests=1, inputs=8, tokens=24)]
    (agents,) = bill.agents
    assert (agents["me"].inputs, agents["you"].inputs) == (6, 2)
    assert agents["me"].tokens + agents["you"].tokens == 24
    assert agents["me"].tokens > agents["you"].tokens > 0


def test_failed_requests_are_counted_and_cost_nothing(make: Make) -> None:
    provider, bill = Provider(inputs=64, rule=refusing("", Transient("HTTP 500"), times=2)), Bill()
    batcher = make(provider, coordination=Coordination(RateLimiter(), usage=bill))
    done(batcher.submit(texts("any", 4), lane=Lane.LIVE, agent="me"))
    assert [(one.requests, one.failed, one.inputs) for one in bill.all] == [(1, 1, 0), (1, 1, 0), (1, 0, 4)]
    assert [one.tokens > 0 for one in bill.all] == [False, False, True]
