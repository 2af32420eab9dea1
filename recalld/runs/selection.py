"""Selection of the transcripts of a backfill: by the times of their messages, by program, project and path."""

from __future__ import annotations

import json
import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from memory.documents.imports import ImportedFolder
from memory.documents.roots import COMPRESSED, document_name, is_transcript_name, is_utf8
from memory.documents.scan import ScanProblems, file_stat, printable, walk
from memory.http.whole_files import write_whole
from memory.status.condition_texts import text_of
from memory.transcripts.interpreter import Interpreter
from memory.transcripts.lines import decompressed, read_lines
from memory.transcripts.transcript_format import Message
from recalld.discover.machine import working_folder_in
from recalld.terminal_text import reading
from schemas.conditions import ConditionCode
from schemas.documents import FileStat
from schemas.errors import Permanent, UserError
from schemas.globs import Globs, compiled

#: Conditions of a walk that a user must know of. A link or an odd name below a folder is no loss to a backfill.
_REPORTED = {ConditionCode.FOLDER_UNLISTABLE, ConditionCode.PATH_TOO_LONG}

#: Bytes that are read of a transcript's beginning and end, the next more if one of them has no message.
_END_BYTES = (65_536, 1_048_576, 16_777_216)


@dataclass(frozen=True, slots=True)
class TranscriptSelection:
    """Transcripts of a backfill, newest first: absolute paths (without `.zst`) with the stat of the file that is read.

    `folders` hold them. `left_out` counts the other transcripts by reason. `problems` are sentences for the user.
    """

    transcripts: Mapping[str, FileStat]
    folders: tuple[ImportedFolder, ...]
    left_out: Mapping[str, int]
    problems: tuple[str, ...]

    @property
    def left_out_sentence(self) -> str:
        """Return the counts of transcripts that are left out; "" without any."""
        reasons = ", ".join(f"{count:,} by {reason}" for reason, count in self.left_out.items())
        return f"{sum(self.left_out.values()):,} left out ({reasons})" if reasons else ""


class _Facts(NamedTuple):
    """Facts of a transcript: its program, the folder that it names, and the times of its first and last message."""

    program: str | None
    folder: str | None
    first: float
    last: float


def find_transcripts(
    paths: Sequence[Path],
    *,
    home: Path,
    format: str | None = None,  # noqa: A002 - the name of the flag
    since: float | None = None,
    until: float | None = None,
    project: Sequence[str] = (),
    program: Sequence[str] = (),
    exclude: Sequence[str] = (),
    limit: int | None = None,
) -> TranscriptSelection:
    """List transcripts with a message from `since` to before `until`, in Unix seconds, of some projects and programs.

    The globs `project` and `exclude` are for folders, and for the folder that a transcript names. The facts of the
    transcripts that decide are kept in `home`.

    Raises:
        UserError: a glob is not valid.
    """
    files: dict[str, FileStat] = {}
    skips: dict[str, int] = {}  # characters of a path above the folder that the user gave
    folders: dict[str, bool] = {}  # True if the user gave the whole folder
    problems: list[str] = []
    for given in paths:
        path, printable_path = os.path.realpath(given), printable(str(given))
        try:
            result = os.stat(path)  # noqa: PTH116 - a plain string
        except FileNotFoundError:
            problems.append(f"{printable_path} is not there")
            continue
        except OSError as error:
            problems.append(f"{printable_path} cannot be looked at: {error.strerror or error}; check its permissions")
            continue
        folder, name = os.path.split(path)
        if not is_utf8(path):
            problems.append(f"{printable_path} is left out: its name is not UTF-8; rename it")
        elif stat.S_ISDIR(result.st_mode):
            folders[path] = True
            scan_problems = ScanProblems()
            below = dict(walk(path, path.rstrip(os.sep) + os.sep, is_transcript_name, scan_problems))
            files.update((path, file_stat(result)) for path, result in below.items())
            skips |= dict.fromkeys(below, path.rfind(os.sep))
            problems += [
                text_of(condition)
                for condition in scan_problems.conditions()
                if {condition.code, condition.params.get("kind")} & _REPORTED
            ]
        elif stat.S_ISREG(result.st_mode) and is_transcript_name(name):
            folders.setdefault(folder, False)
            files[path], skips[path] = file_stat(result), folder.rfind(os.sep)
        else:
            problems.append(f"{printable_path} is no transcript: those are files named *.jsonl or *.jsonl.zst")
    # A plain file and its compressed twin are one transcript, and the plain one is read.
    transcripts = {
        document_name(path): stat
        for path, stat in files.items()
        if not (path.endswith(COMPRESSED) and document_name(path) in files)
    }
    reasons: dict[str, str] = {}
    selected = sorted(transcripts, key=lambda path: (-transcripts[path].mtime_ns, path))
    if since is not None or until is not None or limit or project or program or exclude:
        sources = {name: name if name in files else name + COMPRESSED for name in transcripts}
        facts = _facts_of({path: files[path] for path in sources.values()}, format, home)
        projects, excluded, start, end = _globs(project), _globs(exclude), since or 0.0, until or float("inf")
        for name, path in sources.items():
            places = path[skips[path] :], f"{facts[path].folder or ''}/"
            if excluded is not None and any(map(excluded.admits, places)):
                reasons[name] = "exclusion"
            elif program and facts[path].program not in program:
                reasons[name] = "program"
            elif projects is not None and not any(map(projects.admits, places)):
                reasons[name] = "project"
            elif not _has_message(path, facts[path], start, end):
                reasons[name] = "date"
        selected = sorted(transcripts.keys() - reasons, key=lambda name: (-facts[sources[name]].last, name))
        reasons |= dict.fromkeys(selected[limit:] if limit else (), "limit")
    chosen = {name: transcripts[name] for name in selected if name not in reasons}
    imported = []
    for folder, is_whole in folders.items():
        names = [name for name in transcripts if name.startswith(f"{folder.rstrip('/')}/")]
        # The index must not take in the others, for example when it is built anew.
        only = None if is_whole and reasons.keys().isdisjoint(names) else [name for name in names if name in chosen]
        relative = None if only is None else tuple(os.path.relpath(name, folder) for name in only)
        if relative != ():
            imported.append(ImportedFolder(folder, format, relative))
    return TranscriptSelection(chosen, tuple(imported), Counter(reasons.values()), tuple(dict.fromkeys(problems)))


