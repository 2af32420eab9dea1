"""Globs over notes, extra paths and transcripts: the same documents whichever way one asks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory.documents.agent_files import AgentFiles, DocumentRefused
from memory.documents.comparison import forgets
from memory.documents.imports import ImportedFolder, imports_path, remember_import
from schemas.documents import DocumentKey
from schemas.settings import AgentSettings, Settings
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
    """What a scan finds, imports included, as paths below the tree."""
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


def test_included_is_what_one_of_the_globs_names(tree: Path) -> None:
    files = files_of(tree, *EXTRAS, include=["MEMORY.md", "wiki/", "*/old/*.jsonl"], exclude=["b.md"])
    assert found(tree, files) == {"ws/MEMORY.md", "ws/wiki/a.md", "sessions/old/three.jsonl"}


def test_a_glob_with_a_slash_is_compared_with_the_path_that_results_show(tree: Path) -> None:
    files = files_of(tree, "../vault", include=[f"{tree}/vault/*.md", "memory/*.md"])
    assert found(tree, files) == {"ws/memory/2026-01-01.md", "vault/a.md"}


def test_names_above_a_folder_outside_the_workspace_are_none_that_globs_look_for(tree: Path) -> None:
    files = files_of(tree, "../vault", exclude=[tree.name, "vault", "imported"])
    assert {"vault/a.md", "imported/old/four.jsonl", "ws/MEMORY.md"} <= found(tree, files)


@pytest.mark.parametrize("around", [(), (".",), ("..",), (".", "..")])
def test_globs_of_an_extra_path_hold_for_all_below_it_whichever_root_reaches_it(
    tree: Path, around: tuple[str, ...]
) -> None:
    files = files_of(
        tree,
        {"path": "wiki", "include": ["a.md"]},
        {"path": "../vault", "exclude": ["old/"]},
        *around,
    )
    notes = {name for name in found(tree, files) if name.startswith(("ws/wiki", "vault"))}
    assert notes == {"ws/wiki/a.md", "vault/a.md"}
    assert "ws/memory/2026-01-01.md" in found(tree, files)


def test_a_folder_that_holds_the_workspace_counts_its_globs_from_itself(tree: Path) -> None:
    files = files_of(tree, {"path": "..", "exclude": ["ws/memory/drafts/", "vault/"]})
    assert {"ws/memory/2026-01-01.md", "ws/wiki/a.md"} <= found(tree, files)
    assert not {name for name in found(tree, files) if name.startswith(("ws/memory/drafts", "vault"))}


def test_a_folder_that_is_left_out_is_neither_watched_nor_looked_into(tree: Path) -> None:
    files = files_of(tree, *EXTRAS, exclude=["drafts/", "vault", "/**/vault/", str(tree / "vault"), "sessions/"])
    watched = {root.path for root in files.watch_roots()}
    assert tree / "ws/memory" in watched
    assert not watched & {tree / "vault", tree / "sessions"}
    assert tree / "ws/memory" in entered_folders(files)
    assert tree / "ws/memory/drafts" not in entered_folders(files)
    assert tree / "ws/memory/drafts/deep" not in entered_folders(files)
    assert tree / "sessions" not in entered_folders(files)


def test_what_is_left_out_is_to_be_forgotten_and_what_is_only_gone_from_an_import_is_not(tree: Path) -> None:
    everything = files_of(tree, *EXTRAS).scan(imported=True).documents
    files = files_of(tree, *EXTRAS, exclude=["four.jsonl", "one.jsonl", "memory/"])
    out = {key for key in everything if forgets(files, key) and not files.path_of(key).is_symlink()}
    assert {DocumentKey("sessions", "sessions/one.jsonl"), DocumentKey("memory", "memory/2026-01-01.md")} <= out
    transcripts = [key for key in everything if key.source == "sessions"]
    gone = DocumentKey("sessions", str(tree / "imported/gone.jsonl"))
    assert files.left_out([*transcripts, gone]) == {
        DocumentKey("sessions", "sessions/one.jsonl"),
        DocumentKey("sessions", str(tree / "imported/old/four.jsonl")),
    }


GLOBS = st.lists(
    st.sampled_from(
        ["drafts", "old/", "*.md", "*.jsonl", "memory/", "memory/*", "sessions/**", "**/old/*", "wiki/old", "[am]*"]
    ),
    max_size=3,
)


@given(GLOBS, GLOBS, st.booleans())
def test_scan_events_and_reading_agree_on_what_is_left_out(
    tree: Path, include: list[str], exclude: list[str], around: bool
) -> None:
    files = files_of(tree, *((".",) if around else ()), *EXTRAS, include=include, exclude=exclude)
    scanned = set(files.scan(imported=True).documents)
    everything = {name: files_of(tree, *EXTRAS).key_of(tree / name.removesuffix(".zst")) for name in FILES}
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
