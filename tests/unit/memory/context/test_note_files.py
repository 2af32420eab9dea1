"""Notes that a turn of the memory writes: appended once, created exclusively, and never outside of the workspace."""

from __future__ import annotations

import os
import resource
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory.context.note_files import (
    WriteRefused,
    append_note,
    create_note,
    extend_note,
    new_text,
    notes_with,
    rename_note,
)

TODAY = "memory/2026-11-22.md"

APPENDED = {
    "the first text": ("", "- a\n- b", "- a\n- b\n"),
    "new lines only": ("- a\n", "- a\n- b", "- b\n"),
    "nothing new": ("# Day\n\n- a\n", "# Day\n\n- a\n", ""),
    "the whole file again, with more": ("# Day\n- a\n", "# Day\n- a\n## Evening\n- b\n", "## Evening\n- b\n"),
    "a new line of an old section": ("## Plan\n- a\n## Done\n- x\n", "## Plan\n- a\n- b", "## Plan\n- b\n"),
    "the same line in another section": ("## Plan\n- a\n", "## Done\n- a\n", "## Done\n- a\n"),
    "a section twice in the file": ("## Plan\n- a\n## Plan\n- b\n", "## Plan\n- a\n- b\n", ""),
    "white space at the end is no news": ("- a  \n", "- a\n", ""),
    "paragraphs stay apart": ("", "one\n\ntwo\n", "one\n\ntwo\n"),
    "nothing at all": ("- a\n", "\n \n", ""),
    "lines that another task has, too": ("Task A\ndone\nowner\n", "Task B\ndone\nowner\n", "\nTask B\ndone\nowner\n"),
    "a list that another task has, too": ("Task A\n\n- done\n", "Task B\n\n- done\n", "\nTask B\n- done\n"),
    "a further item of a task": ("Task A\n- done\n", "Task A\n- done\n- owner\n", "\nTask A\n- owner\n"),
    "an item with lines below it": ("- A\n  - done\n", "- B\n  - done\n- A\n  - done\n", "- B\n  - done\n"),
    "a fence around the same line": ("```\nmake\n```\n", "```\nmake\n\nrun\n```\n", "\n```\nmake\n\nrun\n```\n"),
    "a table with the same header": ("|a|\n|-|\n|1|\n", "|a|\n|-|\n|2|\n", "\n|a|\n|-|\n|2|\n"),
    "a fence that was left open": ("```\nmake\n", "- a\n", "```\n- a\n"),
    "a paragraph below an item": ("- a\n", "text\n", "\ntext\n"),
}


@pytest.mark.parametrize(("held", "content", "new"), APPENDED.values(), ids=APPENDED)
def test_only_what_is_new_is_appended(held: str, content: str, new: str) -> None:
    assert new_text(held, content) == new


_LINES = st.lists(
    st.sampled_from(["# Day", "## Plan", "- a", "- b", "", "  - b", "text", "#tag", "好", "|a|", "```", "1. c"]),
    max_size=12,
)


@given(_LINES, _LINES)
def test_no_line_gets_lost_and_nothing_comes_twice(held: list[str], content: list[str]) -> None:
    before = "\n".join(held)
    after = before + "\n" + new_text(before, "\n".join(content))
    assert {line.strip() for line in [*held, *content]} <= {line.strip() for line in after.splitlines()} | {""}
    assert new_text(after, "\n".join(content)) == ""


def test_a_note_is_made_and_then_only_grows(tmp_path: Path) -> None:
    assert append_note(tmp_path, TODAY, "- a", allowed=TODAY) == "- a\n"
    (tmp_path / TODAY).write_text("- a\n- no end of line", "utf-8")
    append_note(tmp_path, f"./{TODAY}", "- a\n- b", allowed=TODAY)
    assert (tmp_path / TODAY).read_text("utf-8") == "- a\n- no end of line\n- b\n"


