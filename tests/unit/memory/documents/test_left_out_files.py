"""Globs over notes, extra paths and transcripts: the same documents whichever way one asks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory.documents.agent_files import AgentFiles, DocumentRefused
from memory.documents.comparison import forgets
from memory.documents.imports import ImportedFolder, imports_path, remember_import
from memory.documents.scan import UNREAD
from schemas.settings import AgentSettings, Settings
from tests.examples import examples
from tests.recording import entered_folders

FILES = (
    "ws/MEMORY.md",
    "ws/memory/2026-01-01.md",
    "ws/memory/drafts/a.md",
    "ws/memory/drafts/deep/b.md",
    "ws/wiki/a.md",
    "ws/wiki/old/b.md",
    "vault/a.md",
    "vault/old/c.md",
    "vault/old/drafts/d.md",
    "sessions/one.jsonl",
    "sessions/two.jsonl.zst",
    "sessions/old/three.jsonl",
    "imported/old/four.jsonl",
)
EXTRAS: tuple[Any, ...] = ("wiki", {"path": "../vault", "exclude": ["old/drafts/"]})


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tree")
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("words\n")
    remember_import(imports_path(folder / "home", "main"), ImportedFolder(str(folder / "imported"), None, None))
    return folder


def files_of(tree: Path, *extras: Any, **globs: Any) -> AgentFiles:
    agent = AgentSettings.model_validate(
        {"id": "main", "workspace": tree / "ws", "sessions": [str(tree / "sessions")], "extra_paths": extras, **globs}
    )
    return AgentFiles.of(Settings(home=tree / "home", agents=(agent,)), agent)


def found(tree: Path, files: AgentFiles) -> set[str]:
    """Return the documents of a scan, imports included, as paths below the tree."""
    documents = files.scan(imported=True).documents
    return {str(files.path_of(key).relative_to(tree)) for key in documents}


def test_globs_leave_out_notes_extra_paths_and_transcripts_alike(tree: Path) -> None:
    assert found(tree, files_of(tree, *EXTRAS)) == {*FILES} - {"vault/old/drafts/d.md"}
    files = files_of(tree, *EXTRAS, exclude=["old/", "memory/drafts", "sessions/two.jsonl"])
    assert found(tree, files) == {
        "ws/MEMORY.md",
        "ws/memory/2026-01-01.md",
        "ws/wiki/a.md",
        "vault/a.md",
        "sessions/one.jsonl",
    }
    # Three folders named old, those of sessions and of the import among them, are not looked into.
    assert files.scan().left_out == {"excluded": 1, "excluded folders": 4}


GLOBS = st.lists(
    st.sampled_from(
        ["drafts", "old/", "*.md", "*.jsonl", "memory/", "memory/*", "sessions/**", "**/old/*", "wiki/old", "[am]*"]
    ),
    max_size=3,
)


@settings(max_examples=examples(40))
@given(GLOBS, GLOBS, st.booleans())
def test_scan_events_and_reading_agree_on_what_is_left_out(
    tree: Path, include: list[str], exclude: list[str], around: bool
) -> None:
    files = files_of(tree, *((".",) if around else ()), *EXTRAS, include=include, exclude=exclude)
    scanned = set(files.scan(imported=True).documents)
    unlimited = files_of(tree, *EXTRAS)
    everything = {name: unlimited.key_of(tree / name.removesuffix(".zst")) for name in FILES}
    for name, key in everything.items():
        if key is None:
            continue
        path = tree / name
        counts = key in scanned
        assert (files.key_of(path) == key) is counts
        assert (files.reason_of(path) is None) is counts
        assert (files.stat(key) is not None) is counts
        assert forgets(files, key) or counts
        if counts:
            assert files.resolve(key.path) == key
            assert path.parent in entered_folders(files) or name.startswith(("imported", "ws/MEMORY"))
        else:
            with pytest.raises(DocumentRefused):
                files.resolve(key.path)


def test_sessions_that_no_format_reads_are_counted_and_are_no_documents(tmp_path: Path) -> None:
    chats = tmp_path / "sessions" / "chats"
    chats.mkdir(parents=True)
    for name in ("2025-10-01T09-00-a5.json", "2025-10-02T09-00-b6.json", "2025-10-02T09-00-b6.jsonl", "notes.json"):
        (chats / f"session-{name}").write_text("{}\n")
    (tmp_path / "ws").mkdir()
    scan = files_of(tmp_path).scan()
    assert [key.path for key in scan.documents] == ["sessions/chats/session-2025-10-02T09-00-b6.jsonl"]
    assert scan.left_out == {UNREAD: 1}, "the other one was written anew as lines"
