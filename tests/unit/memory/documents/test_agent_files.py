from __future__ import annotations

import codecs
import os
import time
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory.documents.agent_files import AgentFiles, DocumentGone, WatchRoot
from memory.documents.content import decode
from memory.documents.roots import is_note_name, priority
from schemas.conditions import ConditionCode
from schemas.documents import DocumentKey
from schemas.errors import Transient
from schemas.settings import AgentSettings
from tests.recording import entered_folders


def files_of(workspace: Path, *extra_paths: str) -> AgentFiles:
    return AgentFiles(AgentSettings(id="main", workspace=workspace, extra_paths=extra_paths))


def write(path: Path, content: str | bytes = "text\n", *, age_seconds: float = 60) -> Path:
    """Write a file as if some time ago, so that reading it need not wait for the clock."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    then = time.time_ns() - int(age_seconds * 1e9)
    os.utime(path, ns=(then, then))
    return path


def key(path: str | Path) -> DocumentKey:
    return DocumentKey("memory", str(path))


def found(files: AgentFiles) -> list[str]:
    return sorted(document.path for document in files.scan().documents)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "ws"
    folder.mkdir()
    return folder


# Scanning ----------------------------------------------------------------------------------------------


def test_the_long_term_memory_and_all_notes_below_memory_are_documents(workspace: Path) -> None:
    for name in ("MEMORY.md", "memory/2026-11-20.md", "memory/deep/er/a.md", "memory/UPPER.MD", "memory/今天.md"):
        write(workspace / name)
    for name in ("README.md", "notes/a.md", "memory/a.txt", "memory/md", "memory/a.md.bak", "Memory.md"):
        write(workspace / name)
    scan = files_of(workspace).scan()
    assert sorted(document.path for document in scan.documents) == [
        "MEMORY.md",
        "memory/2026-11-20.md",
        "memory/UPPER.MD",
        "memory/deep/er/a.md",
        "memory/今天.md",
    ]
    assert (scan.complete, scan.problems, scan.unlisted) == (True, (), ())


@pytest.mark.parametrize(
    "name", [".hidden.md", ".#a.md", "#a.md#", "a.md~", "4913", ".a.md.swp", "~$a.md", ".~lock.a.md#", "a.tmp", ".md"]
)
def test_editors_temporaries_are_no_documents(workspace: Path, name: str) -> None:
    write(workspace / "memory" / name)
    assert found(files_of(workspace)) == []
    assert not is_note_name(name)
    assert files_of(workspace).key_of(workspace / "memory" / name) is None


@pytest.mark.parametrize("folder", [".git", "node_modules", ".venv", "venv", "__pycache__", ".obsidian", ".dreams"])
def test_ignored_and_hidden_folders_are_not_looked_into(workspace: Path, folder: str) -> None:
    path = write(workspace / "memory" / "deep" / folder / "a.md")
    files = files_of(workspace)
    assert found(files) == []
    assert files.key_of(path) is None
    assert path.parent not in entered_folders(files)
    assert path.parent.parent in entered_folders(files)


def test_both_spellings_of_the_long_term_memory_count_when_they_are_two_files(workspace: Path) -> None:
    write(workspace / "MEMORY.md", "one")
    write(workspace / "memory.md", "two")
    files = files_of(workspace)
    assert found(files) == ["MEMORY.md", "memory.md"]
    assert files.read(key("memory.md")).text == "two"
    assert files.key_of(workspace / "memory.md") == key("memory.md")


def test_both_spellings_of_one_long_term_memory_are_one_document(workspace: Path) -> None:
    write(workspace / "MEMORY.md", "one")
    os.link(workspace / "MEMORY.md", workspace / "memory.md")
    for files in (files_of(workspace), files_of(workspace, ".")):
        assert found(files) == ["MEMORY.md"]
        assert files.key_of(workspace / "memory.md") == key("MEMORY.md")
        assert files.resolve("memory.md") == key("MEMORY.md")
        assert files.stat(key("memory.md")) is None
        with pytest.raises(DocumentGone):
            files.read(key("memory.md"))


def test_a_missing_workspace_is_a_problem_and_proves_no_deletion(tmp_path: Path) -> None:
    scan = files_of(tmp_path / "nowhere").scan()
    assert not scan.complete
    assert scan.unlisted == (str(tmp_path / "nowhere"),)
    assert [one.code for one in scan.problems] == [ConditionCode.FOLDER_MISSING]


# Extra paths -------------------------------------------------------------------------------------------


def test_extra_paths_are_folders_or_files_inside_the_workspace_or_outside(workspace: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    write(outside / "deep/a.md")
    write(tmp_path / "single.md")
    write(tmp_path / "not-asked.md")
    write(workspace / "docs/b.md")
    write(workspace / "USER.md")
    files = files_of(workspace, "docs", "USER.md", str(outside), "../single.md")
    expected = sorted(["docs/b.md", "USER.md", f"{outside}/deep/a.md", f"{tmp_path}/single.md"])
    assert found(files) == expected
    for path in expected:
        assert files.read(key(path)).text == "text\n"
        assert files.key_of(files.path_of(key(path))) == key(path)
        assert files.resolve(path) == key(path)
    assert files.key_of(tmp_path / "not-asked.md") is None


def test_an_extra_path_that_is_a_hidden_folder_was_asked_for(workspace: Path, tmp_path: Path) -> None:
    write(tmp_path / ".notes/a.md")
    write(workspace / "memory/.private/b.md")
    files = files_of(workspace, str(tmp_path / ".notes"), "memory/.private")
    assert found(files) == sorted([f"{tmp_path}/.notes/a.md", "memory/.private/b.md"])
    assert files.read(key("memory/.private/b.md")).text == "text\n"


@pytest.mark.parametrize(
    "extras",
    [
        ("memory",),
        (".",),
        ("memory/sub", "memory"),
        ("..",),
        ("../alias",),
        ("../alias/memory/sub",),
        ("../alias", ".."),
    ],
)
def test_a_document_that_several_roots_reach_has_one_key(
    workspace: Path, tmp_path: Path, extras: tuple[str, ...]
) -> None:
    write(workspace / "memory/sub/a.md")
    write(workspace / "MEMORY.md")
    (tmp_path / "alias").symlink_to(workspace)
    files = files_of(workspace, *extras)
    assert found(files) == ["MEMORY.md", "memory/sub/a.md"]
    for spelling in (workspace, tmp_path / "alias"):
        if spelling == workspace or "../alias" in extras:
            assert files.key_of(spelling / "memory/sub/a.md") == key("memory/sub/a.md")
    assert files.read(key("memory/sub/a.md")).text == "text\n"
    assert files.path_of(key("memory/sub/a.md")).read_text() == "text\n"


def test_two_names_of_one_extra_folder_give_one_key(workspace: Path, tmp_path: Path) -> None:
    write(tmp_path / "notes/sub/a.md")
    (tmp_path / "link").symlink_to(tmp_path / "notes/sub")
    files = files_of(workspace, str(tmp_path / "link"), str(tmp_path / "notes"))
    assert found(files) == [f"{tmp_path}/notes/sub/a.md"]
    assert files.key_of(tmp_path / "link/a.md") == key(tmp_path / "notes/sub/a.md")


def test_a_folder_above_the_workspace_leaves_the_workspace_its_names(workspace: Path, tmp_path: Path) -> None:
    write(workspace / "docs/a.md")
    write(tmp_path / "b.md")
    files = files_of(workspace, str(tmp_path))
    assert found(files) == sorted(["docs/a.md", f"{tmp_path}/b.md"])
    assert workspace / "docs" in entered_folders(files)
    assert files.key_of(workspace / "docs/a.md") == key("docs/a.md")


def test_a_folder_that_reaches_the_workspace_only_through_a_hidden_one_leaves_it_its_notes(tmp_path: Path) -> None:
    write(tmp_path / ".agent/ws/memory/a.md")
    write(tmp_path / "b.md")
    assert found(files_of(tmp_path / ".agent/ws", str(tmp_path))) == sorted(["memory/a.md", f"{tmp_path}/b.md"])


def test_an_extra_path_that_is_missing_or_no_markdown_is_a_problem(workspace: Path, tmp_path: Path) -> None:
    write(tmp_path / "notes.txt")
    write(workspace / "memory/a.md")
    scan = files_of(workspace, "gone", "gone.md", "../notes.txt", "nul\0").scan()
    assert list(scan.documents) == [key("memory/a.md")]
    assert len(scan.problems) == 4
    # A folder may only be unmounted; a file that is not in its folder is deleted.
    assert scan.unlisted == (str(workspace / "gone"),)


# Names -------------------------------------------------------------------------------------------------


def test_the_configured_workspace_may_be_reached_through_links(workspace: Path, tmp_path: Path) -> None:
    write(workspace / "memory/a.md")
    (tmp_path / "alias").symlink_to(workspace)
    files = files_of(tmp_path / "alias")
    assert found(files) == ["memory/a.md"]
    assert files.read(key("memory/a.md")).text == "text\n"
    # Some systems report changes by the real path.
    assert files.key_of(workspace / "memory/a.md") == key("memory/a.md")
    assert files.key_of(tmp_path / "alias/memory/a.md") == key("memory/a.md")


# Reading -----------------------------------------------------------------------------------------------


def test_a_file_that_never_comes_to_rest_is_tried_later(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(workspace / "MEMORY.md", "first")
    read, reads = os.read, []

    def growing(descriptor: int, size: int) -> bytes:
        data = read(descriptor, size)
        reads.append(size)
        write(path, "x" * (len(reads) + 10), age_seconds=100 - len(reads))
        return data

    monkeypatch.setattr(os, "read", growing)
    with pytest.raises(Transient, match="changes while it is read"):
        files_of(workspace).read(key("MEMORY.md"))


def test_a_write_within_one_tick_of_the_clock_cannot_hide_behind_the_same_size_and_time(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(workspace / "MEMORY.md", "version a", age_seconds=0)
    stamp = path.stat().st_mtime_ns

    def tick(seconds: float) -> None:
        assert 0 < seconds < 0.1
        path.write_text("version b")
        os.utime(path, ns=(stamp, stamp))

    monkeypatch.setattr(time, "sleep", tick)
    monkeypatch.setattr(time, "time", lambda: stamp / 1e9 + 0.001)
    assert files_of(workspace).read(key("MEMORY.md")).text == "version b"


def test_a_file_from_the_future_is_read_at_once(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(workspace / "MEMORY.md", "text", age_seconds=-3600)
    monkeypatch.setattr(time, "sleep", None)
    assert files_of(workspace).read(key("MEMORY.md")).text == "text"


# Watching ----------------------------------------------------------------------------------------------


def test_the_workspace_is_watched_flat_and_memory_and_extra_folders_with_all_below(
    workspace: Path, tmp_path: Path
) -> None:
    write(workspace / "memory/a.md")
    write(tmp_path / "notes/a.md")
    write(tmp_path / "other/single.md")
    files = files_of(workspace, str(tmp_path / "notes"), str(tmp_path / "other/single.md"))
    assert sorted(files.watch_roots(), key=lambda root: root.path) == [
        WatchRoot(tmp_path / "notes", recursive=True),
        WatchRoot(tmp_path / "other/single.md", recursive=False),
        WatchRoot(workspace, recursive=False),
        WatchRoot(workspace / "memory", recursive=True),
    ]


def test_folders_that_a_watched_one_holds_are_not_watched_twice(workspace: Path) -> None:
    write(workspace / "memory/a.md")
    assert files_of(workspace, ".", "memory").watch_roots() == [WatchRoot(workspace, recursive=True)]


def test_what_is_not_there_yet_is_watched_through_the_nearest_folder_above(tmp_path: Path) -> None:
    files = files_of(tmp_path / "a/ws", str(tmp_path / "b/c/notes"), str(tmp_path / "b/single.md"))
    (tmp_path / "b").mkdir()
    assert sorted(files.watch_roots(), key=lambda root: root.path) == [
        WatchRoot(tmp_path, recursive=False),
        WatchRoot(tmp_path / "b", recursive=False),
    ]


# Order -------------------------------------------------------------------------------------------------


def test_long_term_memory_comes_first_then_today_yesterday_and_notes_newest_first() -> None:
    ordered = [
        "MEMORY.md",
        "USER.md",
        "users/ada/USER.md",
        "memory/standup-2026-11-21.md",
        "memory/deep/2026-11-20-plan.md",
        "memory/2026-11-22.md",
        "memory/2026-11-19.md",
        "memory/2025-01-01.md",
        "/elsewhere/z.md",
        "memory/2026-11-21/a.md",
        "memory/2026-13-45.md",
        "memory/a.md",
    ]
    today = date(2026, 11, 21)
    assert sorted(sorted(ordered), key=lambda path: priority(key(path), today=today)) == ordered


def test_a_transcript_is_resolved_by_the_name_that_results_give_it_in_the_workspace_itself(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").touch()
    agent = AgentSettings.model_validate({"id": "main", "workspace": tmp_path, "sessions": [str(tmp_path)]})
    files = AgentFiles(agent)
    [key] = [key for key in files.scan().documents if key.source == "sessions"]
    assert key.path == "sessions/a.jsonl"
    assert files.resolve(key.path) == files.resolve(str(tmp_path / "a.jsonl")) == files.resolve("a.jsonl") == key


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\ufeff")))
def test_utf8_comes_back_as_it_was_written(text: str) -> None:
    assert decode(text.encode()) == (text, ())


@given(st.binary())
def test_any_bytes_become_text_without_nul_that_utf8_can_hold(data: bytes) -> None:
    text, _ = decode(data)
    assert "\0" not in text
    text.encode()


@pytest.mark.parametrize(
    ("data", "text", "notes"),
    [
        (codecs.BOM_UTF8 + b"# Day\n", "# Day\n", ()),
        (codecs.BOM_UTF16_LE + "# 今天\r\n".encode("utf-16-le"), "# 今天\r\n", ()),
        (codecs.BOM_UTF16_BE + "# 今天\r\n".encode("utf-16-be"), "# 今天\r\n", ()),
        (b"before \xff after", "before \ufffd after", ("invalid UTF-8 was replaced",)),
        (codecs.BOM_UTF16_LE + b"a\0b", "a\ufffd", ("invalid UTF-16 was replaced",)),
        (b"a\0b\n", "a\ufffdb\n", ("NUL characters were replaced",)),
        (b"a\r\nb\rc\n", "a\r\nb\rc\n", ()),
        ("\ufffd".encode(), "\ufffd", ()),
    ],
)
def test_marks_go_line_ends_stay_and_replacements_are_noted(data: bytes, text: str, notes: tuple[str, ...]) -> None:
    assert decode(data) == (text, notes)
