"""Which transcripts lie below paths that a person named, newest first. Nothing is opened, no link is followed."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from memory.document_roots import is_folder_name
from memory.imports import ImportedFolder
from memory.scanning import file_stat, printable
from memory.session_roots import is_transcript_name
from schemas.documents import FileStat


@dataclass(frozen=True, slots=True)
class FoundTranscript:
    """One transcript: its absolute path, and its stat."""

    path: str
    stat: FileStat


@dataclass(frozen=True, slots=True)
class Found:
    """`transcripts`, newest first; the `folders` they lie in; how many were `left_out` by dates or limit.

    `problems`: one sentence each for a person.
    """

    transcripts: tuple[FoundTranscript, ...]
    folders: tuple[ImportedFolder, ...]
    left_out: int
    problems: tuple[str, ...]


def find_transcripts(
    paths: Sequence[Path],
    *,
    format: str | None = None,  # noqa: A002 - the name of the flag
    since: float | None = None,
    until: float | None = None,
    limit: int | None = None,
) -> Found:
    """List transcripts. `since` and `until` bound the time of the last write, in Unix seconds, `until` exclusively."""
    found: dict[str, FoundTranscript] = {}
    folders: dict[str, ImportedFolder] = {}
    problems: list[str] = []
    for named in paths:
        path = os.path.realpath(named)
        if os.path.isdir(path):  # noqa: PTH112 - a plain string, many times
            folders[path] = ImportedFolder(path, format, None)
            found.update((one.path, one) for one in _below(path, problems))
        elif not os.path.exists(path):  # noqa: PTH110
            problems.append(f"{named} is not there")
        elif not is_transcript_name(os.path.basename(path)):  # noqa: PTH119
            problems.append(f"{named} is no transcript: its name does not end in .jsonl or .jsonl.zst")
        else:
            folder, name = os.path.split(path)
            folders[path] = ImportedFolder(folder, format, (name,))
            found[path] = FoundTranscript(path, file_stat(os.stat(path)))  # noqa: PTH116
    wanted = [one for one in found.values() if _lies_between(one, since, until)]
    wanted.sort(key=lambda one: (-one.stat.mtime_ns, one.path))
    chosen = wanted[:limit]
    return Found(tuple(chosen), tuple(folders.values()), len(found) - len(chosen), tuple(problems))


def _below(top: str, problems: list[str]) -> Iterator[FoundTranscript]:
    waiting = [top]
    while waiting:
        folder = waiting.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        if is_folder_name(entry.name):
                            waiting.append(entry.path)
                    elif is_transcript_name(entry.name):
                        result = entry.stat(follow_symlinks=False)
                        if stat.S_ISREG(result.st_mode):
                            yield FoundTranscript(entry.path, file_stat(result))
        except FileNotFoundError:
            continue
        except OSError as error:
            problems.append(f"{printable(folder)} cannot be listed: {error.strerror or error}; check its permissions")


def _lies_between(one: FoundTranscript, since: float | None, until: float | None) -> bool:
    written = one.stat.mtime_ns / 1e9
    return (since is None or written >= since) and (until is None or written < until)
