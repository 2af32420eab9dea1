"""Conformance suite of documents: each test holds for notes, for transcripts and for imported transcripts."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory.documents.agent_files import AgentFiles, WatchRoot
from memory.documents.comparison import forgets
from memory.documents.content import DocumentGone, DocumentRefused
from memory.documents.imports import ImportedFolder
from memory.documents.scan import EXCLUDED, EXCLUDED_FOLDERS, KnownFiles, file_stat
from memory.store.reader import IndexedFile
from schemas.conditions import ConditionCode
from schemas.documents import DocumentKey, FileStat
from schemas.settings import AgentSettings
from tests.recording import entered_folders


@dataclass(frozen=True, slots=True)
class Case:
    """Folder of one source: its documents are named *`suffix`, and their keys begin with `prefix`."""

    files: AgentFiles
    folder: Path
    suffix: str
    name: str
    prefix: str

    def write(self, stem: str) -> Path:
        path = self.folder / f"{stem}{self.suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}\n")
        return path

    def key(self, stem: str) -> DocumentKey:
        return DocumentKey(self.name, f"{self.prefix}/{stem}{self.suffix}")


@pytest.fixture(params=["notes", "transcripts", "imported transcripts"])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    for name in ("extra", "talks", "old"):
        (tmp_path / name).mkdir()
    settings = {"id": "main", "workspace": tmp_path, "sessions": [str(tmp_path / "talks")], "extra_paths": ["extra"]}
    agent = AgentSettings.model_validate(settings | {"exclude": ["**/draft*", "**/closed/**"]})
    old = tmp_path / "old"
    files = AgentFiles(agent, imports=tmp_path / "imports.json", drafted=[ImportedFolder(str(old))])
    return {
        "notes": Case(files, tmp_path / "extra", ".md", "memory", "extra"),
        "transcripts": Case(files, tmp_path / "talks", ".jsonl", "sessions", "sessions"),
        "imported transcripts": Case(files, old, ".jsonl", "sessions", str(old)),
    }[request.param]


def test_a_document_has_one_key_one_path_and_one_stat(case: Case) -> None:
    paths = {stem: case.write(stem) for stem in ("a", "deep/er/b")}
    scan = case.files.scan(imported=True)
    assert scan.documents == {case.key(stem): file_stat(path.stat()) for stem, path in paths.items()}
    assert (scan.complete, scan.problems, scan.left_out) == (True, (), {})
    for stem, path in paths.items():
        assert case.files.key_of(str(path)) == case.key(stem)
        assert case.files.path_of(case.key(stem)) == path
        assert case.files.stat(case.key(stem)) == file_stat(path.stat())


def test_a_document_that_is_gone_keeps_its_name(case: Case) -> None:
    path = case.write("a")
    path.unlink()
    assert case.files.key_of(str(path)) == case.key("a")
    assert case.files.path_of(case.key("a")) == path
    assert case.files.stat(case.key("a")) is None
    assert case.files.scan(imported=True).documents == {}


def test_what_globs_leave_out_is_counted_and_is_no_document(case: Case) -> None:
    case.write("a")
    draft, closed = case.write("draft"), case.write("closed/b")
    scan = case.files.scan(imported=True)
    assert set(scan.documents) == {case.key("a")}
    assert scan.left_out == {EXCLUDED: 1, EXCLUDED_FOLDERS: 1}
    for path in (draft, closed):
        assert (case.files.key_of(str(path)), case.files.reason_of(str(path))) == (None, EXCLUDED)
    assert case.files.stat(case.key("draft")) is None
    assert case.files.reason_of(str(case.folder / f"a{case.suffix}")) is None
    assert case.files.reason_of(str(case.folder / "a.bin")) is None


def test_odd_entries_become_conditions_and_are_not_followed(case: Case, tmp_path: Path) -> None:
    outside = tmp_path / f"outside{case.suffix}"
    outside.write_text("{}\n")
    (case.folder / f"link{case.suffix}").symlink_to(outside)
    os.mkfifo(case.folder / f"pipe{case.suffix}")
    (case.folder / os.fsdecode(b"caf\xe9" + case.suffix.encode())).write_text("{}\n")
    scan = case.files.scan(imported=True)
    assert scan.documents == {}
    assert {problem.code for problem in scan.problems} == {
        ConditionCode.FILE_IS_LINK,
        ConditionCode.FILE_NOT_REGULAR,
        ConditionCode.FILE_NAME_NOT_UTF8,
    }
    assert case.files.stat(case.key("link")) is None
    with pytest.raises((DocumentGone, DocumentRefused)):
        case.files.read(case.key("link"))


def test_links_to_what_is_found_anyway_are_not_worth_a_word(case: Case) -> None:
    path = case.write("real")
    (case.folder / f"link{case.suffix}").symlink_to(path.name)
    (case.folder / "up").symlink_to(".")
    (case.folder / "notes.txt").symlink_to("/etc/hostname")
    scan = case.files.scan(imported=True)
    assert (list(scan.documents), scan.problems) == ([case.key("real")], ())


def test_of_a_great_many_problems_a_few_are_told_and_the_rest_is_counted(case: Case) -> None:
    for number in range(100):
        os.mkfifo(case.folder / f"pipe{number}{case.suffix}")
        Path(os.fsdecode(os.fsencode(case.folder) + b"/%d\xff.md" % number)).write_text("x")
    problems = case.files.scan(imported=True).problems
    assert len(problems) == 42
    assert {one.code for one in problems[-2:]} == {ConditionCode.MORE_FILES}
    kinds = {ConditionCode.FILE_NOT_REGULAR, ConditionCode.FILE_NAME_NOT_UTF8}
    assert {(one.params["kind"], one.params["count"]) for one in problems[-2:]} == {(kind, 80) for kind in kinds}


def test_beyond_a_number_of_documents_the_rest_is_reported_and_none_deleted(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memory.documents.scan.MAX_DOCUMENTS", 20)
    for number in range(100):
        case.write(f"d{number}/a")
    scan = case.files.scan(imported=True)
    assert len(scan.documents) == 21
    assert (scan.complete, scan.unlisted) == (False, (str(case.folder),))
    assert [(one.code, one.params) for one in scan.problems] == [(ConditionCode.TOO_MANY_DOCUMENTS, {"most": 20})]


def test_a_folder_that_cannot_be_listed_hides_what_is_in_it(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, case_a = case.write("locked/b"), case.write("a")
    scandir = os.scandir

    def listed(folder: str) -> object:
        if folder == str(hidden.parent):
            raise PermissionError(13, "Permission denied", folder)
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", listed)
    scan = case.files.scan(imported=True)
    assert set(scan.documents) == {case.key("a")}
    assert [problem.code for problem in scan.problems] == [ConditionCode.FOLDER_UNLISTABLE]
    assert (scan.complete, scan.hides(hidden), scan.hides(case_a)) == (False, True, False)


def test_folders_are_watched_by_the_source_that_owns_them(case: Case, tmp_path: Path) -> None:
    inside = case.write("deep/a").parent
    (case.folder / "linked").symlink_to(inside)
    watched = not case.prefix.startswith("/")  # imported folders are not
    assert (WatchRoot(case.folder, recursive=True) in case.files.watch_roots()) is watched
    assert (case.folder in entered_folders(case.files)) is watched
    assert (inside in entered_folders(case.files)) is watched
    for other in ("linked", ".hidden", "node_modules", "closed"):
        (case.folder / other).mkdir(exist_ok=True)
        assert case.folder / other not in entered_folders(case.files)
    assert tmp_path / "elsewhere" not in entered_folders(case.files)


def test_the_absence_of_a_root_says_nothing_of_its_documents(case: Case) -> None:
    case.write("a").unlink()
    assert case.files.root_is_there(case.key("a"))
    case.folder.rename(case.folder.with_name("moved"))
    assert not case.files.root_is_there(case.key("a"))
    assert not forgets(case.files, case.key("a"))


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


@given(*(st.integers() | st.sampled_from([2**63, -(2**80)]) for _ in range(2)))
def test_a_file_is_known_again_whatever_its_times_say(mtime_ns: int, ctime_ns: int) -> None:
    made = SimpleNamespace(st_size=5, st_ino=2**64 - 1, st_mtime_ns=mtime_ns, st_ctime_ns=ctime_ns)
    stat = file_stat(cast("os.stat_result", made))
    assert not KnownFiles([IndexedFile(note("a"), stat, "", 1, 0.0)]).differs(note("a"), stat)
