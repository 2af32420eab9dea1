"""Conformance suite of document sources: each test holds for notes and for transcripts."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from memory.documents.imports import ImportedFolder
from memory.documents.notes import Notes
from memory.documents.safe_open import DocumentGone, DocumentRefused
from memory.documents.scan import EXCLUDED, EXCLUDED_FOLDERS, KnownFiles, file_stat
from memory.documents.source import DocumentSource
from memory.documents.transcripts import Transcripts
from memory.store.reader import IndexedFile
from schemas.conditions import ConditionCode
from schemas.documents import DocumentKey
from schemas.settings import AgentSettings
from tests.recording import entered_folders


@dataclass(frozen=True, slots=True)
class Case:
    """A source with its folder; its documents are named *`suffix`, and their keys begin with `prefix`."""

    source: DocumentSource
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


def notes(agent: AgentSettings, folder: Path) -> Case:
    return Case(Notes(agent), folder / "extra", ".md", "memory", "extra")


def transcripts(agent: AgentSettings, folder: Path) -> Case:
    return Case(Transcripts(agent), folder / "talks", ".jsonl", "sessions", "sessions")


def imported_transcripts(agent: AgentSettings, folder: Path) -> Case:
    source = Transcripts(agent, imports=folder / "imports.json", drafted=[ImportedFolder(str(folder / "old"))])
    return Case(source, folder / "old", ".jsonl", "sessions", str(folder / "old"))


@pytest.fixture(params=[notes, transcripts, imported_transcripts])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    make: Callable[[AgentSettings, Path], Case] = request.param
    for name in ("extra", "talks", "old"):
        (tmp_path / name).mkdir()
    settings = {"id": "main", "workspace": tmp_path, "sessions": [str(tmp_path / "talks")], "extra_paths": ["extra"]}
    left_out = {"exclude": ["**/draft*", "**/closed/**"]}
    return make(AgentSettings.model_validate(settings | left_out), tmp_path)


def test_a_document_has_one_key_one_path_and_one_stat(case: Case) -> None:
    paths = {stem: case.write(stem) for stem in ("a", "deep/er/b")}
    scan = case.source.scan(imported=True)
    assert scan.documents == {case.key(stem): file_stat(path.stat()) for stem, path in paths.items()}
    assert (scan.complete, scan.problems, scan.left_out) == (True, (), {})
    for stem, path in paths.items():
        assert case.source.key_of(str(path)) == case.key(stem)
        assert case.source.path_of(case.key(stem)) == path
        assert case.source.stat(case.key(stem)) == file_stat(path.stat())


def test_a_document_of_another_source_is_none_of_this_one(case: Case) -> None:
    case.write("a")
    other = DocumentKey("notes of another program", case.key("a").path)
    assert (case.source.path_of(other), case.source.stat(other)) == (None, None)
    with pytest.raises(DocumentGone):
        case.source.read(other)


def test_a_document_that_is_gone_keeps_its_name(case: Case) -> None:
    path = case.write("a")
    path.unlink()
    assert case.source.key_of(str(path)) == case.key("a")
    assert case.source.path_of(case.key("a")) == path
    assert case.source.stat(case.key("a")) is None
    assert case.source.scan(imported=True).documents == {}


def test_what_globs_leave_out_is_counted_and_is_no_document(case: Case) -> None:
    case.write("a")
    draft, closed = case.write("draft"), case.write("closed/b")
    scan = case.source.scan(imported=True)
    assert set(scan.documents) == {case.key("a")}
    assert scan.left_out == {EXCLUDED: 1, EXCLUDED_FOLDERS: 1}
    for path in (draft, closed):
        assert (case.source.key_of(str(path)), case.source.reason_of(str(path))) == (None, EXCLUDED)
    assert case.source.stat(case.key("draft")) is None
    assert case.source.reason_of(str(case.folder / f"a{case.suffix}")) is None
    assert case.source.reason_of(str(case.folder / "a.bin")) is None


def test_odd_entries_become_conditions_and_are_not_followed(case: Case, tmp_path: Path) -> None:
    outside = tmp_path / f"outside{case.suffix}"
    outside.write_text("{}\n")
    (case.folder / f"link{case.suffix}").symlink_to(outside)
    os.mkfifo(case.folder / f"pipe{case.suffix}")
    (case.folder / os.fsdecode(b"caf\xe9" + case.suffix.encode())).write_text("{}\n")
    scan = case.source.scan(imported=True)
    assert scan.documents == {}
    assert {problem.code for problem in scan.problems} == {
        ConditionCode.FILE_IS_LINK,
        ConditionCode.FILE_NOT_REGULAR,
        ConditionCode.FILE_NAME_NOT_UTF8,
    }
    assert case.source.stat(case.key("link")) is None
    with pytest.raises((DocumentGone, DocumentRefused)):
        case.source.read(case.key("link"))


def test_a_folder_that_cannot_be_listed_hides_what_is_in_it(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, case_a = case.write("locked/b"), case.write("a")
    scandir = os.scandir

    def listed(folder: str) -> object:
        if folder == str(hidden.parent):
            raise PermissionError(13, "Permission denied", folder)
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", listed)
    scan = case.source.scan(imported=True)
    assert set(scan.documents) == {case.key("a")}
    assert [problem.code for problem in scan.problems] == [ConditionCode.FOLDER_UNLISTABLE]
    assert (scan.complete, scan.hides(hidden), scan.hides(case_a)) == (False, True, False)


def test_a_scan_only_counts_what_the_index_knows_as_it_is(case: Case) -> None:
    for stem in ("same", "changed", "new"):
        case.write(stem)
    stats = case.source.scan(imported=True).documents
    gone = case.key("gone")
    indexed = {case.key("same"): "same", case.key("changed"): "new", gone: "same"}
    files = [
        IndexedFile(key=key, stat=stats[case.key(like)], content_hash="", revision=1, indexed_at=0.0)
        for key, like in indexed.items()
    ]
    known = KnownFiles(files)
    scan = case.source.scan(imported=True, but=known)
    assert set(scan.documents) == {case.key("changed"), case.key("new")}
    assert (scan.unchanged, scan.count, known.absent(files)) == (1, 3, [gone])


def test_folders_are_watched_by_the_source_that_owns_them(case: Case, tmp_path: Path) -> None:
    inside = case.write("deep/a").parent
    (case.folder / "linked").symlink_to(inside)
    watched = not case.prefix.startswith("/")  # imported folders are not
    assert ((str(case.folder), True) in list(case.source.watch_roots())) is watched
    assert (case.folder in entered_folders(case.source)) is watched
    assert (inside in entered_folders(case.source)) is watched
    for other in ("linked", ".hidden", "node_modules", "closed"):
        (case.folder / other).mkdir(exist_ok=True)
        assert case.folder / other not in entered_folders(case.source)
    assert tmp_path / "elsewhere" not in entered_folders(case.source)


def test_the_absence_of_a_root_says_nothing_of_its_documents(case: Case) -> None:
    case.write("a").unlink()
    assert case.source.root_is_there(case.key("a"))
    case.folder.rename(case.folder.with_name("moved"))
    assert not case.source.root_is_there(case.key("a"))
    assert not case.source.forgets(case.key("a"))
