"""Conversion of hooks to events of a configured agent."""

from __future__ import annotations

import os

from memory.documents.agent_files import AgentFiles
from producers.hook_payloads import Hook
from schemas.errors import RecalldError
from schemas.ports import Event
from schemas.settings import AgentSettings, Settings


class UnclaimedHook(RecalldError):
    """Raised for a hook that belongs to none of the configured agents; the message says what to do."""


def event_of(hook: Hook, settings: Settings, *, agent: str | None = None) -> Event:
    """Return the event for the named agent, else for the session's own, else, without a path, for the only one.

    Only names are compared. The worker that reads a transcript checks that it lies in its agent's folders.

    Raises:
        UnclaimedHook: no agent is configured, none of that name, or none of them has this session.
    """
    agents = [known for known in settings.agents if known.enabled]
    if agent is not None:
        chosen = next((known for known in agents if known.id == agent), None)
        if chosen is None:
            raise UnclaimedHook(f"no agent is called {agent!r}; name one of {_known(agents)}")
    else:
        chosen = _chosen(hook, settings, agents)
    if hook.kind == "session-start":
        return Event(hook.kind, chosen.id, hook.paths, program=hook.program)  # everything is compared
    named = hook.paths or _session_files(chosen, hook.session)
    files = AgentFiles.of(settings, chosen)
    paths = tuple(next((name for name in _names_of(path) if _has(files, name)), path) for path in named)
    # A session that cannot be found by its id is found by comparing everything.
    kind = hook.kind if paths or hook.session is None else "reconcile"
    return Event(kind, chosen.id, paths, program=hook.program)


def _chosen(hook: Hook, settings: Settings, agents: list[AgentSettings]) -> AgentSettings:
    if not agents:
        raise UnclaimedHook("no workspace is known yet: start with `recalld discover`, or name the right --home")
    if len(agents) == 1 and not hook.paths:
        return agents[0]
    names = [name for path in hook.paths for name in _names_of(path)]
    for known in agents:
        files = AgentFiles.of(settings, known)
        if any(_has(files, name) for name in names):
            return known
    for known in agents:
        if _session_files(known, hook.session):
            return known
    for known in agents:
        if hook.agent is not None and known.id.lower() == hook.agent.lower():
            return known
    raise UnclaimedHook(
        f"this session is in no agent's folders: name the agent with --agent (one of {_known(agents)}), "
        "or add the folder to its sessions"
    )


def _has(files: AgentFiles, path: str) -> bool:
    """Return True if the path is a document of the agent, also when its settings leave it out."""
    return files.key_of(path) is not None or files.reason_of(path) is not None


def _names_of(path: str) -> tuple[str, str]:
    """Return the path as it was named, and with the links of its folder followed, as settings may spell it."""
    folder, name = os.path.split(path)
    # Only the folder: a transcript that is itself a link is never followed.
    return path, os.path.join(os.path.realpath(folder), name)  # noqa: PTH118 - Path.resolve would follow the last part, too


def _session_files(agent: AgentSettings, session: str | None) -> tuple[str, ...]:
    """Return the transcript with a session's id that lies right inside one of the agent's folders."""
    files = [os.path.join(folder, f"{session}.jsonl") for folder in agent.sessions] if session else []  # noqa: PTH118
    return tuple(file for file in files if os.path.isfile(file))  # noqa: PTH113 - Path may raise


def _known(agents: list[AgentSettings]) -> str:
    return ", ".join(agent.id for agent in agents) or "no enabled agent"
