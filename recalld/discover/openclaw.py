"""OpenClaw's agents: their workspaces, sessions and memory settings.

Sessions lie in `agents/<id>/sessions` of the state folder. An agent without a workspace of its own has the general
one if it is the default agent; the others have a folder below the general one, or `workspace-<id>` in the state folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from recalld.discover.memories import Discovery, Found, absolute_path, count_notes, count_transcripts
from recalld.discover.memory_search import Translation, is_for_all_agents, translate
from recalld.discover.openclaw_settings import OpenClawAgent, OpenClawSettings, filled, read_settings
from recalld.discover.settings_file import accepted

#: Where the newest versions keep an agent's sessions.
_DATABASE = Path("agent") / "openclaw-agent.sqlite"

#: Transcripts reach private chats only, there and here.
_PRIVATE_SCOPE = [{"action": "deny", "chat_type": "group"}, {"action": "deny", "chat_type": "channel"}]

#: The workspace of the program's first versions.
_OLD_WORKSPACE = "~/clawd"


def find_openclaw(states: tuple[Path, ...], config: Path | None, *, until: float) -> Discovery:
    """Return all agents of all state folders that exist.

    `config`: the settings file of the first one, where it is not in its state folder.
    """
    found = Discovery()
    for number, state in enumerate(states):
        if state.is_dir():
            found += _find(state, config if number == 0 else None, until)
    return found


def _find(state: Path, config: Path | None, until: float) -> Discovery:
    problems: list[str] = []
    configured = read_settings(state, config, problems)
    found = []
    for agent in _agents(state, configured):
        one = _found(state, agent, configured, until)
        if one is not None:
            found.append(one)
        elif configured.agents:
            problems.append(f"OpenClaw's agent {agent.id} has neither a workspace nor sessions on this machine")
    return Discovery(tuple(found), tuple(problems))


def _found(state: Path, agent: OpenClawAgent, configured: OpenClawSettings, until: float) -> Found | None:
    home = _folder(state, agent)
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
    own, general = _settings(agent, configured, remarks)
    if own.private_sessions and sessions:
        own.values["scope.rules"] = _PRIVATE_SCOPE
        remarks.append(
            "rememberAcrossConversations: transcripts are searched, which OpenClaw shows to no group or channel, so "
            "scope.rules keeps these out, of notes too; drop the rules, or sessions from sources, if they may search"
        )
    settings, shared = accepted(own.values, remarks), accepted(general, remarks)
    extra = [one["path"] if isinstance(one, Mapping) else one for one in settings.get("extra_paths", ())]
    places = [os.path.join(workspace, os.path.expanduser(path)) for path in extra]  # noqa: PTH111, PTH118
    return Found(
        name=agent.id,
        program="openclaw",
        title=f"OpenClaw agent {agent.id}",
        workspace=workspace,
        sessions=sessions,
        notes=count_notes(workspace, places, until=until),
        transcripts=count_transcripts(sessions, until=until),
        settings=settings,
        shared=shared,
        remarks=tuple(dict.fromkeys(remarks)),
    )


def _settings(
    agent: OpenClawAgent, configured: OpenClawSettings, remarks: list[str]
) -> tuple[Translation, dict[str, Any]]:
    """Return one agent's settings, inherited ones included, and those that hold for all agents here."""
    translated = partial(
        translate,
        is_current=configured.is_current,
        isolates_chats=configured.isolates_chats,
        providers=configured.providers,
    )
    tree = filled(agent.search, configured.search)
    general, own = configured.search.get("extraPaths"), agent.search.get("extraPaths")
    if isinstance(general, list) and isinstance(own, list):
        tree["extraPaths"] = [*general, *own]
    done = translated(tree)
    remarks += done.remarks
    shared = {key: value for key, value in translated(configured.search).values.items() if is_for_all_agents(key)}
    for key in [key for key in done.values if is_for_all_agents(key)]:
        if done.values.pop(key) != shared.get(key):
            remarks.append(f"{key} holds for all agents here; set it outside [[agents]] if it should")
    if configured.citations is not None:
        done.values["citations"] = configured.citations
    return done, shared


def _agents(state: Path, configured: OpenClawSettings) -> Iterator[OpenClawAgent]:
    """Return the configured agents, then those that only have a folder."""
    known = configured.agents or (OpenClawAgent(configured.default or "main"),)
    yield from known
    seen = {name for agent in known for name in (agent.id.lower(), agent.folder_name)}
    try:
        with os.scandir(state / "agents") as entries:
            folders = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return
    for name in folders:
        if name.lower() not in seen and not name.startswith(".") and (state / "agents" / name / "sessions").is_dir():
            yield OpenClawAgent(name)


def _folder(state: Path, agent: OpenClawAgent) -> Path:
    """Return the agent's own folder, which newer versions write in small letters."""
    return _existing([state / "agents" / name for name in _names(agent)])


def _workspace(state: Path, agent: OpenClawAgent, configured: OpenClawSettings, remarks: list[str]) -> Path:
    own, general = absolute_path(agent.workspace), absolute_path(configured.workspace)
    for written, path in ((agent.workspace, own), (configured.workspace, general)):
        if path is None and written not in (None, ""):
            remarks.append("its workspace is not an absolute path there; see that the one here is right")
    if own is not None:
        return own
    if agent.id == configured.default:
        old = Path(os.path.expanduser(_OLD_WORKSPACE))  # noqa: PTH111 - Path's own raises for a user without a home
        usual = state / "workspace"
        return general or (old if not usual.is_dir() and old.is_dir() else usual)
    below = [general / agent.folder_name] if general and configured.is_current else []
    return _existing([*below, *(state / f"workspace-{name}" for name in _names(agent))])


def _names(agent: OpenClawAgent) -> list[str]:
    """Return the names that the agent's folders may have."""
    plain = "" if "/" in agent.id or "\0" in agent.id else agent.id
    return [name for name in (plain, agent.folder_name) if name]


def _existing(places: Sequence[Path]) -> Path:
    """Return the first of these folders that exists, else the first of all."""
    return next((place for place in places if place.is_dir()), places[0])
