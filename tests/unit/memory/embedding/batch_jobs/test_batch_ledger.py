"""The ledger of batch jobs: what is at a provider is known whatever happens."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from memory.embedding.batch_jobs.batch_api import JobProgress, JobState
from memory.embedding.batch_jobs.batch_ledger import BatchLedger, Origin, Stage
from memory.store.errors import StoreUnreadable

MAIN = Origin(agent="main", identity="an identity", account="an account", provider="openai", model="a-model")
OTHER = replace(MAIN, agent="other")

A_DAY = 86_400.0


class Clock:
    """A clock that goes when told."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(tmp_path: Path, clock: Clock) -> Iterator[BatchLedger]:
    with BatchLedger(tmp_path / "cache" / "batch_jobs.sqlite", clock=clock) as opened:
        yield opened


def _noted(ledger: BatchLedger, *hashes: str, origin: Origin = MAIN) -> str:
    noted = ledger.note(origin, hashes, most_open=10)
    assert noted is not None
    return noted[0]


def test_a_job_is_noted_before_it_is_submitted_and_survives_the_process(ledger: BatchLedger, tmp_path: Path) -> None:
    reference = _noted(ledger, "a", "b")
    with BatchLedger(tmp_path / "cache" / "batch_jobs.sqlite") as again:
        [job] = again.jobs()
    assert (job.reference, job.job_id, job.stage, job.agent) == (reference, None, Stage.SUBMITTING, "main")
    assert (job.identity, job.account, job.provider, job.model) == ("an identity", "an account", "openai", "a-model")
    assert (job.texts, job.left, job.open) == (2, 2, True)
    ledger.submitted(reference, "batch-1", look_at=5.0)
    job = ledger.jobs()[0]
    assert (job.job_id, job.stage, job.look_at) == ("batch-1", Stage.RUNNING, 5.0)


def test_a_text_is_in_one_job_of_an_identity_at_most(ledger: BatchLedger) -> None:
    _noted(ledger, "a", "b")
    noted = ledger.note(OTHER, ["b", "c"], most_open=10)
    assert noted is not None
    assert noted[1] == ["c"]
    assert ledger.note(OTHER, ["a", "b", "c"], most_open=10) is None
    assert ledger.hashes("an identity") == {"a", "b", "c"}
    assert ledger.texts_of("main", looked_within_seconds=1) == 2
    another = replace(MAIN, identity="another identity")
    assert ledger.note(another, ["a"], most_open=10) is not None
    assert ledger.hashes("another identity") == {"a"}
    assert ledger.hashes("nobody's") == set()


def test_texts_of_jobs_that_nobody_looks_after_do_not_count(ledger: BatchLedger, clock: Clock) -> None:
    first, second = _noted(ledger, "a"), _noted(ledger, "b", "c")
    clock.now += 100
    ledger.looked(first, JobProgress(JobState.RUNNING), look_at=clock.now)
    assert ledger.texts_of("main", looked_within_seconds=50) == 1
    ledger.tried(second, "no answer", look_at=clock.now)
    assert ledger.texts_of("main", looked_within_seconds=50) == 3
    assert ledger.texts_of("other", looked_within_seconds=50) == 0


def test_no_more_jobs_are_open_than_allowed(ledger: BatchLedger) -> None:
    first = _noted(ledger, "a")
    assert ledger.note(MAIN, ["b"], most_open=1) is None
    assert ledger.note(replace(MAIN, account="another account"), ["b"], most_open=1) is not None
    ledger.end(first, Stage.DONE)
    assert ledger.note(MAIN, ["c"], most_open=1) is not None


def test_what_comes_back_leaves_the_job_and_the_rest_goes_the_normal_way(ledger: BatchLedger) -> None:
    reference = _noted(ledger, "a", "b", "c", "d")
    ledger.settle(reference, {"a"}, taken=1)
    assert ledger.hashes_in(reference) == {"b", "c", "d"}
    assert ledger.inline_hashes("an identity") == set()
    assert ledger.end(reference, Stage.EXPIRED, "too late") == 3
    job = ledger.job(reference)
    assert job is not None
    assert (job.stage, job.taken, job.left, job.message, job.open) == (Stage.EXPIRED, 1, 0, "too late", False)
    assert ledger.inline_hashes("an identity") == {"b", "c", "d"}
    assert ledger.hashes("an identity") == set()


def test_texts_of_a_job_that_was_no_fault_of_theirs_may_go_into_another_one(ledger: BatchLedger) -> None:
    reference = _noted(ledger, "a", "b", "c")
    ledger.leave_out(reference, {"c"})
    job = ledger.job(reference)
    assert job is not None
    assert (job.texts, job.left) == (2, 2)
    ledger.end(reference, Stage.CANCELLED, again=True)
    assert ledger.inline_hashes("an identity") == set()
    assert ledger.note(MAIN, ["a", "b", "c"], most_open=10) is not None


