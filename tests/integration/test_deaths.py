"""What was there when a worker died is tried alone, and given up when it was there too often."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import dramatiq
import pytest
import redis

from memory.store.reader import PendingChunk
from memory.store.writer import Store
from schemas.settings import Settings
from tests.waiting import wait_until
from tests.working import Workers, key
from workers.actors import RecordedRounds
from workers.queue.crash_counter import ALONE_FROM, MOST_DEATHS, CrashCounter, Round
from workers.queue.names import Keys
from workers.queue.private_server import BrokerServer

BAD = key("memory/bad.md")


@pytest.fixture
def deaths(client: redis.Redis, keys: Keys) -> CrashCounter:
    return CrashCounter(client, keys)


@pytest.fixture
def workers(settings: Settings, broker_server: BrokerServer) -> Iterator[Workers]:
    with Workers(settings) as running:
        yield running


def letters(workers: Workers) -> list[tuple[str, str, int]]:
    with workers.reading("main") as reader:
        found = reader.dead_letters() if reader is not None else []
    return [(letter.key.path, letter.error_class, letter.attempts) for letter in found]


def give_up(workers: Workers) -> None:
    workers.write("memory/bad.md", "The lynx hides.\n")
    workers.write("memory/good.md", "The heron waits.\n")
    workers.queue.deaths.record("main", [BAD] * MOST_DEATHS)
    workers.mark("memory/bad.md", "memory/good.md")
    wait_until(workers.settled)


def test_one_death_is_nobodys_fault(workers: Workers) -> None:
    assert workers.queue.deaths.take_turn("another process's job"), "nothing is tried alone now"
    workers.write("memory/bad.md", "The lynx hides.\n")
    workers.queue.deaths.record("main", [BAD])
    workers.mark("memory/bad.md")
    wait_until(lambda: workers.finds("lynx") and workers.settled())
    wait_until(lambda: workers.queue.deaths.counts("main") == {})


def test_a_document_that_was_there_at_two_deaths_is_indexed_and_no_suspect_any_more(workers: Workers) -> None:
    workers.write("memory/bad.md", "The lynx hides.\n")
    workers.queue.deaths.record("main", [BAD] * ALONE_FROM)
    workers.mark("memory/bad.md")
    wait_until(lambda: workers.finds("lynx") and workers.settled())
    wait_until(lambda: workers.queue.deaths.counts("main") == {})
    wait_until(lambda: workers.queue.deaths.take_turn("somebody else"), what="the turn was given back")


def test_a_document_that_was_there_at_many_deaths_is_a_dead_letter_and_is_not_looked_at_again(workers: Workers) -> None:
    give_up(workers)
    assert letters(workers) == [("memory/bad.md", "WorkerDied", MOST_DEATHS)]
    assert workers.finds("heron")
    # As a comparison of files and index does, again and again.
    workers.mark("memory/bad.md", "memory/good.md")
    wait_until(workers.settled)
    assert letters(workers) == [("memory/bad.md", "WorkerDied", MOST_DEATHS)]
    assert not workers.finds("lynx")


def test_a_changed_file_is_tried_again(workers: Workers) -> None:
    give_up(workers)
    workers.write("memory/bad.md", "The lynx hides no more.\n")
    workers.mark("memory/bad.md")
    wait_until(lambda: workers.finds("lynx") and workers.settled())
    assert letters(workers) == []


def test_a_retry_and_another_version_of_the_program_try_it_again(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_up(workers)
    monkeypatch.setattr("workers.index_job.recalld_version", lambda: "99.0")
    workers.mark("memory/bad.md")
    wait_until(lambda: workers.finds("lynx") and workers.settled())
    assert letters(workers) == []


def test_suspects_are_tried_one_at_a_time_in_all_processes(workers: Workers, deaths: CrashCounter) -> None:
    assert deaths.take_turn("another process's job")
    workers.write("memory/bad.md", "The lynx hides.\n")
    deaths.record("main", [BAD] * ALONE_FROM)
    workers.mark("memory/bad.md")
    wait_until(lambda: workers.client.hlen(workers.keys.delayed_messages("live")) == 1, what="a job comes back later")
    assert deaths.counts("main") == {BAD: ALONE_FROM}
    assert not workers.finds("lynx")
    deaths.end_turn("another process's job")
    wait_until(lambda: workers.finds("lynx") and deaths.counts("main") == {})


def test_a_job_that_died_keeps_its_turn_and_nobody_else_gives_it_back(deaths: CrashCounter) -> None:
    assert deaths.take_turn("job")
    assert deaths.take_turn("job")
    deaths.end_turn("other")
    assert not deaths.take_turn("other")


def test_a_round_that_a_process_died_of_is_tried_in_parts_down_to_the_one_text_which_is_refused(
    deaths: CrashCounter,
) -> None:
    chunks = [PendingChunk(number, f"hash {number}", "text") for number in range(100)]
    sizes = []
    for _ in range(6):  # each time the process dies in its first round
        rounds = RecordedRounds(deaths, "main", "job")
        size = min(rounds.most, len(chunks))
        rounds.begins(chunks[:size])
        sizes.append(size)
    assert sizes == [100, 12, 1, 1, 1, 1]
    last = deaths.last_round("main", "job")
    assert last == Round("job", 1, "hash 0", 3)
    with RecordedRounds(deaths, "main", "job") as rounds:
        asked: list[object] = []
        store = SimpleNamespace(pending_chunks=lambda limit, *, among: asked.append((limit, among)) or [])
        rounds.give_up(cast("Store", store))
        assert asked == [(1, ["hash 0"])]
        rounds.begins(chunks[1:2])
        rounds.begins(chunks[2:])
        assert rounds.most > 1, "nobody died, so it grows again"
    assert deaths.last_round("main", "job") is None


def test_two_jobs_whose_rounds_killed_a_process_take_turns(deaths: CrashCounter) -> None:
    for job in ("one", "two"):
        deaths.begin_round("main", Round(job, 8))
    with RecordedRounds(deaths, "main", "one"), pytest.raises(dramatiq.Retry):
        RecordedRounds(deaths, "main", "two")
    RecordedRounds(deaths, "main", "two")
