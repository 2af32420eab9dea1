"""`recalld jobs`, and `recalld index` beside batch jobs that nobody waits for."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.batch_server import BatchServer, JobScript
from tests.daemon import recalld

NOTES = 210


@pytest.fixture
def texts(workspace: Path) -> Counter[str]:
    found = [f"The heron number {number} stands in the reeds." for number in range(NOTES)]
    for number, text in enumerate(found):
        (workspace / "memory" / f"{number}.md").write_text(text, "utf-8")
    return Counter(found)


@pytest.fixture
def environment(server: BatchServer) -> dict[str, str]:
    return {
        "RECALLD_PROVIDER": "openai",
        "RECALLD_REMOTE__BASE_URL": server.url,
        "RECALLD_REMOTE__API_KEY": "a-key",
        "RECALLD_REMOTE__BATCH__ENABLED": "true",
        "RECALLD_REMOTE__BATCH__WAIT": "false",
        "RECALLD_REMOTE__BATCH__POLL_INTERVAL_MS": "100",
    }


def _jobs(home: Path, environment: dict[str, str]) -> dict[str, Any]:
    answer = recalld("jobs", "--json", home=home, environment=environment)
    assert answer.returncode == 0, answer.stderr
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


@pytest.mark.long
def test_index_leaves_a_batch_job_at_its_provider_and_the_next_one_reads_it(
    home: Path, workspace: Path, server: BatchServer, texts: Counter[str], environment: dict[str, str]
) -> None:
    server.open.clear()
    first = recalld("index", "--workspace", str(workspace), home=home, environment=environment)
    assert first.returncode == 0, first.stderr
    assert f"{NOTES} chunks wait" in first.stdout
    answer = _jobs(home, environment)
    [job] = answer["batchJobs"]
    assert (job["state"], job["texts"], job["provider"], job["agent"]) == ("running", NOTES, "openai", "main")
    assert answer["queue"] is None, "nothing runs"
    shown = recalld("jobs", home=home, environment=environment).stdout
    assert all(word in shown for word in (job["reference"], "main", job["model"], job["state"]))
    server.open.set()
    second = recalld("index", "--json", home=home, environment=environment | {"RECALLD_REMOTE__BATCH__WAIT": "true"})
    assert second.returncode == 0, second.stderr
    [report] = json.loads(second.stdout)["agents"]
    assert (report["vectorsReady"], report["vectorsPending"], report["inBatchJobs"]) == (NOTES, 0, False)
    assert server.paid == texts
    assert not server.paid_inline
    [job] = _jobs(home, environment)["batchJobs"]
    assert (job["state"], job["taken"]) == ("done", NOTES)


@pytest.mark.long
@pytest.mark.parametrize("away", [False, True])
def test_a_batch_job_is_cancelled_by_its_name(
    home: Path, workspace: Path, server: BatchServer, texts: Counter[str], environment: dict[str, str], *, away: bool
) -> None:
    server.open.clear()
    server.script(JobScript(done=50))
    recalld("index", "--workspace", str(workspace), home=home, environment=environment)
    [job] = _jobs(home, environment)["batchJobs"]
    if away:
        server.fail("POST", f"/batches/{job['jobId']}/cancel", 404)
    cancelled = recalld("jobs", "cancel", job["reference"], home=home, environment=environment)
    assert cancelled.returncode == 0, cancelled.stderr
    assert server.jobs[job["jobId"]].cancelled is not away
    assert _jobs(home, environment)["batchJobs"][0]["state"] == ("running" if away else "stopping")
    again = recalld("jobs", "cancel", job["reference"], home=home, environment=environment)
    assert again.returncode == 0, again.stderr
    assert "recalld jobs resume" in again.stdout + cancelled.stdout
    waits = recalld("index", "--json", home=home, environment=environment)
    assert (waits.returncode, json.loads(waits.stdout)["agents"][0]["vectorsPending"]) == (1, NOTES - 50)
    assert server.jobs[job["jobId"]].cancelled
    assert (server.paid.total(), server.paid_inline.total(), len(server.submitted)) == (50, 0, 1)
    server.open.set()
    assert "1 batch job resumed" in recalld("jobs", "resume", home=home, environment=environment).stdout
    done = recalld("index", "--json", home=home, environment=environment | {"RECALLD_REMOTE__BATCH__WAIT": "true"})
    assert json.loads(done.stdout)["agents"][0]["vectorsPending"] == 0
    assert (server.paid, server.paid_inline) == (texts, Counter())
    for reference, code in ((job["reference"], 1), ("0123", 3)):  # over, and unknown
        refused = recalld("jobs", "cancel", reference, home=home, environment=environment)
        assert refused.returncode == code
        assert reference in refused.stderr


def test_a_broker_that_is_away_is_reported_and_none_that_is_not_needed(home: Path, workspace: Path) -> None:
    home.mkdir()
    (home / "recalld.toml").write_text(f'[[agents]]\nid = "main"\nworkspace = "{workspace}"\n', "utf-8")
    resting = _jobs(home, {})
    assert (resting["batchJobs"], resting["queue"], resting["queueProblem"]) == ([], None, None)
    told = recalld("jobs", "--json", home=home, environment={"REDIS_URL": "redis://127.0.0.1:1/0"})
    answer = json.loads(told.stdout)
    assert (told.returncode, answer["queue"], told.stderr) == (1, None, f"recalld: {answer['queueProblem']}\n")
