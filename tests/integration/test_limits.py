"""Backfills under a provider's limits: one command runs to its end, in few requests, and pays for each text once."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commanding import CommandLine
from tests.daemon import REPOSITORY, Daemon
from tests.embedding_server import EmbeddingServer, Failure
from tests.transcript_files import message_line

#: Tokens of a request to Mistral, whose requests are small, and bytes of a token.
REQUEST_TOKENS, TOKEN_BYTES = 13_000, 4

#: Seconds of a minute of the endpoint: shorter than a request's patience, and longer.
SHORT, LONG = 3.0, 6.0


@pytest.fixture
def mistral(commands: CommandLine, server: EmbeddingServer) -> CommandLine:
    """Commands whose requests are full with some 32 chunks."""
    commands.set("RECALLD_PROVIDER", "mistral")
    return commands


def write_sessions(folder: Path, *, requests: float) -> Path:
    """Write transcripts that fill so many requests."""
    folder.mkdir(exist_ok=True)
    for number in range(4):
        lines = []
        while sum(map(len, lines)) < requests * REQUEST_TOKENS * TOKEN_BYTES / 4:
            words = f"{number} {len(lines)} " + " ".join(f"word{len(lines)}x{place}" for place in range(110))
            lines.append(message_line("plain", "user", words))
        (folder / f"{number}.jsonl").write_bytes(b"".join(lines))
    return folder


def needed_requests(server: EmbeddingServer) -> int:
    return math.ceil(sum(len(text.encode()) for text in server.texts) / TOKEN_BYTES / REQUEST_TOKENS)


@pytest.mark.long
@pytest.mark.parametrize(("a_minute", "requests", "concurrency"), [(5, 14, 1), (20, 28, 4)])
def test_one_backfill_runs_to_its_end_in_few_requests_under_a_limit(
    mistral: CommandLine, server: EmbeddingServer, tmp_path: Path, a_minute: int, requests: int, concurrency: int
) -> None:
    mistral.set("RECALLD_REMOTE__CONCURRENCY", str(concurrency))
    server.a_minute, server.minute_seconds = a_minute, SHORT
    code, out, err = mistral.run("backfill", str(write_sessions(tmp_path / "old", requests=requests)), "--json")
    assert code == 0, err
    needed = needed_requests(server)
    assert needed > a_minute
    assert server.failures[429] >= 1
    assert server.requests <= math.ceil(1.2 * needed), (needed, server.requests, server.failures)
    assert server.minutes <= math.ceil(needed / a_minute) + 1
    assert server.paid_twice == set()
    assert json.loads(out)["result"]["vectorsPending"] == 0
    assert len(re.findall(r"until \d\d:\d\d:\d\d; ", err)) == 1, "it says once how long it waits"


# No machine is so slow that the index misses the minute.
@pytest.mark.long
@pytest.mark.parametrize(("command", "code", "minute_seconds"), [("backfill", 0, LONG), ("index", 1, 600.0)])
def test_a_wait_that_is_longer_than_an_index_waits_is_no_end_of_a_backfill(
    mistral: CommandLine,
    server: EmbeddingServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    code: int,
    minute_seconds: float,
) -> None:
    monkeypatch.setattr("recalld.runs.by_workers._LONGEST_COOL_DOWN_SECONDS", 1.0)
    server.a_minute, server.minute_seconds = 2, minute_seconds
    old = write_sessions(tmp_path / "old", requests=3)
    mistral.configure(f'sessions = ["{old}"]')
    ended, _, err = mistral.run(command, *([str(old)] if command == "backfill" else []))
    assert ended == code, err


@pytest.mark.long
def test_a_wait_under_a_daemon_is_said_with_its_reason_and_end(
    home: Path, workspace: Path, server: EmbeddingServer, tmp_path: Path
) -> None:
    server.a_minute, server.minute_seconds = 2, LONG
    remote = f'[remote]\nbase_url = "{server.url}"\napi_key = "a-key"\n'
    with Daemon(home, workspace, provider="mistral", config=remote) as daemon:
        ended = daemon.run("backfill", str(write_sessions(tmp_path / "old", requests=5)))
    assert ended.returncode == 0, ended.stderr
    assert re.search(r"asks recalld to wait until \d\d:\d\d:\d\d; ", ended.stderr), ended.stderr
    assert server.paid_twice == set()


def test_an_account_that_is_empty_ends_it_and_the_same_command_goes_on(
    mistral: CommandLine, server: EmbeddingServer, tmp_path: Path
) -> None:
    old = str(write_sessions(tmp_path / "old", requests=8))
    server.fail_next(None, times=3)
    server.fail_next(Failure(status=429, code="insufficient_quota", message="top up"), times=1_000)
    code, out, _ = mistral.run("backfill", old, "--json")
    body = json.loads(out)
    assert (code, body["interrupted"], body["result"]["code"]) == (1, False, "vectors_wait")
    assert "credit" in body["result"]["stopped"]
    assert server.distinct > 0
    assert body["result"]["vectorsPending"] > 0
    server.recover()
    assert mistral.json("backfill", old)["result"]["vectorsPending"] == 0
    assert server.paid_twice == set()


@pytest.mark.long
def test_a_second_backfill_joins_the_first(mistral: CommandLine, server: EmbeddingServer, tmp_path: Path) -> None:
    old = write_sessions(tmp_path / "old", requests=8)
    server.a_minute, server.minute_seconds = 5, SHORT
    command = [sys.executable, "-m", "recalld", "--home", str(mistral.home), "backfill", str(old), "--json"]
    runs = [subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    bodies = [json.loads(run.communicate(timeout=120)[0]) for run in runs]
    assert [run.returncode for run in runs] == [0, 0], bodies
    assert server.paid_twice == set()
    assert server.requests <= math.ceil(1.2 * needed_requests(server)) + 1
