"""A document that was there when workers died often is a dead letter, and comes back when something changed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from memory.store.reader import PendingChunk
from schemas.settings import Settings
from tests.waiting import wait_until
from tests.working import Workers, key
from workers.failure_policy import MOST_CRASHES, Postponed
from workers.queue.names import Keys
from workers.queue.pending import ALONE_FROM, PendingSet
from workers.queue.private_server import BrokerServer
from workers.vectors_job import CrashSafeRounds

BAD = key("memory/bad.md").encode()


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
    workers.queue.marks.note_crashes("main", BAD, MOST_CRASHES)
    workers.mark("memory/bad.md", "memory/good.md")
    wait_until(workers.settled)


@pytest.mark.parametrize("crashes", [1, ALONE_FROM, MOST_CRASHES - 1])
def test_a_document_that_was_there_at_fewer_crashes_is_indexed(workers: Workers, crashes: int) -> None:
    workers.write("memory/bad.md", "The lynx hides.\n")
    workers.queue.marks.note_crashes("main", BAD, crashes)
    workers.mark("memory/bad.md")
    wait_until(lambda: workers.finds("lynx") and workers.settled())
    assert not workers.queue.marks.crashes("main", BAD)


def test_a_document_that_was_there_at_many_crashes_is_a_dead_letter_and_is_not_read_again(workers: Workers) -> None:
    give_up(workers)
    assert letters(workers) == [("memory/bad.md", "WorkerDied", MOST_CRASHES)]
    assert workers.finds("heron")
    # As a comparison of files and index does, again and again.
    workers.mark("memory/bad.md", "memory/good.md")
    wait_until(workers.settled)
    assert letters(workers) == [("memory/bad.md", "WorkerDied", MOST_CRASHES)]
    assert not workers.finds("lynx")


def test_a_changed_file_is_tried_again(workers: Workers) -> None:
    give_up(workers)
    workers.note("memory/bad.md", "The lynx hides no more.\n")
    wait_until(lambda: workers.finds("lynx") and workers.settled())
    assert letters(workers) == []


def test_texts_of_a_job_that_crashed_three_times_are_embedded_alone_and_the_culprit_is_refused_after_five(
    client: redis.Redis, keys: Keys
) -> None:
    marks = PendingSet(client, keys)
    chunks = [PendingChunk(number, f"hash {number}", "text") for number in range(100)]
    sizes = []
    for _ in range(MOST_CRASHES):  # each time the process dies in its first round
        rounds = CrashSafeRounds(marks, "main", "job")
        sizes.append(min(rounds.most, len(chunks)))
        rounds.begins(chunks[: sizes[-1]])
    assert sizes == [100, 100, 100, 1, 1]
    marks.note_crashes("main", "job another", ALONE_FROM)
    with pytest.raises(Postponed):  # one job at a time
        CrashSafeRounds(marks, "main", "another")
    assert marks.crashes("main", "job another") == str(ALONE_FROM)
    assert marks.crashes("main", "text of job job") == "hash 0"
    with CrashSafeRounds(marks, "main", "job"):
        pass
    assert not client.hget(keys.crashes("main"), "job job")
