from __future__ import annotations

import os
from types import SimpleNamespace
from typing import cast

from hypothesis import example, given
from hypothesis import strategies as st

from memory.documents.scan import KnownFiles, file_stat
from memory.store.dead_letters import FORGOTTEN
from memory.store.reader import IndexedFile
from schemas.documents import DocumentKey, FileStat


def note(name: str) -> DocumentKey:
    return DocumentKey("memory", f"memory/{name}.md")


def rows(*names: str) -> list[IndexedFile]:
    return [IndexedFile(note(name), FileStat(5, 7, 9), "", 1, 0.0) for name in names]


def test_what_is_on_the_disk_is_new_changed_or_as_it_was_and_the_rest_is_absent() -> None:
    known = KnownFiles(rows("same", "changed", "gone"))
    assert not known.differs(note("same"), FileStat(5, 7, 9))
    assert known.differs(note("changed"), FileStat(5, 8, 9))
    assert known.differs(note("new"), FileStat(5, 7, 9))
    assert not known.differs(note("same"), FileStat(5, 7, 9)), "a document that is listed twice counts once"
    assert (len(known), known.unchanged, known.absentees) == (3, 1, 1)
    assert known.absent(rows("same", "changed", "gone")) == [note("gone")]
    assert [note(name) in known for name in ("same", "changed", "gone", "new")] == [True, True, True, False]


def test_a_document_that_is_to_be_read_anew_differs_whatever_is_on_the_disk() -> None:
    known = KnownFiles([IndexedFile(note("forgotten"), FORGOTTEN, "", 1, 0.0)])
    assert known.differs(note("forgotten"), FileStat(5, 7, 9))


@given(times=st.tuples(st.integers(), st.integers()), size=st.integers(0, 2**62), inode=st.integers(0, 2**64 - 1))
@example(times=(2**63, 2**63), size=0, inode=0)
@example(times=(-(2**80), -1), size=2**62, inode=2**64 - 1)
def test_a_file_is_known_again_whatever_its_stat_says(times: tuple[int, int], size: int, inode: int) -> None:
    stat = file_stat(stat_result(*times, size, inode))
    known = KnownFiles([IndexedFile(note("a"), stat, "", 1, 0.0)])
    assert not known.differs(note("a"), stat)
    assert stat.ctime_ns >= 0, "a negative one says something else"
    earlier = file_stat(stat_result(times[0] - 1, times[1], size, inode))
    assert earlier.mtime_ns <= stat.mtime_ns


def stat_result(mtime_ns: int, ctime_ns: int, size: int, inode: int) -> os.stat_result:
    """A stat as no file system of this machine may give it."""
    made = SimpleNamespace(st_size=size, st_mtime_ns=mtime_ns, st_ino=inode, st_ctime_ns=ctime_ns)
    return cast("os.stat_result", made)
