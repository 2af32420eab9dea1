"""Paths of a backfill: the transcripts below them, newest first. No file is opened; only named paths may be links."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from memory.documents.imports import ImportedFolder
from memory.documents.roots import is_utf8
from memory.documents.scan import ScanProblems, file_stat, printable
from memory.documents.session_roots import COMPRESSED, document_name, is_transcript_name
from memory.documents.walk import FolderRules, walk
from memory.status.condition_texts import text_of
from schemas.conditions import ConditionCode
from schemas.documents import FileStat

#: Conditions of a walk that a user must know of. A link or an odd name below a folder is no loss to a backfill.
_TOLD = {ConditionCode.FOLDER_UNLISTABLE, ConditionCode.PATH_TOO_LONG}

_RULES = FolderRules(is_transcript_name)


@dataclass(frozen=True, slots=True)
class FoundTranscript:
    """Transcript: the absolute path of its document (without `.zst`), and the stat of the file that is read."""

    path: str
    stat: FileStat


@dataclass(frozen=True, slots=True)
class Found:
    """Transcripts of a backfill, newest first.

    `folders`: those that hold them. `left_out`: number of transcripts that dates or the limit leave out. `problems`:
    one sentence each for the user.
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
    search = _Search(format)
    for path in paths:
        search.look_at(path)
    found = search.transcripts()
    wanted = [one for one in found if _lies_between(one, since, until)]
    wanted.sort(key=lambda one: (-one.stat.mtime_ns, one.path))
    chosen = wanted[:limit]
    return Found(
        tuple(chosen), tuple(search.folders()), len(found) - len(chosen), tuple(dict.fromkeys(search.problems))
    )


class _Search:
    """Search for transcripts. A plain file and its compressed twin are one transcript, and the plain one is read."""

    def __init__(self, format: str | None) -> None:  # noqa: A002 - the name of the flag
        self.problems: list[str] = []
        self._whole: dict[str, None] = {}
        self._named: dict[str, dict[str, None]] = {}
        self._format = format
        self._files: dict[str, FileStat] = {}

    def look_at(self, named: Path) -> None:
        """Add the folder with all below it, or the transcript, that a path names."""
        path = os.path.realpath(named)
        shown = printable(str(named))
        if not is_utf8(path):
            self.problems.append(f"{shown} is left out: its name is not UTF-8; rename it")
            return
        try:
            result = os.stat(path)  # noqa: PTH116 - a plain string
        except FileNotFoundError:
            self.problems.append(f"{shown} is not there")
        except OSError as error:
            self.problems.append(f"{shown} cannot be looked at: {error.strerror or error}; check its permissions")
        else:
            if stat.S_ISDIR(result.st_mode):
                self._whole[path] = None
                self._add_folder(path)
            elif not stat.S_ISREG(result.st_mode) or not is_transcript_name(os.path.basename(path)):  # noqa: PTH119
                self.problems.append(f"{shown} is no transcript: those are files named *.jsonl or *.jsonl.zst")
            else:
                folder, name = os.path.split(path)
                self._named.setdefault(folder, {})[name] = None
                self._files[path] = file_stat(result)

    def folders(self) -> list[ImportedFolder]:
        """Return the folders of the transcripts, each once."""
        named = {folder: tuple(names) for folder, names in self._named.items() if folder not in self._whole}
        return [
            *(ImportedFolder(folder, self._format, None) for folder in self._whole),
            *(ImportedFolder(folder, self._format, names) for folder, names in named.items()),
        ]

    def transcripts(self) -> list[FoundTranscript]:
        """Return each transcript once."""
        return [
            FoundTranscript(document_name(path), stat)
            for path, stat in self._files.items()
            if not (path.endswith(COMPRESSED) and document_name(path) in self._files)
        ]

    def _add_folder(self, top: str) -> None:
        problems = ScanProblems()
        found = walk(top, top.rstrip(os.sep) + os.sep, lambda _: _RULES, problems)
        self._files.update((path, file_stat(result)) for path, result in found)
        self.problems += [text_of(one) for one in problems.conditions() if {one.code, one.params.get("kind")} & _TOLD]


def _lies_between(one: FoundTranscript, since: float | None, until: float | None) -> bool:
    written = one.stat.mtime_ns / 1e9
    return (since is None or written >= since) and (until is None or written < until)
