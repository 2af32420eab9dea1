"""Whoever asks the producers waits for their answer, and no longer than he wants to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import redis

from memory.status.processes import Pulse
from producers.run import read_inbox
from schemas.ports import Event
from schemas.settings import Settings
from workers.queue.connection import namespace
from workers.queue.job_queue import EventQueue
from workers.queue.names import Keys

FLUSH = Event("flush", "main")


@pytest.fixture
def inbox(client: redis.Redis, settings: Settings) -> EventQueue:
    return EventQueue(client, Keys(namespace(settings)))


@contextmanager
def reading(inbox: EventQueue, handle: Callable[[Event], None]) -> Iterator[None]:
    ended = threading.Event()
    thread = threading.Thread(target=read_inbox, args=(inbox, handle, ended, Pulse("inbox")))
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_an_asking_client_goes_on_when_the_event_was_handled(inbox: EventQueue) -> None:
    handled: list[Event] = []
    with reading(inbox, handled.append):
        assert inbox.ask(FLUSH, 10)
    assert [(event.kind, event.agent) for event in handled] == [("flush", "main")]


def test_a_handler_that_fails_keeps_no_client_waiting(inbox: EventQueue) -> None:
    def fail(_: Event) -> None:
        raise RuntimeError("no")

    with reading(inbox, fail):
        assert inbox.ask(FLUSH, 120), "waiting until the end is answered by False"


def test_without_producers_the_time_is_over_some_time(inbox: EventQueue) -> None:
    assert not inbox.ask(FLUSH, 0.05)
    assert inbox.take(1) is not None, "the hint itself is kept"


def test_answers_do_not_mix(inbox: EventQueue) -> None:
    answers: dict[str, bool] = {}
    threads = [
        threading.Thread(target=lambda name=name: answers.update({name: inbox.ask(Event("flush", name), 10)}))
        for name in ("one", "two")
    ]
    for thread in threads:
        thread.start()
    events = [event for _ in threads if (event := inbox.take(10)) is not None]
    [two] = [event for event in events if event.agent == "two"]
    inbox.answer(two)
    threads[1].join(60)
    assert answers == {"two": True}
    [one] = [event for event in events if event.agent == "one"]
    inbox.answer(one)
    threads[0].join(60)
    assert answers == {"one": True, "two": True}


def test_an_answer_that_nobody_waits_for_ends_by_itself(inbox: EventQueue, client: redis.Redis) -> None:
    assert not inbox.ask(FLUSH, 0.01)
    event = inbox.take(1)
    assert event is not None
    inbox.answer(event)
    keys = [key for key in client.scan_iter("*") if str(event.ticket).encode() in key]
    assert len(keys) == 1
    assert 0 < client.ttl(keys[0]) <= 60
    inbox.answer(Event("flush", "main"))  # nobody asked: nothing happens
