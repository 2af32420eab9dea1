"""Pending marks on a real Valkey."""

from __future__ import annotations

import time

import pytest
import redis

from schemas.documents import DocumentKey, Lane
from workers.failure_policy import Postponed
from workers.queue.names import Keys
from workers.queue.pending import PendingSet
from workers.queue.quarantine import ALONE_FROM, MOST_CRASHES, Quarantine, Verdict
from workers.vectors_job import CrashSafeRounds

A, B, C, D = (DocumentKey("memory", f"memory/{name}.md") for name in "abcd")


def taken(marks: PendingSet, agent: str, lane: Lane, job: str) -> list[DocumentKey]:
    return list(marks.claim(agent, lane=lane, job=job, limit=10).documents)


@pytest.fixture
def marks(client: redis.Redis, keys: Keys) -> PendingSet:
    return PendingSet(client, keys)


def test_a_mark_during_the_job_causes_exactly_one_more(marks: PendingSet) -> None:
    marks.mark("main", [A], lane=Lane.LIVE, now=100.0)
    assert taken(marks, "main", Lane.LIVE, "first") == [A]
    marks.mark("main", [A], lane=Lane.LIVE, now=101.0)
    marks.mark("main", [A], lane=Lane.LIVE, now=102.0)
    assert taken(marks, "main", Lane.LIVE, "other") == []
    assert marks.finish("main", [A], job="first", now=103.0) == []
    assert taken(marks, "main", Lane.LIVE, "second") == [A]
    assert marks.finish("main", [A], job="second", now=104.0) == [100.0]
    assert marks.pending("main").documents == 0
    assert marks.agents() == []


@pytest.mark.parametrize("now", [1792820326.5518465, 1797336958.2017086, 1798345897.5716445])
def test_documents_are_taken_in_the_order_they_were_given(marks: PendingSet, now: float) -> None:
    # By name, the last of each slice would come after the first of the next.
    many = [DocumentKey("memory", f"memory/{9999 - number}.md") for number in range(1300)]
    marks.mark("main", many, lane=Lane.BACKFILL, now=now)
    taken: list[DocumentKey] = []
    while part := marks.claim("main", lane=Lane.BACKFILL, job="j", limit=64).documents:
        taken += part
    assert taken == many


def test_what_a_dead_job_held_waits_again_and_keeps_its_age(marks: PendingSet) -> None:
    marks.mark("main", [A, B], lane=Lane.LIVE, now=50.0)
    marks.claim("main", lane=Lane.LIVE, job="dead", limit=1)
    marks.claim("main", lane=Lane.LIVE, job="alive", limit=1)
    assert marks.recover("main", alive=["alive"], now=60.0) == 1
    assert taken(marks, "main", Lane.LIVE, "next") == [A]
    assert marks.pending("main").oldest_at == 50.0


def test_a_redelivered_job_finds_what_its_first_delivery_held(marks: PendingSet) -> None:
    marks.mark("main", [A, B, C], lane=Lane.BACKFILL, now=time.time())
    marks.claim("main", lane=Lane.BACKFILL, job="same", limit=2)
    assert marks.recover_crashed("main", job="same") == 2
    marks.mark("main", [D], lane=Lane.BACKFILL, now=1.0)
    claimed = taken(marks, "main", Lane.BACKFILL, "same")
    assert (sorted(claimed[:2]), sorted(claimed[2:])) == ([A, B], [C, D]), "they are first in line"


@pytest.mark.parametrize("order", [("first", "second"), ("second", "first")])
def test_a_document_that_two_jobs_got_is_read_again_after_both(marks: PendingSet, order: tuple[str, str]) -> None:
    marks.mark("main", [A], lane=Lane.LIVE, now=time.time())
    marks.claim("main", lane=Lane.LIVE, job="first", limit=1)
    marks.recover("main", alive=[], now=time.time())
    marks.claim("main", lane=Lane.LIVE, job="second", limit=1)
    for job in order:
        marks.finish("main", [A], job=job, now=time.time())
    assert taken(marks, "main", Lane.LIVE, "third") == [A]
    assert len(marks.finish("main", [A], job="third", now=time.time())) == 1
    assert marks.pending("main").documents == 0


