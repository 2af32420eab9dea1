"""Imports: folders of old transcripts that a user backfilled, kept in `<home>/imports/<agent>.json`.

recalld reads them on demand, and whenever the index needs one of their documents again. It neither scans nor watches
them. The file is one object:
`{"folders": [{"folder": absolute path, "format": name or null, "files": [paths below the folder] or null}]}`.
An entry with an empty list of files takes the transcripts at or below `folder` out of the entries before it.

A user's pause or cancellation of the backfill is a file beside the list: `<home>/imports/<agent>.halt`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from memory.documents.roots import parts_below
from memory.http.whole_files import write_whole
from schemas.errors import UserError


@dataclass(frozen=True, slots=True)
class ImportedFolder:
    """Import of a folder (an absolute path).

    `format`: name of the transcripts' format, None to find it out. `files`: paths relative to `folder`, None for all
    transcripts below it.
    """

    folder: str
    format: str | None = None
    files: tuple[str, ...] | None = None


def halt_path(home: Path, agent: str) -> Path:
    """Return the path of a file that exists while a user halts an agent's backfill."""
    return home / "imports" / f"{agent}.halt"


def backfill_halt(home: Path, agent: str) -> Literal["paused", "cancelled"] | None:
    """Return the state in which a user halted the backfill.

    `paused`: neither documents nor vectors of the backfill lane get on. `cancelled`: held vectors stay held.
    """
    with contextlib.suppress(OSError):
        return "paused" if halt_path(home, agent).read_text("utf-8") == "paused" else "cancelled"
    return None


def keep_halt(home: Path, agent: str, halt: str) -> None:
    """Keep the state in which a user halts an agent's backfill; "" ends it. Raise UserError if that fails."""
    path = halt_path(home, agent)
    try:
        write_whole(path, halt.encode()) if halt else path.unlink(missing_ok=True)
    except OSError as error:
        raise _unwritable(path, error) from None


def imports_path(home: Path, agent: str) -> Path:
    """Return the path of the list of an agent's imports."""
    return home / "imports" / f"{agent}.json"


def imported_folders(path: Path) -> list[ImportedFolder]:
    """Return the imports in their order; none without a list.

    Raises:
        UserError: the file is there and cannot be read or understood.
    """
    try:
        return [_imported(entry) for entry in json.loads(path.read_bytes())["folders"]]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); mend its permissions") from None
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path} is damaged; delete it and import the transcripts again") from None


def remember_import(path: Path, imported: ImportedFolder) -> None:
    """Add an import to the list. Several of one folder and format become one. Raise as `change_imports` does."""
    change_imports(path, lambda before: with_import(before, imported))


def change_imports(path: Path, change: Callable[[list[ImportedFolder]], list[ImportedFolder]]) -> None:
    """Replace the list by the result of `change`.

    Raises:
        UserError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _alone(path):
            try:
                before = imported_folders(path)
            except UserError:
                before = []  # damaged: the new import replaces it
            after = change(before)
            if after != before:
                _write(path, after)
    except OSError as error:
        raise _unwritable(path, error) from None


def _unwritable(path: Path, error: OSError) -> UserError:
    return UserError(f"{path} cannot be written ({error.strerror}); free some space there or correct its permissions")


def with_import(before: list[ImportedFolder], imported: ImportedFolder) -> list[ImportedFolder]:
    """Return the list with one more import. Those of its folder become one, the last: the last names the format."""
    last_exclusion = max((at for at, entry in enumerate(before) if entry.files == ()), default=-1)
    later = before[last_exclusion + 1 :]
    of_folder = [entry for entry in later if (entry.folder, entry.format) == (imported.folder, imported.format)]
    rest = [entry for entry in before if entry not in of_folder]
    together = imported
    for entry in of_folder:
        if entry.files is None or together.files is None:
            together = replace(together, files=None)
        else:
            together = replace(together, files=tuple(dict.fromkeys((*entry.files, *together.files))))
    return [*rest, together]


def without(before: list[ImportedFolder], path: str) -> list[ImportedFolder]:
    """Return the list without the transcripts at or below an absolute path."""
    rest = [entry for entry in before if parts_below(entry.folder, path) is None]
    is_within = any(parts_below(path, entry.folder) is not None for entry in rest)
    return [*rest, ImportedFolder(path, None, ())] if is_within else rest


def with_files(before: list[ImportedFolder], paths: Collection[str]) -> list[ImportedFolder]:
    """Return the list with no other transcripts than those at `paths`."""
    after = []
    for entry in before:
        below = (parts_below(path, entry.folder) for path in paths)
        names = dict.fromkeys("/".join(parts) for parts in below if parts)
        files = tuple(names if entry.files is None else (name for name in entry.files if name in names))
        if files or entry.files == ():
            after.append(replace(entry, files=files))
    return after


def _imported(entry: dict[str, Any]) -> ImportedFolder:
    folder, name, files = entry["folder"], entry.get("format"), entry.get("files")
    if not isinstance(folder, str) or not folder.startswith("/") or "\0" in folder:
        raise ValueError(folder)
    if files is not None and not (isinstance(files, list) and all(isinstance(file, str) for file in files)):
        raise ValueError(files)
    return ImportedFolder(folder, None if name is None else str(name), None if files is None else tuple(files))


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold the list's lock, so that of two imports at a time none is lost."""
    with path.with_name(f".{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _write(path: Path, folders: list[ImportedFolder]) -> None:
    body = [{"folder": entry.folder, "format": entry.format, "files": entry.files} for entry in folders]
    write_whole(path, json.dumps({"folders": body}, indent=1).encode() + b"\n")
