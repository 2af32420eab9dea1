"""The ledger of batch jobs: what is at a provider is known whatever happens."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import apsw
import psycopg
import pytest

from memory.embedding.batch_jobs.batch_ledger import KIND, BatchLedger, Stage, batch_jobs_of, sent_in_jobs
from memory.embedding.batch_jobs.ledger_reader import texts_in_jobs
from memory.embedding.postgres_tables import PostgresTables
from memory.embedding.providers.stub import StubProvider
from memory.store.errors import StoreUnreadable
from memory.store.postgres.connection import Database
from schemas.settings import Settings
from tests.postgres_server import Urls
from tests.storing import ledger_at
from tests.unit.memory.embedding.conftest import OpenTables


class Provider(StubProvider):
    """A provider with an account, never asked."""

    def __init__(self, *, identity: str = "an identity", account: str = "an account") -> None:
        super().__init__()
        self.name, self.model, self.identity, self.account = "openai", "a-model", identity, account


OPENAI = Provider()


@pytest.fixture
def ledger(open_tables: OpenTables) -> Iterator[BatchLedger]:
    with BatchLedger(open_tables(KIND)) as opened:
        yield opened


def test_a_job_is_noted_before_it_is_submitted_and_survives_the_process(
    ledger: BatchLedger, open_tables: OpenTables
) -> None:
    assert ledger.note("main", OPENAI, ["a", "b"], most_open=10)
    [job] = ledger.jobs()
    assert (job.job_id, job.stage, job.agent, job.texts, job.open) == (None, Stage.SUBMITTING, "main", 2, True)
    assert (job.identity, job.account, job.provider, job.model) == ("an identity", "an account", "openai", "a-model")
    changed = replace(job, job_id="batch-1", stage=Stage.RUNNING, look_at=5.0, completed=1, message="no answer")
    changed = replace(changed, missing_since=4.0, missing_looks=2)
    ledger.save(changed)
    with BatchLedger(open_tables(KIND)) as again:
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
def test_a_ledger_of_another_format_is_left_alone_and_named(tmp_path: Path, change: str) -> None:
    path = tmp_path / "cache" / "batch_jobs.sqlite"
    with ledger_at(path) as ledger:
        ledger.note("main", OPENAI, ["a", "b"], most_open=10)
    other = apsw.Connection(str(path))
    other.execute(change)
    other.close()
    with pytest.raises(StoreUnreadable, match="move it away"), ledger_at(path) as again:
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


def test_an_old_job_is_forgotten_once_it_is_over_and_left_no_text(open_tables: OpenTables) -> None:
    now = [1000.0]
    with BatchLedger(open_tables(KIND), clock=lambda: now[0]) as ledger:
        for text_hash in ("a", "b", "c"):
            ledger.note("main", OPENAI, [text_hash], most_open=10)
        done, lost, running = ledger.jobs()
        ledger.save(replace(done, stage=Stage.DONE, ended_at=1500.0), without=["a"])
        ledger.save(replace(lost, stage=Stage.LOST, ended_at=1500.0))
        for age, jobs in ((500.0, 3), (501.0, 2)):
            now[0] = 1000.0 + age
            ledger.clear_away(older_than_seconds=500.0)
            assert len(ledger.jobs()) == jobs
        assert ledger.everything() == {("an identity", "c")}
        assert [(job.stage, job.rest) for job in ledger.jobs()] == [(Stage.FAILED, "next_job"), (running.stage, "none")]


def test_texts_that_a_job_left_go_into_another_one_until_they_wait(ledger: BatchLedger) -> None:
    ledger.note("main", OPENAI, ["a", "b"], most_open=10)
    for number in (2, 3, 4):
        job = ledger.jobs()[-1]
        assert ledger.note("main", OPENAI, ["a"], most_open=10, number=number) == set(), "it is in an open job"
        ledger.save(replace(job, stage=Stage.EXPIRED, ended_at=5.0))
        *_, over = ledger.jobs()
        assert over.rest == ("next_job" if number < 4 else "waits")
        if number < 4:
            assert ledger.note("main", OPENAI, ["a"], most_open=10, number=over.number + 1) == {"a"}
    assert [job.number for job in ledger.jobs()] == [1, 2, 3]
    assert [ledger.hashes_in(job.reference) for job in ledger.jobs()] == [{"b"}, set(), {"a"}]
    assert ledger.sent("an identity", ["a", "b", "c"]) == {"a", "b"}
    assert (ledger.resume("other"), ledger.resume("main")) == (0, 2)
    assert (ledger.jobs()[2].rest, ledger.jobs()[2].number) == ("next_job", 0)


def test_of_several_workers_one_notes_a_text_and_no_more_jobs_than_may_be_open(open_tables: OpenTables) -> None:
    shared = [f"text {number}" for number in range(100)]
    together = Barrier(8)

    def note(turn: int) -> set[str]:
        with BatchLedger(open_tables(KIND)) as ledger:
            hashes = [f"text of worker {turn}", *shared[:: 1 if turn % 2 else -1]]
            together.wait()
            return ledger.note("main", OPENAI, hashes, most_open=3)

    with ThreadPoolExecutor(8) as workers:
        noted = [texts for texts in workers.map(note, range(8)) if texts]
    with BatchLedger(open_tables(KIND)) as ledger:
        assert sorted(job.texts for job in ledger.jobs()) == sorted(map(len, noted)) == [1, 1, 101]
        assert len(ledger.hashes("an identity")) == 103


def test_texts_leave_a_job_as_their_vectors_are_kept(ledger: BatchLedger) -> None:
    ledger.note("main", OPENAI, ["a", "b", "c"], most_open=10)
    ledger.note("main", OPENAI, ["d"], most_open=10)
    first, second = ledger.jobs()
    ledger.settle(first.reference, ["a", "d"])
    ledger.save(first, without=["b", "d"])
    assert (ledger.hashes_in(first.reference), ledger.hashes_in(second.reference)) == ({"c"}, {"d"})
    assert [job.taken for job in ledger.jobs()] == [2, 0]
    assert ledger.sent("an identity", ["a", "c", "d", "e"]) == {"c", "d"}


def test_one_worker_at_a_time_works_on_an_agent_s_jobs(open_tables: OpenTables) -> None:
    first, second = BatchLedger(open_tables(KIND)), BatchLedger(open_tables(KIND))
    with first.working_on("main") as is_first, second.working_on("main") as is_second:
        with second.working_on("other") as is_other:
            assert (is_first, is_second, is_other) == (True, False, True)
        with second.working_on("main") as is_again:
            assert not is_again
    with second.working_on("main") as is_second:
        assert is_second


def test_a_worker_that_died_holds_an_agent_s_jobs_until_its_lease_ends(database: Database, fleet_urls: Urls) -> None:
    dead, alive = (BatchLedger(PostgresTables(database, "acme")) for _ in range(2))
    with dead.working_on("main"):
        with alive.working_on("main") as is_alone:
            assert not is_alone
        set_back = "UPDATE recalld.leases SET expires_at = now() - interval '1 second'"
        with psycopg.connect(fleet_urls.superuser) as administrator:
            administrator.execute(set_back)
        with alive.working_on("main") as is_alone:
            assert is_alone


def test_a_tenant_sees_its_own_jobs_alone(database: Database) -> None:
    acme, other = (BatchLedger(PostgresTables(database, tenant)) for tenant in ("acme", "other"))
    acme.note("acme/main", OPENAI, ["a"], most_open=1)
    assert other.note("other/main", OPENAI, ["a"], most_open=1) == {"a"}
    [job] = acme.jobs()
    assert [job.agent for job in other.jobs()] == ["other/main"]
    assert not other.stop(job.reference, "cancelled")
    other.settle(job.reference, ["a"])
    assert acme.everything() == other.everything() == {("an identity", "a")}
    with acme.working_on("main"), other.working_on("main") as is_alone:
        assert is_alone


def test_a_reader_counts_a_tenant_s_texts_and_writes_nothing(tmp_path: Path, fleet_urls: Urls) -> None:
    writer, reader = (
        Settings.model_validate({"home": tmp_path, "store": {"url": url}})
        for url in (fleet_urls.writer, fleet_urls.reader)
    )
    with BatchLedger.of(writer, "acme") as ledger:
        ledger.note("acme/main", OPENAI, ["a", "b"], most_open=10)
    assert [job.agent for job in batch_jobs_of(reader, "acme/main", "acme/second")] == ["acme/main"]
    assert batch_jobs_of(reader, "other/main") == []
    assert sent_in_jobs(reader, "acme", "an identity", ["a", "c"]) == {"a"}
    for agent, texts in (("acme/main", 2), ("acme/second", 0), ("other/main", 0)):
        assert texts_in_jobs(reader, agent, looked_within_seconds=60) == texts
    with BatchLedger.of(reader, "acme") as ledger, pytest.raises(StoreUnreadable):
        ledger.note("acme/main", OPENAI, ["c"], most_open=10)
