"""`recalld backfill --batch-api`: through the provider's Batch API for this one command, or refused in one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.batch_server import BatchServer
from tests.commanding import CommandLine
from tests.transcript_files import FORMATS, transcript


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
    normal = commands.json("backfill", str(old), "--dry-run")["estimate"]
    done = commands.json("backfill", str(old), "--batch-api")
    assert (normal["batch"], done["estimate"]["batch"]) == (False, True)
    assert done["estimate"]["dollars"] == pytest.approx(normal["dollars"] / 2)
    assert done["estimate"]["toEmbed"] == server.paid.total() == len(server.paid)
    assert not server.paid_inline
    assert len(server.jobs) == 1
    assert done["result"]["vectorsReady"] == done["result"]["chunks"]


def test_what_is_too_little_for_a_job_goes_the_normal_way_and_is_priced_so(commands: CommandLine, old: Path) -> None:
    done = commands.json("backfill", str(old / "plain.jsonl"), "--batch-api")
    assert done["estimate"]["batch"] is False
    assert done["estimate"]["toEmbed"] == commands.server.paid_inline.total()
    assert not commands.server.jobs


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
