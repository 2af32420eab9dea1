from __future__ import annotations

import threading
from pathlib import Path

import pytest

from memory.documents.imports import ImportedFolder, imported_folders, imports_path, remember_import
from schemas.errors import UserError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return imports_path(tmp_path / "home", "main")


def test_imports_are_remembered_in_order_with_their_format_and_files(path: Path) -> None:
    one = ImportedFolder("/old/claude", "claude-code")
    two = ImportedFolder("/old/plain", None, ("a.jsonl", "deep/b.jsonl"))
    assert imported_folders(path) == []
    remember_import(path, one)
    remember_import(path, two)
    assert imported_folders(path) == [one, two]
    before = path.stat()
    remember_import(path, two)
    assert path.stat() == before


def test_several_imports_of_one_folder_are_one_and_the_latest_comes_last(path: Path) -> None:
    remember_import(path, ImportedFolder("/old", None, ("a.jsonl",)))
    remember_import(path, ImportedFolder("/other"))
    remember_import(path, ImportedFolder("/old", None, ("b.jsonl", "a.jsonl")))
    assert imported_folders(path) == [ImportedFolder("/other"), ImportedFolder("/old", None, ("a.jsonl", "b.jsonl"))]
    remember_import(path, ImportedFolder("/old"))
    remember_import(path, ImportedFolder("/old", None, ("c.jsonl",)))
    assert imported_folders(path)[-1] == ImportedFolder("/old")


@pytest.mark.parametrize("text", ["{", "[]", '{"folders": [{"folder": "relative"}]}', '{"folders": [{}]}', "7"])
def test_a_damaged_list_is_said_and_mended_by_the_next_import(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(UserError, match="is damaged; delete it"):
        imported_folders(path)
    remember_import(path, ImportedFolder("/old"))
    assert imported_folders(path) == [ImportedFolder("/old")]


def test_imports_at_the_same_time_lose_none(path: Path) -> None:
    threads = [
        threading.Thread(target=remember_import, args=(path, ImportedFolder(f"/old/{number}"))) for number in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {one.folder for one in imported_folders(path)} == {f"/old/{number}" for number in range(16)}


def test_a_home_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")
    with pytest.raises(UserError, match="cannot be written"):
        remember_import(imports_path(tmp_path / "home", "main"), ImportedFolder("/old"))
