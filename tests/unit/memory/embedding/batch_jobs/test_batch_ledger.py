"""The ledger of batch jobs: what is at a provider is known whatever happens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import apsw
import pytest

from memory.embedding.batch_jobs.batch_ledger import BatchLedger, Stage
from memory.embedding.providers.stub import StubProvider
from memory.store.errors import StoreUnreadable


class Provider(StubProvider):
    """A provider with an account, never asked."""

    def __init__(self, *, identity: str = "an identity", account: str = "an account") -> None:
        super().__init__()
        self.name, self.model, self.identity, self.account = "openai", "a-model", identity, account


OPENAI = Provider()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "batch_jobs.sqlite"


@pytest.fixture
def ledger(path: Path) -> Iterator[BatchLedger]:
    with BatchLedger(path) as opened:
        yield opened


def test_a_job_is_noted_before_it_is_submitted_and_survives_the_process(ledger: BatchLedger, path: Path) -> None:
    assert ledger.note("main", OPENAI, ["a", "b"], most_open=10)
    [job] = ledger.jobs()
    assert (job.job_id, job.stage, job.agent, job.texts, job.open) == (None, Stage.SUBMITTING, "main", 2, True)
    assert (job.identity, job.account, job.provider, job.model) == ("an identity", "an account", "openai", "a-model")
    changed = replace(job, job_id="batch-1", stage=Stage.RUNNING, look_at=5.0, completed=1, message="no answer")
    changed = replace(changed, missing_since=4.0, missing_looks=2)
    ledger.save(changed)
    with BatchLedger(path) as again:
        assert again.jobs() == [changed]


def test_a_text_is_in_one_job_of_an_identity_at_most(ledger: BatchLedger) -> None:
    ledger.note("main", OPENAI, ["a", "b"], most_open=10)
    assert ledger.note("other", OPENAI, ["b", "c"], most_open=10) == {"c"}
    assert ledger.note("other", OPENAI, ["a", "b", "c"], most_open=10) == set()
    assert ledger.hashes("an identity") == {"a", "b", "c"}
    assert ledger.note("main", Provider(identity="another identity"), ["a"], most_open=10) == {"a"}
    assert ledger.hashes("another identity") == {"a"}
    assert ledger.hashes("a third one") == set()
    assert len(ledger.everything()) == 4


@pytest.mark.parametrize("change", ["ALTER TABLE jobs DROP COLUMN missing_since", "PRAGMA user_version = 9"])
def test_a_ledger_of_another_format_is_left_alone_and_named(ledger: BatchLedger, path: Path, change: str) -> None:
    ledger.note("main", OPENAI, ["a", "b"], most_open=10)
    other = apsw.Connection(str(path))
    other.execute(change)
    other.close()
    with pytest.raises(StoreUnreadable, match="move it away"), BatchLedger(path) as again:
        again.jobs()


def test_a_lost_job_may_be_found_and_what_is_over_stays_so(ledger: BatchLedger) -> None:
    ledger.note("main", OPENAI, ["a"], most_open=10)
    [job] = ledger.jobs()
    for stage, found in ((Stage.LOST, Stage.RUNNING), (Stage.DONE, Stage.DONE)):
        ledger.save(replace(job, stage=stage, ended_at=5.0))
        assert ledger.hashes("an identity") == set()
        ledger.save(replace(job, stage=Stage.RUNNING))
        assert [job.stage for job in ledger.jobs()] == [found]


def test_the_wish_to_stop_stays_and_its_time_becomes_that_of_the_provider(ledger: BatchLedger) -> None:
    ledger.note("main", OPENAI, ["a"], most_open=10)
    [job] = ledger.jobs()
    assert ledger.stop(job.reference, "cancelled")
    [stopped] = ledger.jobs()
    ledger.save(job)
    assert ledger.jobs() == [stopped]
    assert stopped.stopped_at is not None
    taken = replace(stopped, stopped_at=stopped.stopped_at + 5.0)
    ledger.save(taken)
    ledger.save(stopped)
    assert ledger.jobs() == [taken]


def test_a_lost_job_is_forgotten_by_its_age_and_an_open_one_is_not(path: Path) -> None:
    now = [1000.0]
    with BatchLedger(path, clock=lambda: now[0]) as ledger:
        for text_hash in ("a", "b"):
            ledger.note("main", OPENAI, [text_hash], most_open=10)
        lost, running = ledger.jobs()
        ledger.save(replace(lost, stage=Stage.LOST, ended_at=1500.0))
        for age, jobs in ((500.0, 2), (501.0, 1)):
            now[0] = 1000.0 + age
            ledger.clear_away(older_than_seconds=500.0)
            assert len(ledger.jobs()) == jobs
        assert ledger.everything() == {("an identity", "b")}
        assert ledger.known_hashes("an identity") == ledger.hashes_in(running.reference) == {"b"}
