"""OpenClaw's settings file and its agents, with their workspaces and sessions.

Two layouts of the file are read. Since the summer of 2026: `memory.search` and `agents.entries.<id>`. Before:
`agents.defaults.memorySearch` (or `memorySearch` at the top) and `agents.list[]`. A file whose migration stopped half
way holds both; there the newer one wins, value by value, as in OpenClaw's own `doctor --fix`.

Sessions lie in `agents/<id>/sessions` of the state folder, or in a database beside that folder, which new installations
have without it. An agent without a workspace of its own has the general
one if it is the default agent; the others have a folder below the general one, or `workspace-<id>` in the state folder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from memory.documents.roots import OPENCLAW_DATABASE
from memory.documents.session_database import database_of
from recalld.discover.memories import DiscoveredMemory, absolute_path
from recalld.discover.translation import WHOLE, Translation, accepted, at, table
from recalld.settings.keys import dotted
from recalld.settings.program_folders import ProgramFolders

#: Names of the settings file in a state folder, the one it has now first.
CONFIG_NAMES = ("openclaw.json", "clawdbot.json")

#: First parts of our keys that hold for all agents.
_SHARED = ("store.", "cache.")


class NotJson5(ValueError):
    """Raised for a text that is not JSON5; the message says where, and repeats nothing of the text."""


def find_openclaw(folders: ProgramFolders, _: Path, problems: list[str]) -> Iterator[DiscoveredMemory]:
    """Yield all agents of all state folders that exist: the configured ones, then those that only have a folder."""
    for state in filter(Path.is_dir, folders.openclaw):
        # A settings file that was moved is that of the folder which OpenClaw uses now.
        tree = _settings(state, folders.openclaw_config if state == folders.openclaw[0] else None, problems)
        configured = _agents(tree, problems)
        agents = configured or {"main": {"id": "main", "default": True}}
        folders_of_agents = (place.parent for place in state.glob("agents/[!.]*/sessions"))
        agents_with_databases = (place.parent.parent for place in state.glob(f"agents/[!.]*/agent/{OPENCLAW_DATABASE}"))
        names = sorted({place.name for place in (*folders_of_agents, *agents_with_databases)})
        agents |= {name: {"id": name} for name in names if _folder_name(name) not in agents}
        for settings in agents.values():
            if (memory := _memory_of(state, tree, settings)) is not None:
                yield memory
            elif configured:
                name = settings["id"]
                problems.append(f"OpenClaw's agent {name} has neither a workspace nor sessions on this machine")


def _agents(tree: Mapping[str, Any], problems: list[str]) -> dict[str, dict[str, Any]]:
    """Return the settings of each agent, by the name of its folder. One at most is the `default`.

    It is the default one, else the first; with explicit owners only an agent without others.
    """
    rows = at(tree, "agents.list")
    listed = [(at(row, "id"), row) for row in rows] if isinstance(rows, list) else []
    agents: dict[str, dict[str, Any]] = {}
    unnamed = 0
    for name, row in (*table(tree, "agents.entries").items(), *listed):
        if isinstance(row, dict) and (key := _folder_name(name)):
            agents[key] = {**row, **agents.get(key, {"id": str(name).strip()})}
        else:
            unnamed += 1
    if unnamed:
        problems.append(f"OpenClaw lists {unnamed} of its agents without an id that can be used; they are left out")
    defaults = [key for key, settings in agents.items() if settings.get("default") is True]
    is_explicit = at(tree, "agents.ownership") == "explicit" and len(agents) > 1
    default = None if is_explicit else next(iter([*defaults, *agents]), None)
    return {key: {**settings, "default": key == default} for key, settings in agents.items()}


def _memory_of(state: Path, tree: Mapping[str, Any], settings: Mapping[str, Any]) -> DiscoveredMemory | None:
    """Return the agent of these settings; None if it has neither a workspace nor sessions."""
    name, remarks = settings["id"], list[str]()
    # Folders may have the id, or what newer versions of OpenClaw make of it.
    names = [folder for folder in (name, _folder_name(name)) if folder and not {"/", "\0"}.intersection(folder)]
    home = _existing(state / "agents" / folder for folder in names)
    folder = home / "sessions"
    database = database_of(str(folder))
    has_sessions = folder.is_dir() or (database is not None and database.is_there())
    sessions = (str(folder),) if has_sessions else ()
    is_current = any(isinstance(at(tree, path), dict) for path in ("memory.search", "agents.entries"))
    written = settings.get("workspace"), at(tree, "agents.defaults.workspace")
    workspace, general = map(absolute_path, written)
    if any(text and path is None for text, path in zip(written, (workspace, general), strict=True)):
        remarks.append("its workspace is not an absolute path there; see that the one here is right")
    if workspace is None and settings.get("default"):
        # The last is that of the program's first versions.
        workspace = general or _existing([state / "workspace", *filter(None, [absolute_path("~/clawd")])])
    elif workspace is None:
        below = [general / names[-1]] if general and is_current else []
        workspace = _existing([*below, *(state / f"workspace-{folder}" for folder in names)])
    if not workspace.is_dir():
        if not home.is_dir():
            return None
        remarks.append(f"its workspace {workspace} does not exist; its own folder stands in for it")
        workspace = home
    translation = Translation(leaves_of(tree, settings), is_current=is_current, has_transcripts=bool(sessions))
    remarks += translation.remarks
    shared = {key: value for key, value in translation.values.items() if key.startswith(_SHARED)}
    return DiscoveredMemory(
        name=name,
        program="openclaw",
        title=f"OpenClaw agent {name}",
        workspace=workspace,
        sessions=sessions,
        settings=accepted({key: value for key, value in translation.values.items() if key not in shared}, remarks),
        shared=accepted(shared, remarks),
        remarks=tuple(dict.fromkeys(remarks)),
    )


def _existing(places: Iterable[Path]) -> Path:
    """Return the first of these folders that exists, else the first of all."""
    folders = list(places)
    return next((place for place in folders if place.is_dir()), folders[0])


def _folder_name(agent: Any) -> str:
    """Return an agent's id as OpenClaw names folders by it; empty when it cannot."""
    return re.sub(r"[^a-z0-9_-]+", "-", agent.strip().lower()).strip("-")[:64] if isinstance(agent, str) else ""


