"""Memories of the whole machine: finders of coding agents, Obsidian, other memory programs and plain folders."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

from memory.documents.roots import LONG_TERM_NAMES, is_folder_name, is_transcript_name, is_unread_session, is_utf8
from memory.documents.session_database import database_of
from memory.status.condition_texts import counted
from recalld.discover.memories import DiscoveredMemory, Discovery, absolute_path, with_unique_names
from recalld.discover.openclaw import find_openclaw
from recalld.settings.places import absolute
from recalld.settings.program_folders import ProgramFolders
from recalld.settings.workspaces import has_memory_layout

#: Seconds that counting files may take; memories not counted by then are listed all the same.
COUNTING_SECONDS = 10.0

#: Claude Code's sessions that are opened to learn a project's folder, and bytes that are read of each.
_OPENED = 5
_READ_BYTES = 256 * 1024

#: Takes the programs' folders and the current folder, and adds sentences about places that it cannot search.
Finder: TypeAlias = Callable[[ProgramFolders, Path, list[str]], Iterator[DiscoveredMemory]]

_CWD = re.compile(rb'"cwd"\s*:\s*("(?:[^"\\]|\\.)*")')

#: Folder of a collection in QMD's settings.
_YAML_PATH = re.compile(r"[ \t]+path:(.+)")

#: Folders inside a folder that are searched for notes and vaults.
_MAX_INSIDE = 1000


def discover(
    folders: ProgramFolders,
    current_folder: Path,
    *,
    more_folders: Sequence[Path] = (),
    seconds: float = COUNTING_SECONDS,
    counting: Callable[[Collection[DiscoveredMemory]], Iterable[DiscoveredMemory]] = iter,
) -> Discovery:
    """Return every memory of the machine, named by agents' ids, with those around `current_folder`.

    `more_folders` are among them, each with all its notes unless it has the layout of a memory. `counting` yields the
    memories one after the other, while the files of each are counted, and may show how far that is.

    A folder of notes that is the workspace of an agent, or that several programs know, is listed once. A coding agent
    works in all of a vault, so its workspace gets all notes of that vault; OpenClaw's settings name the notes of its
    own workspaces.
    """
    until = time.monotonic() + seconds
    problems: list[str] = []
    memories = [memory for find in _FINDERS.values() for memory in find(folders, current_folder, problems)]
    memories += (DiscoveredMemory(path.name, "folder", f"Notes in {path}", workspace=path) for path in more_folders)
    whole_folders = {os.path.realpath(path) for path in more_folders}
    vaults = {os.path.realpath(memory.workspace) for memory in memories if memory.program == "obsidian"}
    workspaces: set[str] = set()
    listed = []
    for memory in counting(memories):
        workspace, settings = os.path.realpath(memory.workspace), memory.settings
        if memory.program in _OF_FOLDERS and workspace in workspaces:
            continue
        is_vault = memory.program in _BY_PROJECT and workspace in vaults
        extra_paths = settings.get("extra_paths", ())
        if is_vault or (workspace in whole_folders and not ("." in extra_paths or has_memory_layout(workspace))):
            settings = _extra_paths(".", *extra_paths)
        workspaces.add(workspace)
        counted = replace(memory, settings=settings).counted(until)
        if not all(map(is_utf8, (str(memory.workspace), *memory.sessions))):
            problems.append(f"{memory.title}: the folder's name is not UTF-8, so it cannot be written into settings")
        elif not counted.is_empty or memory.program == "openclaw" or workspace in whole_folders:
            listed.append(counted)
    problems += [f"{program}: {_UNREAD}" for program, place in _DATABASES.items() if Path(absolute(place)).exists()]
    order = list(_FINDERS)

    def place(memory: DiscoveredMemory) -> tuple[int, float]:
        # Projects of one program, the latest first.
        return order.index(memory.program), -memory.newest if memory.program in _BY_PROJECT else 0.0

    listed.sort(key=place)
    return Discovery(with_unique_names(listed), tuple(problems))


# Claude Code: one folder of sessions for each project, named after the folder that it works in. The name has dashes
# for slashes and cannot be read back, but lines of a session hold the folder as `cwd`. Claude Code's own notes about a
# project lie in `memory/` of its folder (code.claude.com/docs/en/memory). Qwen Code does the same, with folders for
# chats and for subagents. Gemini CLI writes the folder into a file.


def _claude_code(folders: ProgramFolders, _: Path, __: list[str]) -> Iterator[DiscoveredMemory]:
    for project in sorted(filter(Path.is_dir, folders.claude_code.glob("projects/*"))):
        yield _project("claude-code", "Claude Code", project, working_folder(project), (project,))


def _qwen_code(folders: ProgramFolders, _: Path, __: list[str]) -> Iterator[DiscoveredMemory]:
    for chats in sorted(filter(Path.is_dir, folders.qwen_code.glob("projects/*/chats"))):
        sessions = filter(Path.is_dir, (chats, chats.with_name("subagents")))
        yield _project("qwen-code", "Qwen Code", chats.parent, working_folder(chats), sessions)


def _gemini_cli(folders: ProgramFolders, _: Path, problems: list[str]) -> Iterator[DiscoveredMemory]:
    documents = [file for file in folders.gemini_cli.glob("tmp/*/chats/*.json") if is_unread_session(str(file))]
    if documents:
        problems.append(
            f"Gemini CLI: {counted(len(documents), 'session')} of versions before 0.39 (session-*.json) found and not "
            "read; resuming one there writes it anew as session-*.jsonl, which is read"
        )
    for chats in sorted(filter(Path.is_dir, folders.gemini_cli.glob("tmp/*/chats"))):
        folder = None
        with suppress(OSError, ValueError):
            folder = absolute_path(chats.with_name(".project_root").read_text("utf-8"))
        yield _project("gemini-cli", "Gemini CLI", chats.parent, folder, (chats,))


def _project(
    program: str, title: str, project: Path, folder: Path | None, sessions: Iterable[Path]
) -> DiscoveredMemory:
    """Return the memory of a program in one `project` of its own, about the `folder` that it works in."""
    notes, exists = project / "memory", folder is not None and folder.is_dir()
    why = "the folder it worked in is not known" if folder is None else f"{folder}, where it worked, is gone"
    return DiscoveredMemory(
        name=(folder or project).name,
        program=program,
        title=f"{title} in {folder or project}",
        workspace=folder if folder is not None and exists else project,
        sessions=tuple(map(str, sessions)),
        settings=_extra_paths(notes) if exists and notes.is_dir() else {},
        remarks=() if exists else (f"{why}; its sessions' folder stands in for it",),
    )


def working_folder(project: Path) -> Path | None:
    """Return the folder in which the project's latest sessions began; None where no session names one."""
    with suppress(OSError, ValueError):
        files = [file for file in project.glob("*.jsonl") if is_transcript_name(file.name) and not file.is_symlink()]
        for file in sorted(files, key=lambda file: file.lstat().st_mtime, reverse=True)[:_OPENED]:
            with file.open("rb") as session:
                if folder := working_folder_in(session.read(_READ_BYTES)):
                    return folder
    return None


