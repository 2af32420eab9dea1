"""Which agent a hook is for, and the event it becomes."""

from __future__ import annotations

import os

from memory.agent_files import AgentFiles
from producers.hook_payloads import Hook
from schemas.errors import RecalldError
from schemas.ports import Event
from schemas.settings import AgentSettings, Settings


class NobodysHook(RecalldError):
    """No configured agent can be told apart as the one a hook is for; the message says what to do."""


def event_of(hook: Hook, settings: Settings, *, agent: str | None = None) -> Event:
    """The event for the named agent, else for the one whose session it is, else, without a path, for the only one.

    Only names are compared here; whether a transcript lies in its agent's folders, whoever opens it finds out.

    Raises:
        NobodysHook: no agent is configured, none of that name, or none of them has this session.
    """
    agents = [known for known in settings.agents if known.enabled]
    if agent is not None:
        chosen = next((known for known in agents if known.id == agent), None)
        if chosen is None:
            raise NobodysHook(f"no agent is called {agent!r}; name one of {_names(agents)}")
    else:
        chosen = _chosen(hook, settings, agents)
    if hook.kind == "session-start":
        return Event(hook.kind, chosen.id)  # everything is compared; the path only told whose session it is
    named = hook.paths or _session_files(chosen, hook.session)
    files = AgentFiles.of(settings, chosen)
    paths = tuple(_known_name(files, path) or path for path in named)
    # A session that cannot be found by its id is found by comparing everything.
    kind = hook.kind if paths or hook.session is None else "reconcile"
    return Event(kind, chosen.id, paths)


def _chosen(hook: Hook, settings: Settings, agents: list[AgentSettings]) -> AgentSettings:
    if not agents:
        raise NobodysHook("no workspace is known yet: start with `recalld discover`, or name the right --home")
    # Hooks of a whole user come from every project, most of which are nobody's here; that is no trouble.
    if len(agents) == 1 and not hook.paths:
        return agents[0]
    for known in agents:
        files = AgentFiles.of(settings, known)
        if any(_known_name(files, path) for path in hook.paths):
            return known
    for known in agents:
        if _session_files(known, hook.session):
            return known
    for known in agents:
        if hook.agent is not None and known.id.lower() == hook.agent.lower():
            return known
    raise NobodysHook(
        f"this session is in no agent's folders: name the agent with --agent (one of {_names(agents)}), "
        "or add the folder to its sessions"
    )


def _known_name(files: AgentFiles, path: str) -> str | None:
    """The path as the agent's folders are spelled in the settings; None when it is not below any of them."""
    if files.key_of(path) is not None:
        return path
    folder, name = os.path.split(path)
    # Only the folder: a transcript that is itself a link is never followed.
    real = os.path.join(os.path.realpath(folder), name)  # noqa: PTH118 - Path.resolve would follow the last part, too
    return real if files.key_of(real) is not None else None


def _session_files(agent: AgentSettings, session: str | None) -> tuple[str, ...]:
    """The transcript of a session by its id, where it lies right inside one of the agent's folders."""
    files = [os.path.join(folder, f"{session}.jsonl") for folder in agent.sessions] if session else []  # noqa: PTH118
    return tuple(file for file in files if os.path.isfile(file))  # noqa: PTH113 - Path may raise


def _names(agents: list[AgentSettings]) -> str:
    return ", ".join(agent.id for agent in agents) or "none that is enabled"
