"""OpenClaw's agents: their workspaces, sessions and memory settings.

Sessions lie in `agents/<id>/sessions` of the state folder. An agent without a workspace of its own has `workspace`
there, or `workspace-<id>` if it is not the default one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from recalld.discovering.checking import accepted
from recalld.discovering.counting import Deadline, count_notes, count_transcripts
from recalld.discovering.finding import Discovery, Found
from recalld.discovering.memory_search import OF_ONE_PROVIDER, SHARED, Translation, translate
from recalld.discovering.openclaw_configuration import OpenClawConfiguration, absolute_path, read_configuration, table

#: Where the newest versions keep an agent's sessions.
_DATABASE = Path("agent") / "openclaw-agent.sqlite"

#: The workspace of the program's first versions.
_OLD_WORKSPACE = "~/clawd"


def find_openclaw(states: tuple[Path, ...], config: Path | None, *, deadline: Deadline) -> Discovery:
    """All agents of all state folders that exist. `config`: the settings file where it is not in its state folder."""
    found = Discovery()
    for number, state in enumerate(states):
        if state.is_dir():
            found += _find(state, config if number == 0 else None, deadline)
    return found


def _find(state: Path, config: Path | None, deadline: Deadline) -> Discovery:
    problems: list[str] = []
    configured = read_configuration(state, config, problems)
    shared = translate(table(configured.defaults, "memorySearch"), agents_own=False)
    if configured.citations is not None:
        shared.values["citations"] = configured.citations
    found = []
    for agent in _agents(state, configured):
        one = _found(state, agent, configured, shared, deadline)
        if one is not None:
            found.append(one)
        elif configured.agents:
            problems.append(f"OpenClaw's agent {agent['id']} has neither a workspace nor sessions on this machine")
    return Discovery(tuple(found), tuple(problems))


def _found(
    state: Path, agent: Mapping[str, Any], configured: OpenClawConfiguration, shared: Translation, deadline: Deadline
) -> Found | None:
    name = str(agent["id"])
    home = _folder(state, name)
    sessions = (str(home / "sessions"),) if (home / "sessions").is_dir() else ()
    own = translate(table(agent, "memorySearch"), agents_own=True)
    remarks = [*configured.remarks, *shared.remarks, *own.remarks]
    workspace = _workspace(state, agent, configured)
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
    general = accepted({key: value for key, value in shared.values.items() if key.partition(".")[0] in SHARED}, remarks)
    inherited = {key: value for key, value in shared.values.items() if key.partition(".")[0] not in SHARED}
    if own.foreign:
        inherited = {key: value for key, value in inherited.items() if key not in OF_ONE_PROVIDER}
    merged = inherited | own.values
    extra = [*shared.values.get("extra_paths", ()), *own.values.get("extra_paths", ())]
    if extra:
        merged["extra_paths"] = list(dict.fromkeys(extra))
    settings = accepted(merged, remarks)
    places = [os.path.join(workspace, os.path.expanduser(path)) for path in settings.get("extra_paths", ())]  # noqa: PTH111, PTH118
    return Found(
        name=name,
        program="openclaw",
        title=f"OpenClaw agent {name}",
        workspace=workspace,
        sessions=sessions,
        notes=count_notes(workspace, places, deadline=deadline),
        transcripts=count_transcripts(sessions, deadline=deadline),
        settings=settings,
        shared=general,
        remarks=tuple(dict.fromkeys(remarks)),
    )


def _agents(state: Path, configured: OpenClawConfiguration) -> Iterator[Mapping[str, Any]]:
    """The configured agents, then those that only have a folder."""
    seen: set[str] = set()
    for agent in configured.agents or ({"id": configured.default},):
        if agent["id"].lower() not in seen:
            seen.add(agent["id"].lower())
            yield agent
    try:
        with os.scandir(state / "agents") as entries:
            folders = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return
    for name in folders:
        if name.lower() not in seen and not name.startswith(".") and (state / "agents" / name / "sessions").is_dir():
            yield {"id": name}


def _folder(state: Path, name: str) -> Path:
    """The agent's own folder; it is written in small letters, whatever the settings say."""
    folder = state / "agents" / name
    return folder if folder.is_dir() else state / "agents" / name.lower()


def _workspace(state: Path, agent: Mapping[str, Any], configured: OpenClawConfiguration) -> Path:
    own = absolute_path(agent.get("workspace"))
    if own is not None:
        return own
    if agent["id"] != configured.default:
        return state / f"workspace-{agent['id']}"
    old = Path(os.path.expanduser(_OLD_WORKSPACE))  # noqa: PTH111 - Path's own raises for a user without a home
    usual = state / "workspace"
    return absolute_path(configured.defaults.get("workspace")) or (
        old if not usual.is_dir() and old.is_dir() else usual
    )
