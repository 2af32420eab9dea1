"""What is wrong with files is told once, with the time since when."""

from __future__ import annotations

from memory.file_troubles import file_troubles
from schemas.ports import Trouble

NAME = "/ws/odd\\xff.md is left out: its name is not UTF-8; rename it"
LINK = "/ws/link.md is a symbolic link, which is not followed: put the file itself there"
GONE = "/ws/extra is not there; create it"
OTHER = Trouble("work", f"about {LINK}", 5.0)


def test_each_problem_is_told_once_since_it_was_told_first() -> None:
    files, others = file_troubles([NAME, LINK], [Trouble("reconcile", f"{NAME}; {LINK}", 7.0), OTHER], 100.0)
    assert [(one.part, one.message, one.since) for one in files] == [("files", NAME, 7.0), ("files", LINK, 7.0)]
    assert others == [OTHER]


def test_a_new_problem_begins_now_and_one_that_is_over_stays_told_until_it_is_taken_back() -> None:
    files, others = file_troubles([NAME, LINK], [Trouble("reconcile", f"{NAME}; {GONE}", 7.0)], 100.0)
    assert [one.since for one in files] == [7.0, 100.0]
    assert others == [Trouble("reconcile", GONE, 7.0)]


def test_what_nobody_told_begins_now_and_other_words_stay() -> None:
    failed = Trouble("reconcile", "the index could not be compared; it is tried again", 7.0)
    assert file_troubles([], [failed], 100.0) == ([], [failed])
    [found], _ = file_troubles([NAME], [], 100.0)
    assert found.since == 100.0
