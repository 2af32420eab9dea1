"""Conformance suite of documents: each test holds for notes, for transcripts and for imported transcripts."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from memory.documents.agent_files import AgentFiles, WatchRoot
from memory.documents.comparison import forgets
from memory.documents.content import DocumentGone, DocumentRefused
from memory.documents.imports import ImportedFolder
from memory.documents.scan import EXCLUDED, EXCLUDED_FOLDERS, KnownFiles, file_stat
from memory.store.dead_letters import FORGOTTEN
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


def test_a_scan_opens_nothing_and_lists_thousands_of_documents_quickly(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2_000):
        case.write(f"{number % 20}/{number}")

    def refuse(*arguments: object, **options: object) -> int:
        raise AssertionError("a scan opens nothing")

    monkeypatch.setattr(os, "open", refuse)
    begun = time.thread_time()
    assert len(case.files.scan(imported=True).documents) == 2_000
    assert time.thread_time() - begun < 2


def test_a_link_is_not_followed_and_a_transcript_is_never_read_as_a_whole(case: Case, tmp_path: Path) -> None:
    case.write("a")
    (tmp_path / "outside").mkdir()
    (tmp_path / f"outside/b{case.suffix}").write_text("{}\n")
    (case.folder / "linked").symlink_to(tmp_path / "outside")
    (case.folder / f"link{case.suffix}").symlink_to(tmp_path / f"outside/b{case.suffix}")
    for stem in ("linked/b", "link"):
        assert case.files.stat(case.key(stem)) is None
        with pytest.raises(DocumentRefused), case.files.opened(case.key(stem)):
            pass
    if case.name == "sessions":
        with pytest.raises(DocumentRefused, match="line by line"):
            case.files.read(case.key("a"))


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
