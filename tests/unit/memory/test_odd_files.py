"""What is no document, but is named like one, is told in a sentence, and never in a million of them."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory.documents.agent_files import AgentFiles
from memory.documents.scan import printable
from schemas.conditions import Condition, ConditionCode
from schemas.documents import DocumentKey
from schemas.settings import AgentSettings


@pytest.fixture(params=["notes", "transcripts"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Where an agent's documents lie."""
    made = tmp_path / "ws" / ("memory" if request.param == "notes" else "sessions")
    made.mkdir(parents=True)
    return made


@pytest.fixture
def files(folder: Path) -> AgentFiles:
    sessions = (str(folder),) if folder.name == "sessions" else ()
    return AgentFiles(AgentSettings(id="main", workspace=folder.parent, sessions=sessions))


def named(folder: Path, name: str) -> Path:
    """A document's file of that name."""
    return folder / f"{name}{'.md' if folder.name == 'memory' else '.jsonl'}"


def key(path: Path) -> DocumentKey:
    source = "memory" if path.suffix == ".md" else "sessions"
    return DocumentKey(source, f"{path.parent.name}/{path.name}")


@pytest.mark.parametrize("kind", ["pipe", "socket", "device"])
def test_what_is_no_file_is_told_and_the_rest_is_found(
    folder: Path, files: AgentFiles, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    named(folder, "good").write_text("x")
    odd = named(folder, "odd")
    if kind == "pipe":
        os.mkfifo(odd)
    elif kind == "socket":
        monkeypatch.chdir(folder)
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(odd.name)
    else:
        try:
            os.mknod(odd, 0o600 | 0o020000, os.makedev(1, 5))
        except PermissionError:
            pytest.skip("only root makes devices")
    scan = files.scan()
    assert list(scan.documents) == [key(named(folder, "good"))]
    assert scan.complete
    assert scan.problems == (Condition(ConditionCode.FILE_NOT_REGULAR, str(odd)),)


def test_links_that_hide_a_document_are_told(folder: Path, files: AgentFiles, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/a.md").write_text("x")
    named(folder, "away").symlink_to(tmp_path / "outside/a.md")
    named(folder, "dangling").symlink_to("nowhere")
    named(folder, "loop").symlink_to(named(folder, "loop").name)
    (folder / "elsewhere").symlink_to(tmp_path / "outside")
    scan = files.scan()
    assert not scan.documents
    assert scan.complete
    links = [named(folder, "away"), named(folder, "dangling"), named(folder, "loop"), folder / "elsewhere"]
    assert sorted((one.code, one.subject) for one in scan.problems) == sorted(
        (ConditionCode.FILE_IS_LINK, str(link)) for link in links
    )


def test_links_to_what_is_found_anyway_are_not_worth_a_word(folder: Path, files: AgentFiles) -> None:
    named(folder, "real").write_text("x")
    named(folder, "link").symlink_to(named(folder, "real").name)
    (folder / "up").symlink_to(".")
    (folder / "notes.txt").symlink_to("/etc/hostname")
    scan = files.scan()
    assert list(scan.documents) == [key(named(folder, "real"))]
    assert scan.problems == ()


def test_of_a_great_many_problems_a_few_are_told_and_the_rest_is_counted(folder: Path, files: AgentFiles) -> None:
    for number in range(100):
        os.mkfifo(named(folder, f"pipe{number}"))
        Path(os.fsdecode(os.fsencode(folder) + b"/%d\xff.md" % number)).write_text("x")
    problems = files.scan().problems
    assert len(problems) == 42
    assert {one.code for one in problems[-2:]} == {ConditionCode.MORE_FILES}
    kinds = {ConditionCode.FILE_NOT_REGULAR, ConditionCode.FILE_NAME_NOT_UTF8}
    assert {(one.params["kind"], one.params["count"]) for one in problems[-2:]} == {(kind, 80) for kind in kinds}


@pytest.fixture
def bottom(folder: Path) -> Iterator[int]:
    """A folder 3,000 levels down, which no path reaches; a document lies at the 500th and one at the bottom."""
    current = os.open(folder, os.O_RDONLY)
    for level in range(1, 3001):
        os.mkdir("d", dir_fd=current)
        below = os.open("d", os.O_RDONLY, dir_fd=current)
        os.close(current)
        current = below
        if level in (500, 3000):
            os.close(os.open(named(folder, "deep").name, os.O_CREAT | os.O_WRONLY, dir_fd=current))
    yield current
    # Nothing of Python's removes what it cannot name.
    os.unlink(named(folder, "deep").name, dir_fd=current)
    for level in range(3000, 0, -1):
        above = os.open("..", os.O_RDONLY, dir_fd=current)
        os.close(current)
        if level == 501:
            os.unlink(named(folder, "deep").name, dir_fd=above)
        os.rmdir("d", dir_fd=above)
        current = above
    os.close(current)


def test_folders_are_looked_into_as_deep_as_paths_can_be_and_the_rest_is_told(
    folder: Path, files: AgentFiles, bottom: int
) -> None:
    scan = files.scan()
    [found] = scan.documents
    assert found.path.count("/d/") + found.path.count("/d") >= 500
    assert files.stat(found) == scan.documents[found]
    [problem] = scan.problems
    assert problem.code is ConditionCode.PATH_TOO_LONG
    assert len(problem.subject) < 500


def test_a_file_whose_path_alone_is_too_long_does_not_hide_its_neighbours(
    folder: Path, files: AgentFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    named(folder, "a").write_text("x")
    named(folder, "b").write_text("x")

    class Entry:
        """As of a folder whose path just fits."""

        def __init__(self, entry: os.DirEntry[str]) -> None:
            self._entry = entry

        def __getattr__(self, name: str) -> object:
            return getattr(self._entry, name)

        def stat(self, *, follow_symlinks: bool) -> os.stat_result:
            if self._entry.name.startswith("b"):
                raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
            return self._entry.stat(follow_symlinks=follow_symlinks)

    listing = os.scandir

    class Entries:
        def __init__(self, path: str) -> None:
            with listing(path) as entries:
                self._entries = [Entry(entry) for entry in entries]

        def __enter__(self) -> list[Entry]:
            return self._entries

        def __exit__(self, *_error: object) -> None:
            pass

    monkeypatch.setattr(os, "scandir", Entries)
    scan = files.scan()
    assert list(scan.documents) == [key(named(folder, "a"))]
    assert scan.complete
    assert [one.code for one in scan.problems] == [ConditionCode.PATH_TOO_LONG]


@given(st.text() | st.binary().map(os.fsdecode) | st.sampled_from(["\ud800", "a\nb", "\x1b[2J", "\u202e", "\udcff"]))
def test_any_name_can_be_shown_in_one_line_of_bounded_length(name: str) -> None:
    shown = printable(name * 3)
    shown.encode("utf-8")
    assert shown.isprintable()
    assert len(shown) <= 403


def test_what_is_shown_of_a_name_tells_it_from_others() -> None:
    assert printable("memory/网关 é.md") == "memory/网关 é.md"
    assert printable("a\nb\x1b[31m\udce9") == "a\\nb\\x1b[31m\\xe9"


def test_beyond_a_number_of_documents_the_rest_is_told_and_nothing_is_taken_for_deleted(
    folder: Path, files: AgentFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memory.documents.scan.MAX_DOCUMENTS", 20)
    for number in range(100):
        (folder / f"d{number}").mkdir()
        (folder / f"d{number}" / named(folder, "a").name).write_text("x")
    scan = files.scan()
    assert len(scan.documents) == 21
    assert (scan.complete, scan.unlisted) == (False, (str(folder),))
    assert [(one.code, one.params) for one in scan.problems] == [(ConditionCode.TOO_MANY_DOCUMENTS, {"most": 20})]
