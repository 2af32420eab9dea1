"""`recalld backfill --batch-api`: through the provider's Batch API for this one command, or refused in one sentence."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.batch_server import BatchServer, JobScript
from tests.commanding import CommandLine
from tests.daemon import Daemon
from tests.transcript_files import FORMATS, transcript
from tests.waiting import wait_until


@pytest.fixture
def server() -> Iterator[BatchServer]:
    with BatchServer() as running:
        yield running


@pytest.fixture
def commands(commands: CommandLine) -> CommandLine:
    commands.set("RECALLD_REMOTE__BATCH__POLL_INTERVAL_MS", "100")
    return commands


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Enough for a job."""
    folder = tmp_path / "old"
    folder.mkdir()
    for seed, name in enumerate(FORMATS):
        (folder / f"{name}.jsonl").write_bytes(transcript(name, turns=150, seed=seed))
    return folder


def test_everything_goes_through_one_job_at_its_price(commands: CommandLine, server: BatchServer, old: Path) -> None:
    # Only these estimates read everything: before a backfill that is done, a busy machine reads a sample.
    normal = commands.json("backfill", str(old), "--dry-run")["estimate"]
    batch = commands.json("backfill", str(old), "--dry-run", "--batch-api")["estimate"]
    assert (normal["batch"], batch["batch"]) == (False, True)
    assert batch["dollars"] == pytest.approx(normal["dollars"] / 2)
    done = commands.json("backfill", str(old), "--batch-api")
    assert done["estimate"]["batch"]
    assert batch["toEmbed"] == server.paid.total() == len(server.paid)
    assert not server.paid_inline
    assert len(server.jobs) == 1
    assert done["result"]["vectorsReady"] == done["result"]["chunks"]


def test_what_is_too_little_for_a_job_goes_the_normal_way_and_is_priced_so(commands: CommandLine, old: Path) -> None:
    done = commands.json("backfill", str(old / "plain.jsonl"), "--batch-api")
    assert done["estimate"]["batch"] is False
    assert done["estimate"]["toEmbed"] == commands.server.paid_inline.total()
    assert not commands.server.jobs


def test_a_batch_that_expires_at_half_is_completed_by_one_further_job(
    commands: CommandLine, server: BatchServer, old: Path
) -> None:
    estimate = commands.json("backfill", str(old), "--dry-run")["estimate"]
    half, server.tokens = estimate["toEmbed"] // 2, 50
    server.script(JobScript(ends="expired", done=half))
    result = commands.json("backfill", str(old), "--batch-api")["result"]
    assert (result["vectorsReady"], result["vectorsPending"]) == (result["chunks"], 0)
    assert (server.paid.total(), len(server.paid)) == (estimate["toEmbed"], estimate["toEmbed"]), "nothing twice"
    assert (len(server.submitted), server.paid_inline.total()) == (2, 0)
    [spent] = result["spent"]
    assert spent["tokens"] == spent["batched"] == server.paid.total() * server.tokens
    [first, second] = commands.json("jobs")["batchJobs"]
    assert (first["taken"], first["rest"], second["taken"]) == (half, "next_job", estimate["toEmbed"] - half)
    shown = commands.say("jobs")
    assert f"{half:,} of {estimate['toEmbed']:,} texts have their vectors" in shown
    assert "the rest goes into another job" in shown
    assert not list((commands.home / "cache").rglob("*.chosen")), "the next backfill chooses anew"


@pytest.mark.long
def test_after_three_expirations_the_command_ends_and_names_the_one_that_goes_on(
    commands: CommandLine, server: BatchServer, old: Path
) -> None:
    server.script(*[JobScript(ends="expired", done=20)] * 3)
    code, out, err = commands.run("backfill", str(old), "--batch-api")
    assert code == 1, out + err
    assert "recalld jobs resume" in err
    assert (server.paid.total(), server.paid_inline.total()) == (60, 0)
    assert commands.json("jobs")["batchJobs"][-1]["rest"] == "waits"
    commands.say("jobs", "resume")
    commands.say("index")
    assert server.paid.total() == len(server.paid) > 200
    assert (len(server.submitted), server.paid_inline.total()) == (4, 0)


