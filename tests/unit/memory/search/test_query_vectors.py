"""The vector of a query."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from memory.embedding.coordination import Coordination
from memory.embedding.providers.provider import EmbeddingProvider, Embeddings, ProviderLimits
from memory.embedding.rate_limit import REFUSED_SECONDS, LocalRateLimiter, RateLimiter
from memory.search.query_vectors import (
    FAILURE_MEMORY_SECONDS,
    FIRST_FAILURE_MEMORY_SECONDS,
    QueryVectors,
    Unavailable,
)
from schemas.errors import Permanent, Terminal, Throttled, Transient
from schemas.ports import Usage
from tests.waiting import wait_until


class Provider(EmbeddingProvider):
    name = "fake"
    model = "fake-1"
    identity = "fake"
    limits = ProviderLimits(inputs=1, tokens=1, input_bytes=100, concurrency=1, chunks_per_second=1)

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.failure: Exception | None = None
        self.loaded = threading.Event()
        self.loaded.set()
        self.answering = threading.Event()
        self.answering.set()

    def warm_up(self) -> None:
        self.loaded.wait(60)

    def embed_documents(self, texts):
        raise NotImplementedError

    def embed_query(self, text: str) -> Embeddings:
        self.asked.append(text)
        self.answering.wait(60)
        if self.failure is not None:
            raise self.failure
        return Embeddings(np.array([[3.0, 4.0]], dtype=np.float32))


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as threads:
        yield threads


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def warm(provider: Provider, executor: ThreadPoolExecutor, **options) -> QueryVectors:
    vectors = QueryVectors(provider, executor, **options)
    vectors.warm_up()
    wait_until(lambda: vectors.wait_until_warm(1))
    return vectors


def test_a_query_is_embedded_once_and_normalised(executor: ThreadPoolExecutor):
    provider = Provider()
    vectors = warm(provider, executor)

    first = vectors.get("hello").wait(60)
    assert first == pytest.approx([0.6, 0.8], abs=1e-3)
    assert np.array_equal(vectors.get("hello").wait(60), first)
    assert provider.asked == ["hello"]


def test_the_cache_forgets_the_query_that_was_not_asked_for_longest(executor: ThreadPoolExecutor):
    provider = Provider()
    vectors = warm(provider, executor, capacity=2)
    for query in ("one", "two", "one", "three", "one", "two"):
        vectors.get(query).wait(60)

    assert provider.asked == ["one", "two", "three", "two"]


def test_the_same_query_in_flight_is_one_request(executor: ThreadPoolExecutor):
    provider = Provider()
    vectors = warm(provider, executor)
    provider.answering.clear()
    first, second = vectors.get("same"), vectors.get("same")
    provider.answering.set()

    assert np.array_equal(first.wait(60), second.wait(60))
    assert provider.asked == ["same"]


def test_a_model_that_is_still_loading_is_said_and_not_waited_for(executor: ThreadPoolExecutor):
    provider = Provider()
    provider.loaded.clear()
    vectors = QueryVectors(provider, executor)

    early = vectors.get("hello").wait(60)
    assert early == Unavailable("the embedding model of 'fake' is still loading")
    provider.loaded.set()
    wait_until(lambda: vectors.wait_until_warm(1))
    assert not isinstance(vectors.get("hello").wait(60), Unavailable)


def test_of_a_provider_elsewhere_no_model_is_said_to_be_loading(executor: ThreadPoolExecutor):
    provider = Provider()
    provider.account = "a key"
    provider.loaded.clear()
    assert QueryVectors(provider, executor).get("hello").wait(60) == Unavailable(
        "the client of 'fake' is still loading"
    )
    provider.loaded.set()


def test_a_process_that_asks_once_may_wait_for_the_model(executor: ThreadPoolExecutor):
    vectors = QueryVectors(Provider(), executor, model_wait_seconds=5)

    assert not isinstance(vectors.get("hello").wait(60), Unavailable)


def test_a_failed_provider_is_left_alone_for_a_while(executor: ThreadPoolExecutor):
    provider, clock = Provider(), Clock()
    vectors = warm(provider, executor, clock=clock)
    provider.failure = Transient("the endpoint is overloaded")

    assert vectors.get("a").wait(60) == Unavailable("the endpoint is overloaded")
    assert vectors.get("b").wait(60) == Unavailable("the endpoint is overloaded")
    assert provider.asked == ["a"]

    provider.failure = None
    clock.now += FAILURE_MEMORY_SECONDS + 1
    assert not isinstance(vectors.get("b").wait(60), Unavailable)
    assert vectors.failure() is None


def test_a_provider_that_does_not_answer_in_time_counts_as_failed(executor: ThreadPoolExecutor):
    provider = Provider()
    vectors = warm(provider, executor)
    provider.answering.clear()

    late = vectors.get("slow").wait(0.01)
    assert late == Unavailable("the embedding provider 'fake' did not answer in time")
    assert vectors.get("next").wait(60) == late
    assert provider.asked in ([], ["slow"])
    provider.answering.set()


def test_a_query_that_nobody_waits_for_any_longer_is_not_sent():
    provider = Provider()
    with ThreadPoolExecutor(1) as thread:
        vectors = warm(provider, thread)
        provider.answering.clear()
        first = vectors.get("first")
        wait_until(lambda: provider.asked == ["first"])
        alone, impatient, patient = vectors.get("alone"), vectors.get("shared"), vectors.get("shared")
        assert isinstance(alone.wait(0.01), Unavailable)
        assert isinstance(impatient.wait(0.01), Unavailable)
        provider.answering.set()
        assert not isinstance(first.wait(60), Unavailable)
        assert not isinstance(patient.wait(60), Unavailable)
    assert provider.asked == ["first", "shared"]


def test_searches_that_wait_in_vain_together_are_one_failure(executor: ThreadPoolExecutor):
    provider, clock = Provider(), Clock()
    vectors = warm(provider, executor, clock=clock)
    provider.answering.clear()
    waiting = [vectors.get(f"query {number}") for number in range(10)]
    assert all(isinstance(one.wait(0.001), Unavailable) for one in waiting)
    clock.now += FIRST_FAILURE_MEMORY_SECONDS + 0.01
    assert vectors.failure() is None
    provider.answering.set()


def test_a_query_that_is_refused_is_not_the_provider_failing(executor: ThreadPoolExecutor):
    provider = Provider()
    vectors = warm(provider, executor)
    provider.failure = Permanent("the input is refused")
    assert vectors.get("bad").wait(60) == Unavailable("the input is refused")

    provider.failure = None
    assert not isinstance(vectors.get("good").wait(60), Unavailable)


def test_a_query_longer_than_the_provider_takes_is_asked_by_its_start(executor: ThreadPoolExecutor):
    provider = Provider()
    warm(provider, executor).get("数据" * 1000).wait(60)

    assert provider.asked == ["数据" * 16 + "数"]


def test_a_probe_asks_even_after_a_failure(executor: ThreadPoolExecutor):
    provider = Provider()
    vectors = warm(provider, executor)
    provider.failure = Transient("down")
    assert vectors.probe(5) == Unavailable("down")

    provider.failure = None
    assert vectors.probe(5) is None


def test_a_model_that_cannot_be_loaded_is_tried_again_later(executor: ThreadPoolExecutor):
    clock = Clock()

    class Broken(Provider):
        broken = True

        def warm_up(self) -> None:
            if self.broken:
                raise ImportError("no such wheel")

    provider = Broken()
    vectors = QueryVectors(provider, executor, clock=clock)
    vectors.warm_up()
    wait_until(vectors.failure)
    assert vectors.get("x").wait(60) == Unavailable("ImportError: no such wheel")

    provider.broken = False
    clock.now += FAILURE_MEMORY_SECONDS + 1
    wait_until(lambda: not isinstance(vectors.get("x").wait(60), Unavailable))


class Recorder:
    def __init__(self) -> None:
        self.counted: list[tuple[Usage, dict[str, Usage]]] = []

    def record_usage(self, usage: Usage, *, agents, queries: bool = False) -> None:
        assert queries
        self.counted.append((usage, dict(agents)))


def shared(limiter: RateLimiter, recorder: Recorder | None = None) -> Coordination:
    return Coordination(limiter, usage=recorder or Recorder())


def test_a_provider_that_asked_to_wait_is_not_asked_and_the_reason_is_said(executor: ThreadPoolExecutor):
    provider, clock = Provider(), Clock()
    limiter = LocalRateLimiter(clock=clock)
    vectors = warm(provider, executor, clock=clock, coordination=shared(limiter))
    provider.failure = Throttled("slow down", retry_after=12)

    assert vectors.get("a").wait(60) == Unavailable("slow down")
    assert vectors.get("b").wait(60) == Unavailable("fake asked to wait 12 s")
    clock.now += 5
    assert vectors.get("b").wait(60) == Unavailable("fake asked to wait 7 s")
    assert vectors.failure() == "fake asked to wait 7 s"
    assert provider.asked == ["a"]

    provider.failure = None
    clock.now += 7
    assert not isinstance(vectors.get("b").wait(60), Unavailable), "it may be asked as soon as the time is over"


def test_what_batches_were_told_holds_for_queries_and_the_other_way_round(executor: ThreadPoolExecutor):
    provider, clock = Provider(), Clock()
    limiter = LocalRateLimiter(clock=clock)
    vectors = warm(provider, executor, clock=clock, coordination=shared(limiter))
    limiter.report(Throttled("slow down", retry_after=3))
    assert vectors.get("a").wait(60) == Unavailable("fake asked to wait 3 s")
    assert provider.asked == []

    clock.now += 3
    provider.failure = Terminal("the key is refused: set FAKE_API_KEY")
    vectors.get("a").wait(60)
    hold = limiter.hold()
    assert hold is not None
    assert hold.refusal == "the key is refused: set FAKE_API_KEY"
    assert vectors.get("b").wait(60) == Unavailable("the key is refused: set FAKE_API_KEY")
    assert provider.asked == ["a"]


def test_a_query_may_leave_a_minute_after_a_refusal(executor: ThreadPoolExecutor):
    provider, clock = Provider(), Clock()
    limiter = LocalRateLimiter(clock=clock)
    vectors = warm(provider, executor, clock=clock, coordination=shared(limiter))
    limiter.report(Terminal("the quota is used up"))
    assert vectors.get("a").wait(60) == Unavailable("the quota is used up")

    clock.now += REFUSED_SECONDS
    assert not isinstance(vectors.get("a").wait(60), Unavailable)
    assert limiter.hold() is None
    assert vectors.failure() is None


def test_an_endpoint_that_is_out_says_when_it_is_tried_again(executor: ThreadPoolExecutor):
    provider, clock = Provider(), Clock()
    limiter = LocalRateLimiter(clock=clock)
    vectors = warm(provider, executor, clock=clock, coordination=shared(limiter))
    for _ in range(4):
        clock.now += 1
        limiter.report(Transient("broken connection"))
    assert vectors.get("a").wait(60) == Unavailable("requests to fake fail, and it is tried again in 1 s")


def test_a_query_never_waits_for_the_limit_a_minute(executor: ThreadPoolExecutor):
    limits = replace(Provider.limits, requests_per_minute=1)
    vectors = warm(Provider(), executor, coordination=shared(LocalRateLimiter(limits)))
    for query in ("one", "two", "three"):
        assert not isinstance(vectors.get(query).wait(60), Unavailable)


def test_every_question_to_the_provider_is_counted_for_the_agent_that_asked(executor: ThreadPoolExecutor):
    provider, recorder = Provider(), Recorder()
    vectors = warm(provider, executor, coordination=shared(LocalRateLimiter(), recorder))
    vectors.get("where is the dentist", agent="ada").wait(60)
    vectors.get("where is the dentist", agent="bob").wait(60)
    wait_until(lambda: recorder.counted)
    share = Usage("fake", "fake-1", requests=1, inputs=1, tokens=5)
    assert recorder.counted == [(share, {"ada": share})]

    provider.failure = Transient("broken connection")
    vectors.get("something else", agent="bob").wait(60)
    wait_until(lambda: len(recorder.counted) == 2)
    assert recorder.counted[1][1] == {"bob": Usage("fake", "fake-1", requests=1, failed=1)}
