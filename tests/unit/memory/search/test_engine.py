"""A search's steps hold a thread only while they work, and end at the deadline."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from memory.search.engine import Deadline, SearchRun, Steps
from schemas.search import SearchAnswer

Ask = Callable[[SearchRun], SearchAnswer]


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    """One: whoever holds it keeps everybody else waiting."""
    with ThreadPoolExecutor(1) as made:
        yield made


@pytest.fixture(params=["a thread", "an event loop"])
def ask(request: pytest.FixtureRequest) -> Ask:
    if request.param == "a thread":
        return SearchRun.answer
    return lambda run: asyncio.run(run.answered())


def named(name: str) -> SearchAnswer:
    return SearchAnswer(provider=name)


def run(steps: Steps, threads: ThreadPoolExecutor, *, seconds: float = 20.0) -> SearchRun:
    return SearchRun(
        steps,
        threads=threads,
        deadline=Deadline(time.monotonic(), seconds),
        late=lambda: named("late"),
        failed=lambda error: named(f"failed: {error}"),
    )


def waiting(future: Future[str], seen: list[bool] | None = None) -> Steps:
    yield future
    if seen is not None:
        seen.append(future.done())
    return named(future.result(0) if future.done() else "without it")


def at_once(name: str) -> Steps:
    if name == "broken":
        raise ValueError("no luck")
    return named(name)
    yield


def test_steps_that_wait_for_nothing_answer(threads: ThreadPoolExecutor, ask: Ask):
    assert ask(run(at_once("done"), threads)).provider == "done"


def test_any_number_of_searches_waits_without_a_thread(threads: ThreadPoolExecutor, ask: Ask):
    awaited: Future[str] = Future()
    parked = [run(waiting(awaited), threads) for _ in range(50)]
    assert ask(run(at_once("another"), threads)).provider == "another"
    awaited.set_result("there")
    assert {ask(one).provider for one in parked} == {"there"}


def test_when_only_the_store_s_time_is_left_a_search_goes_on_without_what_it_waits_for(
    threads: ThreadPoolExecutor, ask: Ask
):
    seen: list[bool] = []
    begun = time.monotonic()
    # Of six seconds, so that what the store has to itself (300 ms) is long for a machine with much to do.
    assert ask(run(waiting(Future(), seen), threads, seconds=6.0)).provider == "without it"
    assert seen == [False]
    assert time.monotonic() - begun >= 5.4


def test_at_the_deadline_there_is_an_answer_whatever_the_steps_do(threads: ThreadPoolExecutor, ask: Ask):
    release = threading.Event()

    def stuck() -> Steps:
        release.wait(60)
        return named("too late")
        yield

    assert ask(run(stuck(), threads, seconds=0.1)).provider == "late"
    # Behind it in the queue, and dropped when its turn comes.
    ran: list[int] = []

    def dropped() -> Steps:
        ran.append(1)
        return named("dropped")
        yield

    assert ask(run(dropped(), threads, seconds=0.1)).provider == "late"
    release.set()
    assert ask(run(at_once("after"), threads)).provider == "after"
    assert ran == []


def test_what_steps_raise_becomes_an_answer(threads: ThreadPoolExecutor, ask: Ask):
    assert ask(run(at_once("broken"), threads)).provider == "failed: no luck"


def test_a_service_that_ends_answers_at_once(ask: Ask):
    release = threading.Event()
    threads = ThreadPoolExecutor(1)
    threads.submit(release.wait, 20)
    queued = run(at_once("queued"), threads)
    parked_on: Future[str] = Future()
    threads.shutdown(wait=False, cancel_futures=True)
    assert ask(queued).provider == "failed: the service is ending"
    assert "failed: " in str(ask(run(waiting(parked_on), threads)).provider)
    release.set()