def test_texts_that_wait_for_a_yes_go_through_the_batch_api_after_it(
    commands: CommandLine, server: BatchServer, old: Path
) -> None:
    commands.set("RECALLD_COST__ASK_ABOVE", "0")
    commands.set("RECALLD_REMOTE__PRICE_PER_MILLION_TOKENS", "1")
    code, out, err = commands.run("backfill", str(old), "--batch-api")
    assert (code, server.paid.total()) == (4, 0), out + err
    commands.say("index", "--yes")
    assert server.paid.total() == len(server.paid) > 200
    assert (len(server.submitted), server.paid_inline.total()) == (1, 0)


@pytest.mark.long
def test_the_choice_reaches_a_daemon_that_runs(home: Path, workspace: Path, server: BatchServer, old: Path) -> None:
    remote = f'[remote]\nbase_url = "{server.url}"\napi_key = "a-key"\nbatch.poll_interval_ms = 100\n'
    server.script(JobScript(ends="expired", done=100))
    with Daemon(home, workspace, provider="openai", config=remote) as daemon:
        done = daemon.run("backfill", str(old), "--batch-api", "--json")
        assert done.returncode == 0, done.stderr
        assert server.paid.total() == len(server.paid) == json.loads(done.stdout)["result"]["vectorsReady"]
        assert (len(server.submitted), server.paid_inline.total()) == (2, 0)
        daemon.write("memory/today.md", "A kingfisher came by.")
        wait_until(lambda: server.paid_inline, what="a live note is sent without a job")
        wait_until(lambda: daemon.status()["usage"][0]["total"]["inputs"] == server.paid.total())
        [usage] = daemon.status()["usage"]
        singly, batched = server.tokens, usage["total"]["tokens"] - server.tokens
        assert usage["total"]["dollars"] == pytest.approx(0.02 * (batched / 2 + singly) / 1e6, abs=1e-6)


@pytest.mark.long
def test_a_cancelled_backfill_ends_its_batch_jobs_and_what_resumes_is_paid_once(
    home: Path, workspace: Path, server: BatchServer, old: Path
) -> None:
    remote = (
        f'[remote]\nbase_url = "{server.url}"\napi_key = "a-key"\nbatch.poll_interval_ms = 100\nbatch.wait = false\n'
    )
    server.open.clear()
    server.script(JobScript(done=100))
    with Daemon(home, workspace, provider="openai", config=remote) as daemon:
        assert daemon.run("backfill", str(old), "--batch-api", "--yes").returncode == 0
        [job] = server.jobs.values()
        cancelled = daemon.run("backfill", "--cancel")
        assert cancelled.returncode == 0, cancelled.stderr
        assert job.cancelled
        wait_until(lambda: server.paid.total() == 100)
        assert daemon.status()["index"]["vectorsPending"] == 0
        server.open.set()
        daemon.run("backfill", "--resume")
        wait_until(lambda: daemon.status()["index"]["vectorsReady"] == server.paid.total() > 200)
        assert server.paid.total() == len(server.paid)
        assert not server.paid_inline


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("RECALLD_PROVIDER", "ollama", "speaks no Batch API of ollama"),
        ("RECALLD_PROVIDER", "none", "needs an embedding provider"),
        ("RECALLD_CACHE__ENABLED", "false", "cache.enabled = true"),
    ],
)
def test_it_is_refused_where_it_would_not_be_used(
    commands: CommandLine, server: BatchServer, old: Path, home: Path, name: str, value: str, says: str
) -> None:
    commands.set(name, value)
    code, out, err = commands.run("backfill", str(old), "--batch-api")
    assert (code, out) == (2, "")
    assert says in err
    assert len(err.splitlines()) == 1
    assert not home.exists()
    assert not server.calls