def working_folder_in(lines: bytes) -> Path | None:
    """Return the first folder that lines of a session name as the one it works in."""
    with suppress(ValueError):
        return absolute_path(json.loads(written[1])) if (written := _CWD.search(lines)) else None
    return None


# Codex: one tree of sessions by date for all folders that it worked in, one folder of archived sessions, its own notes.
# Copilot and Cursor have one tree of sessions, too. OpenCode has one database of sessions.


def _home(program: str, title: str, *sessions: str) -> Finder:
    """Return the finder of a program that keeps all sessions in these folders of its home."""

    def find(folders: ProgramFolders, _: Path, __: list[str]) -> Iterator[DiscoveredMemory]:
        home: Path = getattr(folders, program)
        notes = home / "memories"
        yield DiscoveredMemory(
            name=program,
            program=program,
            title=f"{title} in {home}",
            workspace=home,
            sessions=tuple(str(home / name) for name in sessions if (home / name).is_dir()),
            settings=_extra_paths(notes) if notes.is_dir() else {},
        )

    return find


def _opencode(folders: ProgramFolders, place: Path, problems: list[str]) -> Iterator[DiscoveredMemory]:
    if database_of(str(folders.opencode)) is not None:
        yield from _home("opencode", "OpenCode", "")(folders, place, problems)


# Obsidian: all Markdown files of a vault are notes; its settings and its trash are in hidden folders


def _obsidian(folders: ProgramFolders, current_folder: Path, _: list[str]) -> Iterator[DiscoveredMemory]:
    """Yield the vaults of Obsidian's own lists, those around the current folder and those in the usual places."""
    listed = (path for file in folders.obsidian for path in _listed(file))
    usual = (path for place in folders.vault_places for path in (place, *_inside(place)))
    for folder in chain(listed, _around(current_folder), usual):
        if (folder / ".obsidian").is_dir():
            title = f"Obsidian's vault {folder}"
            yield DiscoveredMemory(folder.name, "obsidian", title, workspace=folder, settings=_extra_paths("."))


