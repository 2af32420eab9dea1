"""One look at the whole machine."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from memory.documents.roots import is_utf8
from recalld.discovering.claude_code import find_claude_code
from recalld.discovering.codex import find_codex
from recalld.discovering.counting import Deadline, count_markdown
from recalld.discovering.finding import Discovery, Found, with_unique_names
from recalld.discovering.folders import find_folders, find_vaults
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
        + find_vaults(folders.obsidian, folders.vault_places, here, deadline=deadline)
        + find_folders(here, deadline=deadline)
    )
    problems = list(all_of_it.problems)
    found = []
    for one in _one_for_each_folder(all_of_it.found, deadline):
        if all(map(is_utf8, (str(one.workspace), *one.sessions))):
            found.append(one)
        else:
            problems.append(f"{one.title}: the folder's name is not UTF-8, so it cannot be written into settings")
    return Discovery(with_unique_names(found), tuple(problems))


def _one_for_each_folder(found: Sequence[Found], deadline: Deadline) -> Iterable[Found]:
    """Leave out folders and vaults that are some agent's workspace.

    The vault in which Claude Code works is its workspace, all of it. OpenClaw's settings say what counts in its own.
    """
    vaults = {os.path.realpath(one.workspace): one for one in found if one.program == "obsidian"}
    known: set[str] = set()
    for one in found:
        place = os.path.realpath(one.workspace)
        if one.program not in ("folder", "obsidian") or place not in known:
            whole = one.program == "claude-code" and place in vaults
            yield _with_vault(one, vaults[place], deadline) if whole else one
        known.add(place)


def _with_vault(one: Found, vault: Found, deadline: Deadline) -> Found:
    own = one.settings.get("extra_paths", [])
    notes = sum((count_markdown(Path(folder), deadline=deadline) for folder in own), vault.notes)
    return replace(one, notes=notes, settings={**one.settings, "extra_paths": [*vault.settings["extra_paths"], *own]})
