"""Files of a home: their folders and sizes, and which of them recalld made."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

#: Path in a home, or in the folder of indexes as `indexes/...` -> recalld made it. Drafts of a crash are hidden files.
_MADE = re.compile(
    r"(?:agents|connections)\.json|namespace|id|machine-id|owner\.lock|session-ends|imports/[^/]+\.(?:json|halt)|consents/[^/]+\.jsonl|(?:qmd|spool)/.+"
    r"|broker/(?:lock|owner\.lock|server|valkey\.log(?:\.1)?|valkey\.sock|temp-[^/]+|(?:appendonlydir|damaged-\d+)/.+)"
    r"|cache/(?:(?:embeddings|batch_jobs)\.sqlite[^/]*|stopped-\w+\.json|models/.+)"
    r"|sent/[^/]+/[^/]+\.sqlite[^/]*"
    r"|indexes/[^/]+/(?:CURRENT|NEXT|lock|[^/]+\.sqlite[^/]*)"
    r"|log/(?:up|watch|serve|work-\d+)\.log(?:\.1)?"
    r"|run/(?:[\w.-]+\.(?:json|lock)|crash-[\d-]+\.log|(?:owner|metrics)-token|unfinished|tokens/[^/]+)"
    r"|(?:[^/]+/)*(?:\.[^/]+\.\d+\.[0-9a-f]{8}|[^/]+\.damaged-\d+(?:/.+)?)"
)

#: Folders of a home that hold nothing but files of recalld, if a user put nothing into them.
_FOLDERS = ("indexes", "cache", "broker", "log", "run", "imports", "consents", "qmd", "spool", "sent")


def size_of(path: Path) -> int | None:
    """Return the bytes of a file, or of all files below a folder; None if it is not there."""
    if not path.exists():
        return None
    return sum(file.lstat().st_size for file in (_below(path) if path.is_dir() else [path]) if not file.is_symlink())


def files_of(home: Path, indexes: Path) -> tuple[list[Path], list[Path]]:
    """Return the files of a home, and of its indexes elsewhere, that recalld made, and the others.

    Of other folders and links the names alone are looked at.
    """
    names = {file: file.relative_to(home) for entry in _entries(home) for file in _files_in(entry)}
    if indexes != home / "indexes":
        names |= {file: Path("indexes") / file.relative_to(indexes) for file in _below(indexes)}
    our_files = [file for file, name in names.items() if _MADE.fullmatch(name.as_posix())]
    return our_files, sorted(names.keys() - set(our_files))


def remove_files(files: list[Path], home: Path, indexes: Path) -> None:
    """Remove files of a home, and the folders that they leave empty. Raises OSError."""
    for file in files:
        file.unlink(missing_ok=True)
    for folder in (indexes, *(home / name for name in _FOLDERS)):
        for place, _, _ in os.walk(folder, topdown=False):
            with suppress(OSError):  # it has other files, or is a link
                Path(place).rmdir()
    with suppress(OSError):
        home.rmdir()


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _files_in(entry: Path) -> Iterator[Path]:
    is_folder = entry.name in _FOLDERS and entry.is_dir() and not entry.is_symlink()
    yield from _below(entry) if is_folder else [entry]


def _below(folder: Path) -> Iterator[Path]:
    """Yield everything below a folder but folders; links are not followed."""
    for place, folders, files in os.walk(folder):
        yield from (Path(place, name) for name in files)
        yield from (path for name in folders if (path := Path(place, name)).is_symlink())
