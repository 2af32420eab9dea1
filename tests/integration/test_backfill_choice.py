"""The transcripts that a backfill takes: by the times of their messages, by project and program; and for how long."""

from __future__ import annotations

import json
import os
import shutil
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.commanding import CommandLine
from tests.transcript_files import message_line

if sys.version_info >= (3, 14):
    from compression.zstd import compress
else:
    from backports.zstd import compress


def session(format_name: str, *months: int, cwd: str | None = None) -> bytes:
    """A session with a message in each of these months of 2026, and tool output of 100 kB between them."""
    lines = [] if cwd is None else [json.dumps({"type": "x", "cwd": cwd}).encode() + b"\n"]
    for month in months:
        at = datetime(2026, month, 15, 12, tzinfo=UTC)
        lines += [message_line(format_name, "user", f"The {format_name} heron of {at:%B}.", at=at)]
        lines += [json.dumps({"type": "noise", "text": "x" * 100_000}).encode() + b"\n"]
    return b"".join(lines)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """Old sessions of three programs as `cp -r` leaves them: each file was written just now."""
    files = {
        "-srv-u-shop/claude.jsonl": session("claude-code", 2, 3, cwd="/srv/u/shop"),
        "codex/may.jsonl": session("codex", 5, cwd="/srv/u/garden/beds"),
        "codex/spring.jsonl": session("codex", 3, 4, 5, cwd="/srv/u/shop"),
        "packed.jsonl.zst": compress(session("plain", 6)),
        "summer.jsonl": session("plain", 2, 7),
    }
    for name, content in files.items():
        (tmp_path / "old" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "old" / name).write_bytes(content)
    shutil.copytree(tmp_path / "old", tmp_path / "copied", copy_function=shutil.copyfile)
    return tmp_path / "copied"


def indexed(commands: CommandLine, query: str = "heron") -> set[str]:
    """Names of the files that a search finds."""
    results = commands.json("search", query, "-n", "50")["results"]
    return {Path(result["path"]).name for result in results}


@pytest.mark.parametrize(
    ("options", "count", "left_out"),
    [
        (["--since", "2026-05"], 4, {"date": 1}),
        (["--since", "2026-04", "--until", "2026-05-01"], 1, {"date": 4}),  # a message in the middle
        (["--until", "2026-03-01"], 2, {"date": 3}),
        (["--project", "shop"], 2, {"project": 3}),  # the folder, and what Codex notes
        (["--project", "garden/*"], 1, {"project": 4}),
        (["--program", "codex", "--program", "claude-code", "--exclude", "beds"], 2, {"program": 2, "exclusion": 1}),
        (["--exclude", "packed.jsonl*", "--limit", "1"], 1, {"exclusion": 1, "limit": 3}),
    ],
)
def test_copies_are_chosen_by_their_messages_program_and_project(
    commands: CommandLine, copied: Path, options: list[str], count: int, left_out: dict[str, int]
) -> None:
    plan = commands.json("backfill", str(copied), "--dry-run", *options)
    assert (plan["transcripts"], plan["leftOutBy"]) == (count, left_out)
    assert plan["leftOut"] == sum(left_out.values())
    assert f"by {next(iter(left_out))}" in commands.say("backfill", str(copied), "--dry-run", *options)


def test_a_time_that_no_search_knows_is_one_sentence(commands: CommandLine, copied: Path) -> None:
    code, _, err = commands.run("backfill", str(copied), "--since", "the day of days")
    assert code == 2
    assert "no time that recalld understands" in err


def test_message_times_are_read_once(commands: CommandLine, copied: Path) -> None:
    commands.home.mkdir()
    may = copied / "codex" / "may.jsonl"
    before = commands.json("backfill", str(copied), "--dry-run", "--since", "2026-06")
    written = may.stat()
    may.write_bytes(may.read_bytes().replace(b"2026-05-15", b"2026-06-15"))
    os.utime(may, ns=(written.st_atime_ns, written.st_mtime_ns))
    assert commands.json("backfill", str(copied), "--dry-run", "--since", "2026-06")["leftOut"] == before["leftOut"]
    may.touch()
    again = commands.json("backfill", str(copied), "--dry-run", "--since", "2026-06")
    assert again["leftOut"] == before["leftOut"] - 1


def test_a_rebuild_and_a_lost_index_take_in_what_was_chosen_alone(commands: CommandLine, copied: Path) -> None:
    commands.say("backfill", str(copied), "--since", "2026-06")
    assert indexed(commands) == {"packed.jsonl", "summer.jsonl"}
    commands.say("rebuild")
    assert indexed(commands) == {"packed.jsonl", "summer.jsonl"}
    shutil.rmtree(commands.home / "indexes")
    commands.say("index")
    assert indexed(commands) == {"packed.jsonl", "summer.jsonl"}
    commands.say("backfill", str(copied), "--program", "claude-code")
    shutil.rmtree(commands.home / "indexes")
    commands.say("index")
    assert indexed(commands) == {"packed.jsonl", "summer.jsonl", "claude.jsonl"}
