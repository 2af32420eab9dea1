"""Globs of include and exclude: what they match, and what they refuse."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.globs import compiled

NAMES = st.text(st.characters(exclude_characters="/\0", codec="utf-8"), min_size=1, max_size=8).filter(
    lambda name: name not in (".", "..") and not name.startswith("./")
)
PATHS = st.lists(NAMES, min_size=1, max_size=5)


def excludes(glob: str, path: str, *, skip: int = 0) -> bool:
    globs = compiled((), [glob])
    assert globs is not None
    return not globs.admits(path, skip=skip)


def literal(name: str) -> str:
    return re.sub(r"[][*?]", lambda sign: f"[{sign[0]}]", name)


@pytest.mark.parametrize(
    ("glob", "matched", "other"),
    [
        ("drafts", "memory/drafts/a.md", "memory/drafts.md"),
        ("drafts/", "drafts/deep/a.md", "memory/drafts"),
        ("*.tmp.md", "memory/x/a.tmp.md", "memory/a.tmp.md.md"),
        ("memory/2025-*.md", "memory/2025-01-01.md", "memory/old/2025-01-01.md"),
        ("memory/**/2025-*.md", "memory/a/b/2025-01-01.md", "x/memory/2025-01-01.md"),
        ("memory/**/2025-*.md", "memory/2025-01-01.md", "memory/2026-01-01.md"),
        ("**/a.md", "a.md", "ba.md"),
        ("memory/**", "memory/a/b.md", "memory"),
        ("./memory/a.md", "memory/a.md", "x/memory/a.md"),
        ("/srv/*/a.md", "/srv/x/a.md", "/srv/x/y/a.md"),
        ("[a-c]?.md", "q/bz.md", "q/b.md"),
        ("[!a-c].md", "d.md", "a.md"),
        ("[]].md", "].md", "[.md"),
        ("sessions/x.jsonl", "sessions/x.jsonl", "sessions/x.jsonl.reset.2026-01-01"),
        ("a.md", "x/a.md", "x/a.mdx"),
    ],
)
def test_a_glob_matches_as_in_gitignore(glob: str, matched: str, other: str) -> None:
    assert excludes(glob, matched)
    assert not excludes(glob, other)


@pytest.mark.parametrize("glob", ["", "/", "/**", "!a", "../x", "a/../b", "a[b", "a[", "[z-a]", "a\0", "x" * 1_001])
def test_what_is_no_glob_is_refused(glob: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        compiled((glob,), ())


def test_a_name_is_looked_for_only_below_the_configured_folder() -> None:
    assert excludes("tmp", "/tmp/wiki/a.md")
    assert not excludes("tmp", "/tmp/wiki/a.md", skip=len("/tmp/wiki"))
    assert excludes("tmp", "/tmp/wiki/tmp/a.md", skip=len("/tmp/wiki"))
    assert excludes("/tmp/wiki/a.md", "/tmp/wiki/a.md", skip=len("/tmp/wiki"))


def test_without_globs_there_is_nothing_to_match_with() -> None:
    assert compiled((), ()) is None


@given(PATHS, st.integers(0, 4))
def test_a_path_written_out_is_its_own_glob_and_excludes_all_below_it(parts: list[str], extra: int) -> None:
    glob = "./" + "/".join(map(literal, parts))
    below = "/".join([*parts, *["x"] * extra])
    assert excludes(glob, below)
    assert excludes(f"{glob}/", below + "/y")


@given(PATHS, st.text("ab*?[]-!./", max_size=8))
def test_everything_in_a_folder_that_is_closed_is_excluded(parts: list[str], glob: str) -> None:
    try:
        globs = compiled((), [glob])
    except ValueError:
        return
    folder = "/".join(parts)
    if globs is not None and globs.closes(folder):
        assert not globs.admits(f"{folder}/a")
        assert not globs.admits(f"{folder}/b/c.md")