def test_looks_and_failed_calls_are_noted(ledger: BatchLedger, clock: Clock) -> None:
    reference = _noted(ledger, "a")
    ledger.tried(reference, "no answer", look_at=7.0)
    ledger.tried(reference, "no answer again", look_at=9.0)
    job = ledger.jobs()[0]
    assert (job.attempts, job.message, job.look_at, job.tried_at) == (2, "no answer again", 9.0, clock.now)
    clock.now += 1
    ledger.looked(reference, JobProgress(JobState.RUNNING, total=10, completed=3, failed=1), look_at=11.0)
    job = ledger.jobs()[0]
    assert (job.attempts, job.message, job.total, job.completed, job.failed) == (0, "", 10, 3, 1)
    assert (job.looked_at, job.look_at) == (clock.now, 11.0)
    ledger.postpone(reference, look_at=12.0)
    assert ledger.jobs()[0].look_at == 12.0


def test_a_job_is_stopped_once(ledger: BatchLedger, clock: Clock) -> None:
    reference = _noted(ledger, "a")
    ledger.submitted(reference, "batch-1", look_at=clock.now + 100)
    assert ledger.stop(reference, "because")
    assert not ledger.stop(reference, "again")
    job = ledger.jobs()[0]
    assert (job.stop_reason, job.stopped_at, job.look_at, job.stage) == ("because", clock.now, 0.0, Stage.RUNNING)
    ledger.stopping(reference, look_at=1.0)
    assert ledger.jobs()[0].stage is Stage.STOPPING
    ledger.end(reference, Stage.CANCELLED)
    assert not ledger.stop(reference, "it is over")
    assert not ledger.stop("nobody", "there is none")


def test_failures_in_a_row_suspend_an_identity_for_a_while(ledger: BatchLedger, clock: Clock) -> None:
    assert ledger.failed("an identity", "one", most=2, pause_seconds=A_DAY) == 1
    assert ledger.suspension("an identity") is None
    ledger.succeeded("an identity")
    assert ledger.failed("an identity", "one", most=2, pause_seconds=A_DAY) == 1
    assert ledger.failed("an identity", "two", most=2, pause_seconds=A_DAY) == 2
    suspension = ledger.suspension("an identity")
    assert suspension is not None
    assert (suspension.until, suspension.reason) == (clock.now + A_DAY, "two")
    assert ledger.suspension("another identity") is None
    clock.now += A_DAY
    assert ledger.suspension("an identity") is None
    assert ledger.failed("an identity", "three", most=2, pause_seconds=A_DAY) == 3
    assert ledger.suspension("an identity") is not None, "one more attempt, not two"


def test_what_is_over_is_cleared_away_after_a_while(ledger: BatchLedger, clock: Clock) -> None:
    over, open_ = _noted(ledger, "a"), _noted(ledger, "b")
    ledger.end(over, Stage.FAILED)
    clock.now += A_DAY
    ledger.clear_away(older_than_seconds=2 * A_DAY)
    assert len(ledger.jobs()) == 2
    clock.now += 2 * A_DAY
    ledger.clear_away(older_than_seconds=2 * A_DAY)
    assert [job.reference for job in ledger.jobs()] == [open_]
    assert ledger.inline_hashes("an identity") == set()


def test_one_works_on_an_agents_jobs_at_a_time(ledger: BatchLedger, tmp_path: Path) -> None:
    granted: list[tuple[str, bool]] = []

    def elsewhere() -> None:
        with BatchLedger(tmp_path / "cache" / "batch_jobs.sqlite") as second:
            for agent in ("main", "other"):
                with second.working_on(agent) as alone:
                    granted.append((agent, alone))

    with ledger.working_on("main") as alone:
        assert alone
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    assert granted == [("main", False), ("other", True)]
    with ledger.working_on("main") as alone:
        assert alone


def test_two_who_note_jobs_at_once_share_the_texts(ledger: BatchLedger, tmp_path: Path) -> None:
    hashes = [f"text {number}" for number in range(400)]
    taken: list[str] = []

    def note(origin: Origin) -> None:
        with BatchLedger(tmp_path / "cache" / "batch_jobs.sqlite") as own:
            for start in range(0, 400, 40):
                noted = own.note(origin, hashes[start:], most_open=100)
                taken.extend(noted[1] if noted else [])

    threads = [threading.Thread(target=note, args=[origin]) for origin in (MAIN, OTHER)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == sorted(hashes)


def test_a_damaged_ledger_is_set_aside_and_begun_anew(ledger: BatchLedger, tmp_path: Path) -> None:
    _noted(ledger, *[f"text {number}" for number in range(2000)])
    file = tmp_path / "cache" / "batch_jobs.sqlite"
    with BatchLedger(file):
        pass
    ledger.close()
    with file.open("r+b") as damaged:
        damaged.write(b"\xff" * file.stat().st_size)
    for part in ("-wal", "-shm"):
        file.with_name(file.name + part).unlink(missing_ok=True)
    with BatchLedger(file) as again:
        assert again.jobs() == []
        _noted(again, "a")
    assert len(list(file.parent.glob("batch_jobs.sqlite.corrupt-*[0-9]"))) == 1


def test_the_ledger_of_another_version_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "batch_jobs.sqlite"
    with BatchLedger(file) as ledger:
        ledger._file.connection().execute("PRAGMA user_version = 99")
    with pytest.raises(StoreUnreadable, match="another version of recalld wrote"):
        BatchLedger(file)


def test_the_ledger_is_its_owners(ledger: BatchLedger, tmp_path: Path) -> None:
    assert (tmp_path / "cache" / "batch_jobs.sqlite").stat().st_mode & 0o777 == 0o600
