"""Transcripts that a backfill finds."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from memory.documents.imports import ImportedFolder
from recalld.runs.selection import TranscriptSelection
from recalld.runs.selection import find_transcripts as find


def write(path: Path, *, at: float = 1_000.0) -> Path:
    """A file that was last written at that Unix time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"{}\n")
    os.utime(path, (at, at))
    return path


find_below = partial(find, home=Path("/no/home"))


def names(found: TranscriptSelection) -> list[str]:
    return [Path(path).name for path in found.transcripts]


def test_a_folder_gives_all_transcripts_below_it_newest_first_and_nothing_else(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", at=100)
    write(tmp_path / "2026/02/b.jsonl", at=300)
    write(tmp_path / "c.jsonl.reset.2026-02-03T09-00-00.000Z", at=200)
    for name in ("a.json", "a.jsonl.bak", ".a.jsonl", "a.checkpoint.1.jsonl", ".git/a.jsonl", "node_modules/a.jsonl"):
        write(tmp_path / name)
    (tmp_path / "folder.jsonl").mkdir()
    os.mkfifo(tmp_path / "pipe.jsonl")
    outside = write(tmp_path.parent / f"{tmp_path.name}-outside" / "x.jsonl")
    (tmp_path / "link.jsonl").symlink_to(outside)
    (tmp_path / "link").symlink_to(outside.parent)
    found = find_below([tmp_path])
    assert names(found) == ["b.jsonl", "c.jsonl.reset.2026-02-03T09-00-00.000Z", "a.jsonl"]
    assert found.folders == (ImportedFolder(str(tmp_path), None, None),)
    assert found.problems == ()


def test_a_named_path_may_be_a_link_and_a_hidden_folder(tmp_path: Path) -> None:
    real = write(tmp_path / ".program/sessions/a.jsonl")
    folder = tmp_path / "link"
    folder.symlink_to(real.parent)
    file = tmp_path / "link.jsonl"
    file.symlink_to(real)
    for named in (folder, file, real.parent):
        assert list(find_below([named]).transcripts) == [str(real)]


def test_named_files_are_remembered_by_their_names_unless_their_folder_is_named_too(tmp_path: Path) -> None:
    files = [write(tmp_path / f"{number}.jsonl") for number in range(3)]
    found = find_below(files[:2], format="plain")
    assert sorted(names(found)) == ["0.jsonl", "1.jsonl"]
    assert found.folders == (ImportedFolder(str(tmp_path), "plain", ("0.jsonl", "1.jsonl")),)
    both = find_below([*files, tmp_path])
    assert both.folders == (ImportedFolder(str(tmp_path), None, None),)
    assert len(names(both)) == 3


def test_a_plain_file_and_its_compressed_twin_are_one_transcript(tmp_path: Path) -> None:
    plain = write(tmp_path / "a.jsonl", at=100)
    write(tmp_path / "a.jsonl.zst", at=200)
    alone = write(tmp_path / "b.jsonl.zst", at=150)
    found = find_below([tmp_path], limit=2)
    assert names(found) == ["b.jsonl", "a.jsonl"]
    assert [stat.inode for stat in found.transcripts.values()] == [alone.stat().st_ino, plain.stat().st_ino]
    assert found.left_out == {}


def test_dates_bound_the_last_write_and_the_limit_keeps_the_newest(tmp_path: Path) -> None:
    for day in range(5):
        write(tmp_path / f"{day}.jsonl", at=day * 86_400)
    since, until = 1 * 86_400.0, 4 * 86_400.0
    assert names(find_below([tmp_path], since=since, until=until)) == ["3.jsonl", "2.jsonl", "1.jsonl"]
    found = find_below([tmp_path], since=since, until=until, limit=2)
    assert names(found) == ["3.jsonl", "2.jsonl"]
    assert found.left_out == {"date": 2, "limit": 1}


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("gone", "gone is not there"),
        ("note.md", "note.md is no transcript"),
        ("pipe.jsonl", "pipe.jsonl is no transcript"),
        (os.fsdecode(b"caf\xe9"), "caf\\xe9 is left out: its name is not UTF-8"),
    ],
)
def test_a_path_that_is_nothing_is_a_sentence_and_the_others_count(tmp_path: Path, name: str, says: str) -> None:
    good = write(tmp_path / "good/a.jsonl")
    write(tmp_path / "note.md")
    write(tmp_path / os.fsdecode(b"caf\xe9") / "b.jsonl")
    os.mkfifo(tmp_path / "pipe.jsonl")
    found = find_below([tmp_path / name, good.parent])
    assert names(found) == ["a.jsonl"]
    [problem] = found.problems
    assert problem.startswith(f"{tmp_path}/{says}")
