"""Files that are written as a whole."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from memory.http.whole_files import create_whole, write_whole


@pytest.mark.parametrize("synced", [True, False])
def test_a_file_is_made_and_replaced_with_its_mode_and_no_draft_stays(tmp_path: Path, synced: bool) -> None:
    file = tmp_path / "run" / "state.json"
    for content, mode in ((b"first", 0o600), (b"second", 0o644)):
        write_whole(file, content, mode=mode, synced=synced)
        assert (file.read_bytes(), file.stat().st_mode & 0o777, [*file.parent.iterdir()]) == (content, mode, [file])


def test_a_write_that_fails_changes_nothing_and_leaves_no_draft(tmp_path: Path) -> None:
    folder = tmp_path / "file"
    (folder / "inside").mkdir(parents=True)
    with pytest.raises(OSError, match="file"):
        write_whole(folder, b"content")
    assert [*tmp_path.iterdir()] == [folder]


def test_of_several_that_make_one_file_a_single_one_succeeds(tmp_path: Path) -> None:
    file, words = tmp_path / "word", [b"%d" % number * 1000 for number in range(8)]
    with ThreadPoolExecutor(8) as threads:
        made = [*threads.map(lambda word: create_whole(file, word), words)]
    assert made.count(True) == 1
    assert file.read_bytes() == words[made.index(True)]
    assert [*tmp_path.iterdir()] == [file]
