"""Files that are written as a whole."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from memory.http.whole_files import create_whole, write_whole


def test_a_write_leaves_the_whole_file_with_its_mode_or_what_was_there(tmp_path: Path) -> None:
    file, folder = tmp_path / "run" / "state.json", tmp_path / "run"
    for content, mode in ((b"first", 0o600), (b"second", 0o644)):
        write_whole(file, content, mode=mode)
        assert (file.read_bytes(), file.stat().st_mode & 0o777) == (content, mode)
    with pytest.raises(OSError, match="run"):
        write_whole(folder, b"content")
    assert ([*tmp_path.iterdir()], [*folder.iterdir()]) == ([folder], [file]), "no draft stays"


def test_of_several_that_make_one_file_a_single_one_succeeds(tmp_path: Path) -> None:
    file, words = tmp_path / "word", [b"%d" % number * 1000 for number in range(8)]
    with ThreadPoolExecutor(8) as threads:
        made = [*threads.map(lambda word: create_whole(file, word), words)]
    assert (made.count(True), file.read_bytes()) == (1, words[made.index(True)])