@pytest.mark.parametrize(
    "path",
    [
        "MEMORY.md",
        "memory/2026-11-21.md",
        "memory/2026-11-22-evening.md",
        "../x.md",
        "/etc/passwd",
        "memory/../MEMORY.md",
    ],
)
def test_no_other_file_is_written(tmp_path: Path, path: str) -> None:
    with pytest.raises(WriteRefused, match=TODAY):
        append_note(tmp_path, path, "- a", allowed=TODAY)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("link", [TODAY, "memory", "a named pipe"])
def test_neither_a_link_nor_a_named_pipe_is_a_note(tmp_path: Path, link: str) -> None:
    workspace, elsewhere = tmp_path / "workspace", tmp_path / "elsewhere"
    (workspace / "memory").mkdir(parents=True)
    elsewhere.mkdir()
    if link == "memory":
        (workspace / "memory").rmdir()
    if link == "a named pipe":
        os.mkfifo(workspace / TODAY)
    else:
        (workspace / link).symlink_to(elsewhere if link == "memory" else elsewhere / "note.md")
    with pytest.raises(WriteRefused):
        append_note(workspace, TODAY, "- a", allowed=TODAY)
    assert list(elsewhere.iterdir()) == []


def test_two_writers_lose_nothing(tmp_path: Path) -> None:
    lines = [f"- line {number}" for number in range(200)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda line: append_note(tmp_path, TODAY, line, allowed=TODAY), [*lines, *lines]))
    assert sorted((tmp_path / TODAY).read_text("utf-8").splitlines()) == sorted(lines)


def test_notes_of_one_minute_never_overwrite_each_other(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        paths = list(threads.map(lambda number: create_note(tmp_path, "2026-11-22-2330", f"{number}"), range(40)))
    assert sorted((tmp_path / path).read_text("utf-8") for path in paths) == sorted(map(str, range(40)))
    assert paths.count("memory/2026-11-22-2330.md") == 1
    assert "memory/2026-11-22-2330-2.md" in paths


def test_a_note_that_could_not_be_written_whole_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / ".recalld-note").write_text("half a", "utf-8")
    note = create_note(tmp_path, "2026-11-22-2330", "one")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, limits[1]))
    try:
        with pytest.raises(OSError):  # noqa: PT011 - whichever it is
            create_note(tmp_path, "2026-11-22-2331", "x" * 6_000)
        with pytest.raises(OSError):  # noqa: PT011 - as above
            extend_note(tmp_path, note, "x" * 6_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert {path.name: path.read_text("utf-8") for path in (tmp_path / "memory").iterdir()} == {
        "2026-11-22-2330.md": "one"
    }


def test_a_text_is_added_once(tmp_path: Path) -> None:
    note = create_note(tmp_path, "2026-11-22-2330", "one")
    for _ in range(2):
        extend_note(tmp_path, note, "two\n")
    assert (tmp_path / note).read_text("utf-8") == "one\ntwo\n"


def test_notes_are_found_by_a_line_and_never_through_a_link(tmp_path: Path) -> None:
    line = "- Session: a"
    for name in ("b", "a"):
        create_note(tmp_path, name, f"# Session\n\n{line}  \n")
    create_note(tmp_path, "c", f"{line}b\nquoted: {line}\n")
    (tmp_path / "memory" / "d.md").symlink_to(tmp_path / "memory" / "a.md")
    (tmp_path / "memory" / "e.md").mkdir()
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    assert list(notes_with(tmp_path, line)) == ["memory/a.md", "memory/b.md"]
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors


def test_a_note_gets_another_name_unless_that_is_taken(tmp_path: Path) -> None:
    notes = [create_note(tmp_path, "2026-11-22-2330", text) for text in ("one", "two")]
    assert rename_note(tmp_path, notes[0], "2026-11-22-2330-vault") == "memory/2026-11-22-2330-vault.md"
    assert rename_note(tmp_path, notes[1], "2026-11-22-2330-vault") == notes[1] == "memory/2026-11-22-2330-2.md"
    assert sorted(note.read_text("utf-8") for note in tmp_path.glob("memory/*")) == ["one", "two"]
