"""The ledger of batch jobs: what is at a provider is known whatever happens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from memory.embedding.batch_jobs.batch_ledger import BatchLedger, Stage
from memory.embedding.providers.stub import StubProvider


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
