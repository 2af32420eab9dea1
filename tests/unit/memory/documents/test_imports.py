"""The list of imports as a value: what comes in, is taken out, and comes in again."""

from __future__ import annotations

import pytest

from memory.documents.imports import ImportedFolder, with_files, with_import, without

OLD = ImportedFolder("/old")
CUT = ImportedFolder("/old/b.jsonl", None, ())


@pytest.mark.parametrize(
    ("before", "path", "after"),
    [
        ([OLD], "/old", []),
        ([OLD], "/", []),
        ([OLD], "/old/b.jsonl", [OLD, CUT]),
        ([OLD, CUT], "/old/b.jsonl", [OLD, CUT]),
        ([OLD, CUT], "/old", []),
        ([OLD], "/older", [OLD]),
    ],
)
def test_a_path_is_taken_out_with_what_is_below(
    before: list[ImportedFolder], path: str, after: list[ImportedFolder]
) -> None:
    assert without(before, path) == after


def test_a_later_import_does_not_bring_back_what_was_taken_out_of_an_earlier_one() -> None:
    some = ImportedFolder("/old", None, ("a.jsonl",))
    assert with_import([OLD, CUT], some) == [OLD, CUT, some]
    assert with_import([OLD, CUT, some], OLD) == [OLD, CUT, OLD]


def test_a_list_is_reduced_to_paths_each_entry_to_its_own() -> None:
    some = ImportedFolder("/old", "plain", ("a.jsonl", "c.jsonl"))
    paths = ["/old/a.jsonl", "/old/d.jsonl", "/new/e.jsonl"]
    assert with_files([OLD, CUT, some, ImportedFolder("/other")], paths) == [
        ImportedFolder("/old", None, ("a.jsonl", "d.jsonl")),
        CUT,
        ImportedFolder("/old", "plain", ("a.jsonl",)),
    ]
