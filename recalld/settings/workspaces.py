"""Workspaces that --workspace named: remembered in the home, and agents beside those of the settings.

A folder with MEMORY.md, USER.md, `memory/` or `users/` is a memory of that layout. Any other folder is a memory of all
its Markdown files. The choice is made once and kept: a MEMORY.md that appears later removes nothing from the index.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from schemas.errors import UserError

if TYPE_CHECKING:
    from recalld.settings.resolution import Draft

#: Id of the agent where there is only one.
DEFAULT_AGENT = "main"

#: File of a home with the workspaces that --workspace named.
WORKSPACES_FILE = "agents.json"

#: Extra paths of a folder that is a memory as a whole.
EVERY_NOTE = (".",)

_MEMORY_LAYOUT = ("MEMORY.md", "memory.md", "USER.md", "memory", "users")

_MAX_ID_CHARS = 40


@dataclass(frozen=True, slots=True)
class Workspace:
    """Folder of an agent. `extra_paths` are chosen when --workspace names it; None in files of earlier versions."""

    folder: Path
    extra_paths: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class NamedWorkspace:
    """Agent of the workspace that --workspace names.

    `workspace` is None for an agent of the settings, which is not remembered. `is_new`: this call chose its notes.
    """

    agent: str
    workspace: Workspace | None = None
    is_new: bool = False


def add_workspaces(
    draft: Draft, remembered: Mapping[str, Workspace], *, file: Path, folder: str | None, agent: str | None
) -> tuple[NamedWorkspace | None, list[str]]:
    """Add remembered agents, and the agent of the named `folder`, beside those that the settings name.

    `agent` is the id that a flag names for the folder. Without it, the agent that has the folder keeps it; else the
    folder gets an agent of its own. Returns the agent of the folder, and remarks for the user. An agent whose folder
    is gone is left out unless it is the only one.
    """
    configured = draft.workspaces()
    by_folder = {os.path.realpath(path): agent_id for agent_id, path in configured.items()}
    ids, occupied = {agent_id.lower() for agent_id in configured}, {agent_id.lower() for agent_id in remembered}
    added: dict[str, Workspace] = {}
    remarks, target = [], folder and os.path.realpath(folder)
    for agent_id, workspace in remembered.items():
        real = os.path.realpath(workspace.folder)
        if by_folder.get(real) in configured or (agent_id == agent and target not in (None, real)):
            continue
        if target != real and (configured or target) and not workspace.folder.is_dir():
            remarks.append(f"agent {agent_id} is left out: its workspace {workspace.folder} is not there")
            continue
        name = agent_id
        if name.lower() in ids:
            name = unique_id(workspace.folder.name, ids | occupied)
            remarks.append(f"{workspace.folder} is agent {name} now: {agent_id} is another workspace in the settings")
        ids.add(name.lower())
        by_folder.setdefault(real, name)
        added[name] = workspace
        draft.add_remembered(name, str(workspace.folder), workspace.extra_paths or (), file=file)
    if folder is None:
        return None, remarks
    name = agent or by_folder.get(target or "") or ""
    if name in configured:
        if agent is not None:
            draft.set_workspace(agent, folder)
        return NamedWorkspace(name), remarks
    if not name:
        name = DEFAULT_AGENT if DEFAULT_AGENT not in ids else unique_id(Path(folder).name, ids | occupied)
    workspace = added.get(name, Workspace(Path(folder)))
    is_new = workspace.extra_paths is None
    if is_new:
        workspace = Workspace(workspace.folder, () if has_memory_layout(folder) else EVERY_NOTE)
        draft.set_workspace(name, str(workspace.folder), workspace.extra_paths or ())
    return NamedWorkspace(name, workspace, is_new), remarks


def unique_id(name: str, ids: Collection[str], *, default: str = "notes") -> str:
    """Return the id of an agent after a folder's name, unlike all other `ids` (in lower case)."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:_MAX_ID_CHARS].rstrip("-._") or default
    return next(text for text in (plain, *(f"{plain}-{n}" for n in range(2, len(ids) + 3))) if text.lower() not in ids)


def has_memory_layout(folder: str) -> bool:
    """Return True if a folder has the names of a memory, and not only Markdown files."""
    return any(os.path.exists(os.path.join(folder, name)) for name in _MEMORY_LAYOUT)  # noqa: PTH110, PTH118 - Path may raise


def remembered_workspaces(home: Path) -> dict[str, Workspace]:
    """Return agent id -> workspace as flags named them once.

    Raises:
        UserError: the file is damaged or unreadable.
    """
    file = home / WORKSPACES_FILE
    try:
        content = json.loads(file.read_text("utf-8"))
        extra_paths = {str(agent): tuple(map(str, paths)) for agent, paths in content.get("extra_paths", {}).items()}
        return {
            str(agent): Workspace(Path(folder), extra_paths.get(str(agent)))
            for agent, folder in content["agents"].items()
        }
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UserError(f"{file} cannot be read ({error.strerror}); mend that or give --workspace") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{file} is damaged; delete it and give --workspace again", exit_code=2) from None


def remember_workspace(
    home: Path, agent: str, folder: Path, *, extra_paths: Sequence[str] | None = None, agents: Collection[str] = ()
) -> None:
    """Keep one agent's workspace, so that later commands need no flag.

    It replaces entries of the folder under ids that are not among its present `agents`, if these are given.

    Raises:
        UserError: the home folder cannot be written.
    """
    from memory.http.whole_files import write_whole

    try:
        before = remembered_workspaces(home)
    except UserError:
        before = {}  # damaged: the workspace given now counts
    after = {name: entry for name, entry in before.items() if not agents or name in agents or entry.folder != folder}
    after[agent] = Workspace(folder, tuple(extra_paths) if extra_paths is not None else None)
    if after == before:
        return
    # Earlier versions read `agents` and ignore the rest.
    content = {
        "agents": {name: str(entry.folder) for name, entry in sorted(after.items())},
        "extra_paths": {
            name: entry.extra_paths for name, entry in sorted(after.items()) if entry.extra_paths is not None
        },
    }
    try:
        write_whole(home / WORKSPACES_FILE, json.dumps(content, indent=2).encode() + b"\n")
    except OSError as error:
        raise UserError(f"{home} cannot be written ({error.strerror}); choose another folder with --home") from None
