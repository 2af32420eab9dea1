"""Threads that several share, of which each gets a few."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from memory.search.resources import BoundedExecutor
from tests.waiting import wait_until


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(3) as made:
        yield made


def test_calls_of_a_slow_lane_leave_threads_to_another(threads: ThreadPoolExecutor):
    release = threading.Event()
    slow, quick = BoundedExecutor(threads, 2), BoundedExecutor(threads, 2)
    hanging = [slow.submit(release.wait, 20) for _ in range(10)]
    assert [quick.submit(pow, 2, number).result(60) for number in range(5)] == [1, 2, 4, 8, 16]
    assert not any(call.done() for call in hanging)
    release.set()
    assert all(call.result(60) for call in hanging)


def test_never_more_calls_of_a_lane_run_than_it_is_wide(threads: ThreadPoolExecutor):
    lock = threading.Lock()
    running: list[int] = []
    most: list[int] = []

    def work(number: int) -> int:
        with lock:
            running.append(number)
            most.append(len(running))
        threading.Event().wait(0.001)
        with lock:
            running.remove(number)
        return number

    lane = BoundedExecutor(threads, 2)
    assert [call.result(60) for call in [lane.submit(work, number) for number in range(50)]] == list(range(50))
    assert max(most) == 2
    assert lane.submit(work, 1).result(60) == 1


def test_an_error_is_the_caller_s_and_the_lane_goes_on(threads: ThreadPoolExecutor):
    lane = BoundedExecutor(threads, 1)
    with pytest.raises(ZeroDivisionError):
        lane.submit(lambda: 1 / 0).result(60)
    assert lane.submit(pow, 2, exp=3).result(60) == 8


def test_a_call_that_was_taken_back_does_not_run(threads: ThreadPoolExecutor):
    release = threading.Event()
    ran: list[int] = []
    lane = BoundedExecutor(threads, 1)
    first = lane.submit(release.wait, 20)
    wait_until(first.running)
    second = lane.submit(ran.append, 2)
    assert second.cancel()
    release.set()
    lane.submit(ran.append, 3).result(60)
    assert ran == [3]


def test_a_closed_lane_drops_what_waits_and_takes_nothing(threads: ThreadPoolExecutor):
    release = threading.Event()
    lane = BoundedExecutor(threads, 1)
    first = lane.submit(release.wait, 20)
    second = lane.submit(release.wait, 20)
    lane.shutdown(cancel_futures=True)
    assert second.cancelled()
    with pytest.raises(RuntimeError, match="closed"):
        lane.submit(print)
    release.set()
    assert first.result(60)


def test_a_lane_whose_threads_are_closed_takes_nothing():
    threads = ThreadPoolExecutor(1)
    threads.shutdown()
    lane = BoundedExecutor(threads, 1)
    for _ in range(3):
        with pytest.raises(RuntimeError):
            lane.submit(print)
