"""The vector of a query."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from memory.embedding.breaker import ANSWER_SECONDS, Breaker, Waste
from memory.embedding.coordination import Coordination
from memory.embedding.providers.provider import EmbeddingProvider, Embeddings, ProviderLimits
from memory.embedding.rate_limit import REFUSED_SECONDS, RateLimiter
from memory.search.query_vectors import QueryVectors, Unavailable
from memory.store.reader import Vector
from schemas.errors import RecalldError, Terminal, Throttled, Transient
from schemas.ports import Usage
from tests.waiting import Clock, wait_until


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


Warm = Callable[..., QueryVectors]


@pytest.fixture
def made() -> Iterator[Warm]:
    """Makes vectors, and closes them at the end."""
    with ExitStack() as opened:

        def make(provider: Provider, **options) -> QueryVectors:
            vectors = QueryVectors(provider, **options)
            opened.callback(vectors.close)
            opened.callback(provider.answering.set)
            opened.callback(provider.loaded.set)
            return vectors

        yield make


@pytest.fixture
def warm(made: Warm) -> Warm:
    return partial(made, model_wait_seconds=60)


def got(vectors: QueryVectors, query: str, *, seconds: float = 60, agent: str = "") -> Vector | str:
    """The vector of a query, for a search that waits so long, or the reason why there is none."""
    try:
        return asyncio.run(vectors.result(vectors.begin(query, seconds=seconds, agent=agent), seconds))
    except Unavailable as error:
        return str(error)


def test_the_same_query_in_flight_is_one_request(warm: Warm):
    provider = Provider()
    vectors = warm(provider)
    provider.answering.clear()
    first, second = vectors.begin("same", seconds=60), vectors.begin("same", seconds=60)
    provider.answering.set()

    assert first is second
    assert not isinstance(got(vectors, "same"), str)
    assert provider.asked == ["same"]


def test_a_provider_that_does_not_answer_in_time_counts_as_failed(warm: Warm):
    provider = Provider()
    vectors = warm(provider)
    got(vectors, "first")
    provider.asked.clear()
    provider.answering.clear()

    late = got(vectors, "slow", seconds=2)
    assert "in time" in str(late)
    assert got(vectors, "next") == late, "as long as the first one is not answered"
    assert provider.asked == ["slow"]
    provider.answering.set()
    wait_until(lambda: not isinstance(got(vectors, "next"), str))


class Recorder:
    def __init__(self) -> None:
        self.counted: list[tuple[Usage, dict[str, Usage]]] = []

    def record_usage(self, usage: Usage, *, agents, queries: bool = False) -> None:
        assert queries
        self.counted.append((usage, dict(agents)))


def shared(limiter: RateLimiter, recorder: Recorder | None = None) -> Coordination:
    return Coordination(limiter, usage=recorder or Recorder())


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (Throttled("slow down", retry_after=3), "fake asked to wait 3 s"),
        (Terminal("the key is refused"), "the key is refused"),
        (Transient("broken connection"), "requests to fake fail, and it is tried again in 1 s"),
    ],
)
def test_what_batches_were_told_holds_for_queries_until_the_time_is_over(warm: Warm, told: RecalldError, said: str):
    provider, clock = Provider(), Clock()
    limiter = RateLimiter(clock=clock)
    vectors = warm(provider, clock=clock, coordination=shared(limiter))
    for _ in range(4):
        clock.now += 1
        limiter.report(told)
    assert got(vectors, "a") == said
    assert vectors.failure() == said
    assert provider.asked == []
    clock.now += REFUSED_SECONDS
    assert not isinstance(got(vectors, "a"), str)


def test_queries_stop_after_a_vector_of_another_width_and_say_why(warm: Warm):
    provider = Provider()
    vectors = warm(provider)
    vectors.dimensions = 3
    assert "2 dimensions instead of 3" in str(got(vectors, "a"))
    assert provider.asked == ["a"], "not once more at once"
    assert "2 dimensions instead of 3" in str(got(vectors, "b"))
    late = got(vectors, "c")
    assert "is stopped" in str(late)
    assert vectors.failure() == late
    assert provider.asked == ["a", "b"], "the second one was the question"


def test_the_width_that_workers_expect_holds_for_a_process_that_never_searched(warm: Warm, tmp_path: Path):
    path, clock = tmp_path / "stopped.json", Clock(0.0)
    waste = Waste(since=0, at=0, until=0, doublings=3, texts=9, tokens=9, error="another width", got=2, expected=3)
    path.write_text(json.dumps(asdict(waste)))
    provider = Provider()
    vectors = warm(provider, coordination=shared(RateLimiter(breaker=Breaker(path, clock=clock))))
    assert "another width" in str(got(vectors, "a"))
    assert provider.asked == []
    clock.now += ANSWER_SECONDS
    assert "2 dimensions instead of 3" in str(got(vectors, "b"))
    assert "2 dimensions instead of 3" in str(got(vectors, "c"))
    assert provider.asked == ["b"]


def test_every_question_to_the_provider_is_counted_for_the_agent_that_asked(warm: Warm):
    provider, recorder = Provider(), Recorder()
    vectors = warm(provider, coordination=shared(RateLimiter(), recorder))
    got(vectors, "where is the dentist", agent="ada")
    got(vectors, "where is the dentist", agent="bob")
    wait_until(lambda: recorder.counted)
    share = Usage("fake", "fake-1", requests=1, inputs=1, tokens=5)
    assert recorder.counted == [(share, {"ada": share})]

    provider.failure = Transient("broken connection")
    got(vectors, "something else", agent="bob")
    wait_until(lambda: len(recorder.counted) == 2)
    assert recorder.counted[1][1] == {"bob": Usage("fake", "fake-1", requests=1, failed=1)}


def test_a_query_waits_for_the_model_and_not_longer_than_it_may(made: Warm):
    loading = "the embedding model of 'fake' is still loading"
    provider = Provider()
    provider.loaded.clear()
    vectors, impatient = made(provider, model_wait_seconds=60), made(provider, model_wait_seconds=0.05)
    waiting = vectors.begin("question", seconds=60)
    assert got(impatient, "question") == loading
    assert got(vectors, "another", seconds=0.05) == loading, "the search's own deadline holds"
    refused = vectors.begin("a third", seconds=60, waits_for_model=False)
    assert str(refused.exception(0)) == loading
    provider.loaded.set()
    assert waiting.result(60).shape == (2,)


class ClosingProvider(Provider):
    account = "an account"

    def close(self) -> None:
        self.failure = Transient("the connection failed")
        self.answering.set()


def test_a_request_that_closing_ends_is_not_repeated():
    provider = ClosingProvider()
    vectors = QueryVectors(provider)
    provider.answering.clear()
    future = vectors.begin("slow", seconds=60)
    wait_until(lambda: provider.asked)
    vectors.close()
    assert isinstance(future.exception(), Transient)
    assert provider.asked == ["slow"]