# The settings file


def leaves_of(tree: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the leaves of the settings by dotted names; an agent's own values win over inherited ones."""
    leaves = dotted(tree, WHOLE) | dotted(settings, WHOLE, "agents.defaults.")
    paths: list[Any] = []
    for search in (
        table(tree, "memorySearch"),
        table(tree, "agents.defaults.memorySearch"),
        table(tree, "memory.search"),
        {"extraPaths": at(tree, "memory.qmd.paths")},
        table(settings, "memorySearch"),
        table(settings, "memory.search"),
    ):
        searched = dotted(search, WHOLE, "memory.search.")
        leaves |= {name: value for name, value in searched.items() if value is not None}
        listed = search.get("extraPaths")
        paths += listed if isinstance(listed, list) else [listed] if listed else []
    return {**leaves, "memory.search.extraPaths": paths}


def is_hook_enabled(state: Path, moved: Path | None, name: str) -> bool:
    """Return True if OpenClaw's settings let a hook of that name run; False where they cannot be read."""
    internal = table(_settings(state, moved, []), "hooks.internal")
    return internal.get("enabled") is True and at(internal, f"entries.{name}.enabled") is True


def _settings(state: Path, moved: Path | None, problems: list[str]) -> Mapping[str, Any]:
    """Return the settings of a state folder, or those of `moved`; empty without a file that can be read."""
    usual = [state / name for name in CONFIG_NAMES]
    file = moved or next(filter(Path.is_file, usual), usual[0])
    try:
        tree = read_json5(file.read_text("utf-8-sig"))
        if isinstance(tree, dict):
            if '"$include": ' in json.dumps(tree):
                problems.append(f"{file} includes other files, which were not looked at")
            return tree
        reason = "there is no object"
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
    problems.append(f"{file} cannot be read ({reason}); OpenClaw's own settings are not taken over")
    return {}


def read_json5(text: str) -> Any:
    """Return the value of a JSON text with comments, trailing commas and unquoted names (json5.org).

    Raises:
        NotJson5: the text is none, or too deeply nested to be read.
    """
    import json5

    try:
        try:
            value = json.loads(text)
        except ValueError:
            value, error, place = json5.parse(text or "-")
            if error is not None:
                line, column = text.count("\n", 0, place) + 1, place - text.rfind("\n", 0, place)
                raise NotJson5(f"no JSON5 at line {line}, column {column}") from None
    except RecursionError:
        raise NotJson5("too many levels of nesting") from None
    # An escape may be half of a character: halves that belong together are joined, others are replaced.
    encoded = json.dumps(value, ensure_ascii=False).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return json.loads(encoded)