def _listed(file: Path) -> list[Path]:
    """Return the vaults of a list that Obsidian keeps; none where the list cannot be read."""
    with suppress(OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        vaults = json.loads(file.read_bytes())["vaults"].values()
        return [path for vault in vaults if (path := absolute_path(vault["path"])) is not None]
    return []


# Memory programs: basic-memory and QMD list folders of Markdown in their settings. memsearch keeps a folder with
# `memory/` in each project (docs.basicmemory.com/reference/configuration, github.com/tobi/qmd example-index.yml,
# zilliztech.github.io/memsearch).


def _basic_memory(folders: ProgramFolders, _: Path, __: list[str]) -> Iterator[DiscoveredMemory]:
    with suppress(OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        for name, project in json.loads((folders.basic_memory or Path()).read_bytes())["projects"].items():
            folder = absolute_path(project["path"] if isinstance(project, Mapping) else project)
            if folder is not None and folder.is_dir():
                title = f"Project {name} of basic-memory in {folder}"
                yield DiscoveredMemory(name, "basic-memory", title, workspace=folder, settings=_extra_paths("."))


def _qmd(folders: ProgramFolders, _: Path, __: list[str]) -> Iterator[DiscoveredMemory]:
    with suppress(OSError, ValueError):
        for line in (folders.qmd or Path()).read_text("utf-8").splitlines():
            match = _YAML_PATH.fullmatch(line)
            folder = absolute_path(match[1].strip(" \t\"'")) if match else None
            if folder is not None and folder.is_dir():
                title = f"QMD's collection {folder}"
                yield DiscoveredMemory(folder.name, "qmd", title, workspace=folder, settings=_extra_paths("."))


def _memsearch(folders: ProgramFolders, current_folder: Path, _: list[str]) -> Iterator[DiscoveredMemory]:
    projects = [working_folder(project) for project in sorted(folders.claude_code.glob("projects/*"))]
    for project in dict.fromkeys(filter(None, (*projects, current_folder, *current_folder.parents))):
        if (folder := project / ".memsearch").is_dir():
            title = f"memsearch's notes about {project}"
            yield DiscoveredMemory(f"{project.name}-memsearch", "memsearch", title, workspace=folder)


# Folders of notes


def _folders_of_notes(_: ProgramFolders, current_folder: Path, __: list[str]) -> Iterator[DiscoveredMemory]:
    """Yield the current folder, its parents and its folders that have MEMORY.md or Markdown files in memory/."""
    for folder in _around(current_folder):
        if any((folder / name).exists() for name in ("memory", *LONG_TERM_NAMES)):
            yield DiscoveredMemory(folder.name, "folder", f"Notes in {folder}", workspace=folder)


def _around(current_folder: Path) -> list[Path]:
    return [current_folder, *current_folder.parents, *_inside(current_folder)]


def _inside(folder: Path) -> list[Path]:
    with suppress(OSError):
        names = [entry.name for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
        return [folder / name for name in sorted(filter(is_folder_name, names))[:_MAX_INSIDE]]
    return []


def _extra_paths(*folders: str | Path) -> dict[str, Any]:
    return {"extra_paths": [str(folder) for folder in folders]}


#: Program -> its finder, in the order of the list. The first finder of a memory lists it.
_FINDERS: Mapping[str, Finder] = {
    "openclaw": find_openclaw,
    "claude-code": _claude_code,
    "codex": _home("codex", "Codex", "sessions", "archived_sessions"),
    "gemini-cli": _gemini_cli,
    "qwen-code": _qwen_code,
    "copilot": _home("copilot", "GitHub Copilot CLI", "session-state"),
    "cursor": _home("cursor", "Cursor's agent", "projects"),
    "opencode": _opencode,
    "obsidian": _obsidian,
    "basic-memory": _basic_memory,
    "qmd": _qmd,
    "memsearch": _memsearch,
    "folder": _folders_of_notes,
}

#: Programs with a memory for each project.
_BY_PROJECT = frozenset(("claude-code", "gemini-cli", "qwen-code"))

#: Programs whose memories are folders of notes that another program may know, too.
_OF_FOLDERS = frozenset(("obsidian", "basic-memory", "qmd", "folder"))

#: Program -> its database of conversations, where one of its usual places is.
_DATABASES = {
    "claude-mem": "~/.claude-mem/claude-mem.db",
    "Cursor's editor": "~/.config/Cursor/User/globalStorage/state.vscdb",
    "Goose": "~/.local/share/goose/sessions/sessions.db",
    "Zed": "~/.local/share/zed/threads/threads.db",
}
_UNREAD = "a database of conversations found and not read"
