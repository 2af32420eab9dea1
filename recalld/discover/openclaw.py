"""OpenClaw's agents: their workspaces, sessions and memory settings.

Sessions lie in `agents/<id>/sessions` of the state folder. An agent without a workspace of its own has the general
one if it is the default agent; the others have a folder below the general one, or `workspace-<id>` in the state folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from recalld.discover.memories import Found, absolute_path
from recalld.discover.memory_search import is_for_all_agents, translate
from recalld.discover.openclaw_settings import OpenClawAgent, OpenClawSettings, read_settings
from recalld.discover.settings_file import accepted
from recalld.settings.program_folders import ProgramFolders

#: Where the newest versions keep an agent's sessions.
_DATABASE = Path("agent") / "openclaw-agent.sqlite"

#: Transcripts reach private chats only, there and here.
_PRIVATE_SCOPE = [{"action": "deny", "chat_type": "group"}, {"action": "deny", "chat_type": "channel"}]

#: The workspace of the program's first versions.
_OLD_WORKSPACE = "~/clawd"


def find_openclaw(folders: ProgramFolders, _: Path, problems: list[str]) -> Iterator[Found]:
    """Yield all agents of all state folders that exist: the configured ones, then those that only have a folder."""
    for state in filter(Path.is_dir, folders.openclaw):
        # A settings file that was moved is that of the folder which OpenClaw uses now.
        configured = read_settings(state, folders.openclaw_config if state == folders.openclaw[0] else None, problems)
        usual = OpenClawAgent("main", search=configured.search, is_default=True)
        agents = [*(configured.agents or [usual])]
        known = {name.lower() for agent in agents for name in agent.folder_names}
        agents += [
            OpenClawAgent(name, search=configured.search) for name in _folders(state) if name.lower() not in known
        ]
        for agent in agents:
            if (one := _found(state, agent, configured)) is not None:
                yield one
            elif configured.agents:
                problems.append(f"OpenClaw's agent {agent.id} has neither a workspace nor sessions on this machine")


def _folders(state: Path) -> list[str]:
    """Return the names of the agents with sessions."""
    try:
        names = sorted(entry.name for entry in os.scandir(state / "agents") if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []
    return [name for name in names if not name.startswith(".") and (state / "agents" / name / "sessions").is_dir()]


def _found(state: Path, agent: OpenClawAgent, configured: OpenClawSettings) -> Found | None:
    home = _existing(state / "agents" / name for name in agent.folder_names)
    sessions = (str(home / "sessions"),) if (home / "sessions").is_dir() else ()
    remarks = list(configured.remarks)
    workspace = _workspace(state, agent, configured, remarks)
    if not workspace.is_dir():
        if not home.is_dir():
            return None
        remarks.append(f"its workspace {workspace} does not exist; its own folder stands in for it")
        workspace = home
    if (home / _DATABASE).is_file():
        remarks.append(
            f"newer versions keep sessions in {home / _DATABASE}, which recalld does not read: of those sessions it "
            "knows what is in notes (`openclaw hooks enable session-memory` writes some); sessions in files are read"
        )
    own, general = translate(agent.search, configured), translate(configured.search, configured).values
    remarks += own.remarks
    shared = {key: value for key, value in general.items() if is_for_all_agents(key)}
    for key in filter(is_for_all_agents, list(own.values)):
        if own.values.pop(key) != shared.get(key):
            remarks.append(f"{key} holds for all agents here; set it outside [[agents]] if it should")
    if configured.citations is not None:
        own.values["citations"] = configured.citations
    if own.private_sessions and sessions:
        own.values["scope.rules"] = _PRIVATE_SCOPE
        remarks.append(
            "rememberAcrossConversations: transcripts are searched, which OpenClaw shows to no group or channel, so "
            "scope.rules keeps these out, of notes too; drop the rules, or sessions from sources, if they may search"
        )
    return Found(
        name=agent.id,
        program="openclaw",
        title=f"OpenClaw agent {agent.id}",
        workspace=workspace,
        sessions=sessions,
        settings=accepted(own.values, remarks),
        shared=accepted(shared, remarks),
        remarks=tuple(dict.fromkeys(remarks)),
    )


def _workspace(state: Path, agent: OpenClawAgent, configured: OpenClawSettings, remarks: list[str]) -> Path:
    own, general = absolute_path(agent.workspace), absolute_path(configured.workspace)
    for written, path in ((agent.workspace, own), (configured.workspace, general)):
        if path is None and written not in (None, ""):
            remarks.append("its workspace is not an absolute path there; see that the one here is right")
    if own is not None:
        return own
    if agent.is_default:
        old = Path(os.path.expanduser(_OLD_WORKSPACE))  # noqa: PTH111 - Path's own raises for a user without a home
        usual = state / "workspace"
        return general or (old if not usual.is_dir() and old.is_dir() else usual)
    below = [general / agent.folder_names[-1]] if general and configured.is_current else []
    return _existing([*below, *(state / f"workspace-{name}" for name in agent.folder_names)])


def _existing(places: Iterable[Path]) -> Path:
    """Return the first of these folders that exists, else the first of all."""
    every = list(places)
    return next((place for place in every if place.is_dir()), every[0])
