"""Claude Code's projects: a folder of sessions each, named after the folder it works in.

The name has dashes for slashes and cannot be read back; every line of a session has the folder as `cwd`.
Claude Code's own notes about a project lie in `memory/` of its folder (code.claude.com/docs/en/memory).
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from memory.documents.session_roots import is_transcript_name
from recalld.discovering.counting import Deadline, count_notes, count_transcripts
from recalld.discovering.finding import Discovery, Found

#: Sessions of a project that are opened to learn its folder, and bytes that are read of each.
_OPENED = 5
_READ_BYTES = 256 * 1024


def find_claude_code(folder: Path, *, deadline: Deadline) -> Discovery:
    """All projects with sessions or notes, the latest first."""
    try:
        names = sorted(entry.name for entry in os.scandir(folder / "projects") if entry.is_dir())
    except FileNotFoundError:
        return Discovery()
    except OSError as error:
        return Discovery(problems=(f"{folder / 'projects'} cannot be listed ({error.strerror})",))
    found = [one for name in names if (one := _found(folder / "projects" / name, deadline)) is not None]
    return Discovery(tuple(sorted(found, key=lambda one: -one.newest)))


def _found(project: Path, deadline: Deadline) -> Found | None:
    transcripts = count_transcripts((str(project),), deadline=deadline)
    own_notes = (project / "memory").is_dir()
    if not transcripts.files and not own_notes and transcripts.complete:
        return None
    cwd = working_folder(project)
    remarks = []
    extra: list[str] = []
    if cwd is not None and cwd.is_dir():
        workspace = cwd
        if own_notes:
            extra.append(str(project / "memory"))
    else:
        workspace = project
        remarks.append(
            "the folder it worked in is not known; its sessions' folder stands in for it"
            if cwd is None
            else f"{cwd}, where it worked, is gone; its sessions' folder stands in for it"
        )
    return Found(
        name=(cwd or project).name,
        program="claude-code",
        title=f"Claude Code in {cwd or project}",
        workspace=workspace,
        sessions=(str(project),),
        notes=count_notes(workspace, extra, deadline=deadline),
        transcripts=transcripts,
        settings={"extra_paths": extra} if extra else {},
        remarks=tuple(remarks),
    )


def working_folder(project: Path) -> Path | None:
    """The folder in which the project's latest sessions began; None when none of them says."""
    try:
        with os.scandir(project) as entries:
            files = [
                (entry.stat(follow_symlinks=False).st_mtime, entry.path)
                for entry in entries
                if is_transcript_name(entry.name)
                and entry.name.endswith(".jsonl")
                and entry.is_file(follow_symlinks=False)
            ]
    except OSError:
        return None
    for _, path in sorted(files, reverse=True)[:_OPENED]:
        found = _cwd(path)
        if found is not None:
            return found
    return None


def _cwd(path: str) -> Path | None:
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - a plain string
            head = file.read(_READ_BYTES)
    except OSError:
        return None
    for line in head.splitlines():
        if b'"cwd"' not in line:
            continue
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue  # the last one is cut off
        cwd = entry.get("cwd") if isinstance(entry, dict) else None
        if isinstance(cwd, str) and cwd.startswith("/") and "\0" not in cwd:
            return Path(os.path.normpath(cwd))
    return None
