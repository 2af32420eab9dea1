"""One look at the whole machine."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from memory.document_roots import is_utf8
from recalld.discovering.claude_code import find_claude_code
from recalld.discovering.codex import find_codex
from recalld.discovering.counting import Deadline
from recalld.discovering.finding import Discovery, Found, with_unique_names
from recalld.discovering.folders import find_folders
from recalld.discovering.openclaw import find_openclaw
from recalld.program_folders import ProgramFolders

#: Seconds that counting files may take; what is not counted by then is listed all the same.
COUNTING_SECONDS = 10.0


def discover(folders: ProgramFolders, here: Path, *, seconds: float = COUNTING_SECONDS) -> Discovery:
    """Everything that there is, under names that are agents' ids."""
    deadline = Deadline(seconds)
    all_of_it = (
        find_openclaw(folders.openclaw, folders.openclaw_config, deadline=deadline)
        + find_claude_code(folders.claude_code, deadline=deadline)
        + find_codex(folders.codex, deadline=deadline)
        + find_folders(here, deadline=deadline)
    )
    problems = list(all_of_it.problems)
    found = []
    for one in _without_known_folders(all_of_it.found):
        if all(map(is_utf8, (str(one.workspace), *one.sessions))):
            found.append(one)
        else:
            problems.append(f"{one.title}: the folder's name is not UTF-8, so it cannot be written into settings")
    return Discovery(with_unique_names(found), tuple(problems))


def _without_known_folders(found: Iterable[Found]) -> Iterable[Found]:
    """Leave out plain folders that are some agent's workspace."""
    known: set[str] = set()
    for one in found:
        place = os.path.realpath(one.workspace)
        if one.program != "folder" or place not in known:
            yield one
        known.add(place)
