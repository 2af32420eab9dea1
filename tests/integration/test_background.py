"""Pace of old work beside live work, on a real Valkey."""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path

import pytest

from schemas.documents import Lane
from tests.waiting import wait_until
from workers.background import LONGEST_REST_SECONDS, Background, Courtesy
from workers.queue.connection import BrokerClient
from workers.queue.job_queue import BrokerJobQueue
from workers.queue.names import INDEX_PENDING, Keys


class Queue(BrokerJobQueue):
    """Queue on which jobs begin in the future: they count as short ones however slow this machine is."""

    def begin(self, lane: Lane) -> None:
        self.started(INDEX_PENDING, "main", lane, job="job of main")
        self._client.zadd(self._keys.live_jobs, {"job of main": time.time() + 3600}, xx=True)


@pytest.fixture
def queue(client: BrokerClient, keys: Keys) -> Queue:
    return Queue(client, keys)


def test_old_work_rests_until_the_last_live_job_ends(queue: Queue) -> None:
    courtesy, left = Courtesy(queue, threading.Event()), list[float]()
    queue.begin(Lane.LIVE)
    resting = threading.Thread(target=lambda: left.append(courtesy.let_pass(600.0)))
    resting.start()
    wait_until(lambda: courtesy.gentle)
    assert not left
    queue.ended("main", job="job of main", seconds=0.1)
    resting.join()
    assert 0.0 < left[0] <= 600.0


def test_old_work_goes_on_beside_live_jobs_that_do_not_end(queue: Queue) -> None:
    courtesy = Courtesy(queue, threading.Event())
    queue.begin(Lane.LIVE)
    assert courtesy.let_pass(0.02) <= 0.0


def test_old_work_rests_for_no_other_old_work(queue: Queue) -> None:
    courtesy = Courtesy(queue, threading.Event())
    queue.begin(Lane.BACKFILL)
    assert courtesy.let_pass(1.0) == 1.0
    assert not courtesy.gentle


def test_old_work_of_a_process_that_ends_does_not_rest(queue: Queue) -> None:
    stopping = threading.Event()
    stopping.set()
    queue.begin(Lane.LIVE)
    assert Courtesy(queue, stopping).let_pass(LONGEST_REST_SECONDS) == LONGEST_REST_SECONDS


def test_gentle_jobs_work_one_after_another(queue: Queue, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    one, other = (Courtesy(queue, threading.Event(), turns=1) for _ in range(2))
    turn = one.turn()
    assert turn is not None
    assert other.turn() is None
    turn.close()
    later = other.turn()
    assert later is not None
    later.close()


def test_a_job_ends_its_turn_with_itself(queue: Queue, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    courtesy = Courtesy(queue, threading.Event(), turns=1)
    queue.begin(Lane.LIVE)
    with Background(courtesy) as pace:
        wait_until(pace.rest)
    turn = courtesy.turn()
    assert turn is not None
    turn.close()
