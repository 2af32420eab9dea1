"""Walker of folders: lists documents by name and stat. It opens no file and follows no link."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from memory.documents.roots import is_folder_name, is_utf8, parts_below
from memory.documents.scan import ScanProblems
from schemas.conditions import ConditionCode


@dataclass(frozen=True, slots=True)
class FolderRules:
    """Rules for what lies right inside one folder.

    `is_document` judges a file by its name. `takes` judges a document and `enters` a folder, each by its path as in
    keys; None accepts all. Both count what they leave out. No walk enters a hidden or ignored folder.
    """

    is_document: Callable[[str], bool]
    takes: Callable[[str], bool] | None = None
    enters: Callable[[str], bool] | None = None


def walk(
    top: str,
    start: str,
    rules: Callable[[str], FolderRules],
    problems: ScanProblems,
    *,
    goes_on: Callable[[str], bool] | None = None,
    entering: Callable[[str], object] | None = None,
) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the path and stat of each document below a folder. Costs a stat per document and a listing per folder.

    A path is as in keys: `start`, then the way below `top`. `rules` get the path of each folder, with its slash at the
    end. `goes_on` gets each folder that was opened; the walk ends when it returns False. `entering` gets each folder
    before it is listed. `problems` get the odd entries and the folders that the system does not list.
    """
    waiting = [(top, start)]
    while waiting:
        folder, start = waiting.pop()
        of_folder = rules(start)
        is_document, takes, enters = of_folder.is_document, of_folder.takes, of_folder.enters
        if entering is not None:
            entering(folder)
        try:
            with os.scandir(folder) as entries:
                if goes_on is not None and not goes_on(folder):
                    return
                for entry in entries:
                    name = entry.name
                    wanted = is_document(name)
                    if wanted and entry.is_file(follow_symlinks=False):
                        path = start + name
                        if takes is None or takes(path):
                            try:
                                result = entry.stat(follow_symlinks=False)
                            except FileNotFoundError:
                                continue
                            except OSError as error:
                                if error.errno != errno.ENAMETOOLONG:
                                    raise
                                problems.add(ConditionCode.PATH_TOO_LONG, entry.path)
                                continue
                            yield path, result
                    elif is_folder_name(name) and entry.is_dir(follow_symlinks=False):
                        if enters is None or enters(start + name):
                            waiting.append((entry.path, f"{start}{name}/"))
                    else:
                        _add_odd_entry(problems, entry, top, is_document=wanted)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            problems.add_unlistable(folder, error)


def _add_odd_entry(problems: ScanProblems, entry: os.DirEntry[str], top: str, *, is_document: bool) -> None:
    """Add the condition of an entry that a user may miss: neither a document nor a folder that the walk enters.

    `is_document`: by its name. A link to what lies below `top` anyway is no loss.
    """
    name = entry.name
    if not is_utf8(name):
        if not name.startswith("."):
            problems.add(ConditionCode.FILE_NAME_NOT_UTF8, entry.path)
    elif entry.is_symlink():
        if is_document or (is_folder_name(name) and os.path.isdir(entry.path)):  # noqa: PTH112 - Path raises for a loop of links
            target = os.path.realpath(entry.path)
            if parts_below(target, os.path.realpath(top)) is None or not os.path.exists(target):  # noqa: PTH110 - a plain string
                problems.add(ConditionCode.FILE_IS_LINK, entry.path)
    elif is_document and not entry.is_dir(follow_symlinks=False):
        problems.add(ConditionCode.FILE_NOT_REGULAR, entry.path)
