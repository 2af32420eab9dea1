"""Folders of an agent: each document has one key, whatever roots and links lead to it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from memory.documents.agent_files import AgentFiles, DocumentGone, DocumentRefused, WatchRoot
from memory.documents.imports import ImportedFolder, imported_folders, imports_path, remember_import
from schemas.conditions import ConditionCode
from schemas.documents import DocumentKey
from schemas.errors import UserError
from schemas.settings import AgentSettings, Settings
from tests.recording import entered_folders


def note(path: str | Path) -> DocumentKey:
    return DocumentKey("memory", str(path))


def talk(path: str | Path) -> DocumentKey:
    return DocumentKey("sessions", str(path))


class Desk:
    """An agent with a workspace and a hidden folder of sessions."""

    def __init__(self, root: Path) -> None:
        self.root, self.workspace, self.sessions = root, root / "ws", root / ".agent/sessions"
        self.imports = imports_path(root / "home", "main")
        self.workspace.mkdir()
        self.sessions.mkdir(parents=True)

    def files(self, *extra_paths: str, **settings: Any) -> AgentFiles:
        own = {"id": "main", "workspace": self.workspace, "sessions": [str(self.sessions)], "extra_paths": extra_paths}
        agent = AgentSettings.model_validate({**own, **settings})
        return AgentFiles.of(Settings(home=self.root / "home", agents=(agent,)), agent)

    def write(self, path: str | Path, content: str = "text\n") -> Path:
        target = self.workspace / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content)
        os.utime(target, (1_700_000_000, 1_700_000_000))  # long ago, so that reading it need not wait for the clock
        return target


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def found(files: AgentFiles) -> list[str]:
    return sorted(document.path for document in files.scan().documents)


def content(files: AgentFiles, path: str) -> list[bytes | None]:
    with files.opened(talk(path)) as opened:
        return [line.data for line in opened.lines()]


# Notes -------------------------------------------------------------------------------------------------


def test_the_long_term_memory_and_all_notes_below_memory_are_documents(desk: Desk) -> None:
    notes = ["MEMORY.md", "memory/2026-11-20.md", "memory/UPPER.MD", "memory/deep/er/a.md", "memory/今天.md"]
    for name in (*notes, "README.md", "notes/a.md", "memory/a.txt", "memory/md", "memory/a.md.bak", "Memory.md"):
        desk.write(name)
    scan = desk.files().scan()
    assert sorted(document.path for document in scan.documents) == notes
    assert (scan.complete, scan.problems, scan.unlisted) == (True, (), ())


@pytest.mark.parametrize("linked", [False, True])
def test_both_spellings_of_the_long_term_memory_count_when_they_are_two_files(desk: Desk, linked: bool) -> None:
    upper = desk.write("MEMORY.md", "one")
    if linked:
        os.link(upper, desk.workspace / "memory.md")
    else:
        desk.write("memory.md", "two")
    for files in (desk.files(), desk.files(".")):
        assert found(files) == (["MEMORY.md"] if linked else ["MEMORY.md", "memory.md"])
        one = note("MEMORY.md") if linked else note("memory.md")
        assert files.key_of(desk.workspace / "memory.md") == files.resolve("memory.md") == one
        if linked:
            assert files.stat(note("memory.md")) is None
            with pytest.raises(DocumentGone):
                files.read(note("memory.md"))
        else:
            assert files.read(one).text == "two"


def test_extra_paths_are_folders_or_files_inside_the_workspace_or_outside(desk: Desk) -> None:
    outside = desk.root / ".outside"
    for path in (outside / "deep/a.md", "../single.md", "../not-asked.md", "docs/b.md", "USER.md", "memory/.own/c.md"):
        desk.write(path)
    files = desk.files("docs", "USER.md", str(outside), "../single.md", "memory/.own")
    own = ["docs/b.md", "USER.md", "memory/.own/c.md"]
    expected = sorted([*own, f"{outside}/deep/a.md", f"{desk.root}/single.md"])
    assert found(files) == expected
    for path in expected:
        assert files.read(note(path)).text == "text\n"
        assert files.key_of(files.path_of(note(path))) == files.resolve(path) == note(path)
    assert files.key_of(desk.root / "not-asked.md") is None


@pytest.mark.parametrize(
    "extras", [("memory",), (".",), ("memory/sub", "memory"), ("..",), ("../alias",), ("../alias", "..")], ids=" ".join
)
def test_a_document_that_several_roots_reach_has_one_key(desk: Desk, extras: tuple[str, ...]) -> None:
    desk.write("MEMORY.md")
    path = desk.write("memory/sub/a.md")
    (desk.root / "alias").symlink_to(desk.workspace)
    files = desk.files(*extras)
    assert found(files) == ["MEMORY.md", "memory/sub/a.md"]
    if "../alias" in extras:
        assert files.key_of(desk.root / "alias/memory/sub/a.md") == note("memory/sub/a.md")
    assert files.key_of(path) == note("memory/sub/a.md")
    assert files.read(note("memory/sub/a.md")).text == files.path_of(note("memory/sub/a.md")).read_text() == "text\n"


def test_an_extra_path_that_is_missing_or_no_markdown_is_a_problem(desk: Desk) -> None:
    desk.write("../notes.txt")
    desk.write("memory/a.md")
    scan = desk.files("gone", "gone.md", "../notes.txt", "nul\0").scan()
    assert list(scan.documents) == [note("memory/a.md")]
    assert len(scan.problems) == 4
    # A folder may only be unmounted; a file that is not in its folder is deleted.
    assert scan.unlisted == (str(desk.workspace / "gone"),)


def test_the_configured_folders_may_be_reached_through_links(desk: Desk) -> None:
    paths = desk.write("memory/a.md"), desk.write(desk.sessions / "a.jsonl")
    for name, target in (("alias", desk.workspace), ("talks", desk.sessions)):
        (desk.root / name).symlink_to(target)
    files = desk.files(workspace=desk.root / "alias", sessions=[str(desk.root / "talks")])
    assert found(files) == ["memory/a.md", "sessions/a.jsonl"]
    assert (files.read(note("memory/a.md")).text, content(files, "sessions/a.jsonl")) == ("text\n", [b"text"])
    # Some systems report changes by the real path.
    assert [files.key_of(path) for path in paths] == [note("memory/a.md"), talk("sessions/a.jsonl")]
    assert files.key_of(desk.root / "alias/memory/a.md") == note("memory/a.md")
    assert files.key_of(desk.root / "talks/a.jsonl") == talk("sessions/a.jsonl")
    assert desk.root / "talks" in entered_folders(files)


# Transcripts -------------------------------------------------------------------------------------------


def test_an_agent_whose_sources_leave_transcripts_out_has_none(desk: Desk) -> None:
    path = desk.write(desk.sessions / "a.jsonl")
    files = desk.files(sources=["memory"])
    assert (found(files), files.key_of(path)) == ([], None)
    assert files.watch_roots() == [WatchRoot(desk.workspace, recursive=False)]
    with pytest.raises(DocumentRefused):
        files.resolve("sessions/a.jsonl")


@pytest.mark.parametrize("folders", [(".", "project"), ("project", "."), ("alias", "."), (".", ".")], ids=" ".join)
def test_a_session_folder_inside_another_one_names_nothing_twice(desk: Desk, folders: tuple[str, ...]) -> None:
    path = desk.write(desk.sessions / "project/a.jsonl")
    (desk.sessions / "alias").symlink_to(desk.sessions / "project")
    files = desk.files(sessions=[str(desk.sessions / folder) for folder in folders])
    assert found(files) == ["sessions/project/a.jsonl"]
    assert files.scan().problems == ()
    assert files.key_of(path) == talk("sessions/project/a.jsonl")
    assert {root.path for root in files.watch_roots()} == {desk.sessions, desk.workspace}
    if "alias" in folders:
        assert files.key_of(desk.sessions / "alias/a.jsonl") == talk("sessions/project/a.jsonl")


def test_of_two_transcripts_of_one_name_the_first_folder_wins_and_the_other_is_said(desk: Desk) -> None:
    first, second = desk.write("../one/a.jsonl", "first\n"), desk.write("../two/a.jsonl", "second, longer\n")
    files = desk.files(sessions=["../one", "../two"])
    assert found(files) == ["sessions/a.jsonl"]
    assert content(files, "sessions/a.jsonl") == [b"first"]
    assert files.scan().complete
    [twice] = files.scan().problems
    assert (twice.code, twice.params["example"]) == (ConditionCode.TRANSCRIPTS_NAMED_TWICE, "a.jsonl")
    assert Path(twice.subject).name == second.parent.name
    first.unlink()
    assert content(files, "sessions/a.jsonl") == [b"second, longer"]
    assert files.scan().problems == ()


def test_a_compressed_transcript_is_the_same_document_and_the_plain_file_wins(desk: Desk) -> None:
    one = talk("sessions/a.jsonl")
    path = desk.write(desk.sessions / "a.jsonl.zst", "compressed")
    files = desk.files()
    assert found(files) == [one.path]
    assert files.key_of(path) == files.resolve("sessions/a.jsonl.zst") == one
    assert (files.path_of(one), files.scan().documents[one].size) == (path, len("compressed"))
    with files.opened(one) as opened:
        assert (opened.compressed, opened.stat.size) == (True, len("compressed"))
    plain = desk.write(desk.sessions / "a.jsonl")
    assert (files.scan().documents, files.path_of(one)) == ({one: files.stat(one)}, plain)
    with files.opened(one) as opened:
        assert (opened.compressed, opened.stat.size) == (False, len("text\n"))


def test_another_agents_transcript_is_no_document(desk: Desk) -> None:
    mine = desk.write("../agents/main/sessions/a.jsonl").resolve()
    other = desk.write("../agents/other/sessions/a.jsonl").resolve()
    files = desk.files(sessions=[str(mine.parent)])
    assert files.key_of(mine) == talk("sessions/a.jsonl")
    assert files.key_of(other) is None
    assert files.key_of(f"{mine.parent}/../../other/sessions/a.jsonl") is None


# Imports -----------------------------------------------------------------------------------------------


def test_only_the_files_that_were_imported_are_documents(desk: Desk) -> None:
    old = desk.root / "old"
    one, two, three = (desk.write(old / name) for name in ("one.jsonl", "two.jsonl.zst", "three.jsonl"))
    remember_import(desk.imports, ImportedFolder(str(old), None, ("one.jsonl", "two.jsonl.zst")))
    files = desk.files()
    keys = [files.key_of(path) for path in (one, two, three)]
    assert keys == [talk(one), talk(str(two).removesuffix(".zst")), None]
    assert len(files.scan(imported=True).documents) == 2
    remember_import(desk.imports, ImportedFolder(str(old), None, ("three.jsonl",)))
    assert [files.key_of(path) for path in (one, three)] == [talk(one), talk(three)]


def test_several_imports_of_one_folder_are_one_and_the_latest_comes_last(desk: Desk) -> None:
    remember_import(desk.imports, ImportedFolder("/old", None, ("a.jsonl",)))
    remember_import(desk.imports, ImportedFolder("/other"))
    remember_import(desk.imports, ImportedFolder("/old", None, ("b.jsonl", "a.jsonl")))
    both = ImportedFolder("/old", None, ("a.jsonl", "b.jsonl"))
    assert imported_folders(desk.imports) == [ImportedFolder("/other"), both]
    remember_import(desk.imports, ImportedFolder("/old"))
    remember_import(desk.imports, ImportedFolder("/old", None, ("c.jsonl",)))
    assert imported_folders(desk.imports)[-1] == ImportedFolder("/old")


@pytest.mark.parametrize("text", ["{", "[]", '{"folders": [{"folder": "relative"}]}', '{"folders": [{}]}', "7"])
def test_a_damaged_list_is_said_and_mended_by_the_next_import(desk: Desk, text: str) -> None:
    desk.imports.parent.mkdir(parents=True)
    desk.imports.write_text(text)
    with pytest.raises(UserError, match="is damaged; delete it"):
        imported_folders(desk.imports)
    remember_import(desk.imports, ImportedFolder("/old"))
    assert imported_folders(desk.imports) == [ImportedFolder("/old")]