def _globs(globs: Sequence[str]) -> Globs | None:
    """Return globs that match at any depth. Raise UserError for text that is not one."""
    try:
        return compiled([f"**/{glob.removeprefix('**/').lstrip('/')}" for glob in globs], ())
    except ValueError as error:
        raise UserError(str(error), exit_code=2) from None


def _facts_of(files: Mapping[str, FileStat], format_name: str | None, home: Path) -> dict[str, _Facts]:
    """Return the facts of transcripts, of those that are as they were from the cache in `home`."""
    cache, cached = home / "cache" / "transcripts.json", dict[str, list[Any]]()
    with suppress(OSError, ValueError):
        cached = json.loads(cache.read_bytes())
    states = {path: [stat.size, stat.mtime_ns, format_name] for path, stat in files.items()}
    unread = [path for path, state in states.items() if cached.get(path, [])[:3] != state]
    for path in reading(unread, unit="transcripts"):
        cached[path] = [*states[path], *_read_facts(path, files[path].mtime_ns / 1e9, format_name)]
    if unread and home.is_dir():
        with suppress(OSError):
            write_whole(cache, json.dumps(cached).encode(), synced=False)
    return {path: _Facts(*cached[path][3:]) for path in files}


def _read_facts(path: str, written_at: float, format_name: str | None) -> _Facts:
    """Read the beginning and the end of a transcript. Without times in them, the time of the last write counts."""
    reader, first, last, folder = Interpreter(format_name), None, None, None
    with suppress(OSError, Permanent):  # reading it to index it will say why
        for most in _END_BYTES:
            head, tail, is_whole = _ends(path, most)
            reader, folder = Interpreter(format_name), working_folder_in(head)
            first = next(_times(reader, head.split(b"\n")[: None if is_whole else -1]), None)
            last = next(_times(reader, reversed(tail.split(b"\n")[0 if is_whole else 1 :])), None)
            if is_whole or (first and last):
                break
    program, path_text = reader.format.name if reader.format else None, str(folder) if folder else None
    return _Facts(program, path_text, first or last or written_at, last or first or written_at)


def _ends(path: str, most: int) -> tuple[bytes, bytes, bool]:
    """Return up to `most` bytes of the beginning and of the end of a transcript; True if each has all of it."""
    head, tail, length = b"", b"", 0
    with open(path, "rb") as file:  # noqa: PTH123 - a plain string
        size = os.fstat(file.fileno()).st_size
        if not path.endswith(COMPRESSED):
            return file.read(most), os.pread(file.fileno(), most, max(0, size - most)), size <= most
        for block in decompressed(partial(os.pread, file.fileno()), size):
            head, tail, length = head + block[: most - len(head)], (tail + block)[-most:], length + len(block)
    return head, tail, length <= most


def _times(reader: Interpreter, lines: Iterable[bytes | None]) -> Iterator[float]:
    for line in lines:
        if line and isinstance(message := reader.read(line), Message) and message.said_at is not None:
            yield message.said_at


def _has_message(path: str, facts: _Facts, since: float, until: float) -> bool:
    """Return True if a transcript has a message from `since` to before `until`."""
    is_certain = since <= facts.first < until or since <= facts.last < until
    if is_certain or not facts.first < since < until <= facts.last:
        return is_certain
    with suppress(OSError, Permanent), open(path, "rb") as file:  # noqa: PTH123 - a plain string
        lines = read_lines(file.fileno(), offset=0, end=None, compressed=path.endswith(COMPRESSED))
        return any(since <= time < until for time in _times(Interpreter(facts.program), (line.data for line in lines)))
    return True