def crash(marks: PendingSet, job: str, times: int) -> None:
    for _ in range(times):
        assert marks.claim("main", lane=Lane.LIVE, job=job, limit=10).documents
        marks.recover_crashed("main", job=job)


def test_after_three_crashes_a_document_is_claimed_alone_and_by_one_job_at_a_time(marks: PendingSet) -> None:
    marks.mark("main", [A, B], lane=Lane.LIVE, now=time.time())
    crash(marks, "j", ALONE_FROM)
    marks.mark("main", [C], lane=Lane.LIVE, now=time.time())
    alone = marks.claim("main", lane=Lane.LIVE, job="j", limit=10)
    assert (alone.documents, alone.rest, alone.crashes) == ((A,), "alone", str(ALONE_FROM))
    assert taken(marks, "main", Lane.LIVE, "other") == [C]
    marks.finish("main", [C], job="other", now=time.time())
    assert marks.claim("main", lane=Lane.LIVE, job="other", limit=10).rest == "busy"
    marks.finish("main", [A], job="j", now=time.time())
    marks.quarantine.end_trial("j")
    assert marks.claim("main", lane=Lane.LIVE, job="other", limit=10).documents == (B,)
    marks.recover_crashed("main", job="other")
    assert marks.claim("main", lane=Lane.LIVE, job="third", limit=10).crashes == str(ALONE_FROM + 1)


def test_a_document_that_is_indexed_has_no_crashes_any_more(marks: PendingSet) -> None:
    for _ in range(ALONE_FROM):
        marks.mark("main", [A], lane=Lane.LIVE, now=time.time())
        crash(marks, "j", ALONE_FROM - 1)
        assert taken(marks, "main", Lane.LIVE, "j") == [A]
        marks.finish("main", [A], job="j", now=time.time())


@pytest.mark.parametrize(
    ("crashes", "state", "is_dead", "verdict"),
    [
        (str(ALONE_FROM), "as now", False, Verdict.TRY),
        (str(MOST_CRASHES - 1), "as now", False, Verdict.TRY),
        (str(MOST_CRASHES), "as now", False, Verdict.GIVE_UP),
        ("as now", "as now", True, Verdict.LEAVE),
        ("as now", "as now", False, Verdict.TRY),
        ("before", "as now", True, Verdict.TRY),
    ],
)
def test_a_document_of_several_crashes_is_tried_given_up_or_left(
    client: redis.Redis, keys: Keys, crashes: str, state: str, *, is_dead: bool, verdict: Verdict
) -> None:
    quarantine = Quarantine(client, keys)
    assert quarantine.verdict("main", A, crashes=crashes, state=state, is_dead=is_dead) is verdict


# Crashes while texts are embedded


def test_texts_of_a_job_that_keeps_crashing_are_embedded_alone_until_one_is_refused(
    client: redis.Redis, keys: Keys
) -> None:
    quarantine = Quarantine(client, keys)
    hashes = [f"hash {number}" for number in range(100)]
    sizes = []
    for _ in range(MOST_CRASHES):  # each time the process dies in its first round
        rounds = CrashSafeRounds(quarantine, "main", "job")
        sizes.append(min(rounds.most, len(hashes)))
        rounds.begins(hashes[: sizes[-1]])
    assert sizes == [100, 100, 100, 1, 1]
    quarantine.set_crashes("main", "another", ALONE_FROM)
    with pytest.raises(Postponed):  # one job at a time
        CrashSafeRounds(quarantine, "main", "another")
    assert quarantine.begin_job("main", "another") == ALONE_FROM
    assert quarantine.last_text("main", "job") == "hash 0"
    with CrashSafeRounds(quarantine, "main", "job"):
        pass
    assert not client.hget(keys.crashes("main"), "job job")
