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
    enabled = [known for known in settings.agents if known.enabled]
    known_ids = ", ".join(known.id for known in enabled) or "no enabled agent"
    agents = [known for known in enabled if agent in (None, known.id)]
    if agent is not None and not agents:
        raise UnclaimedHook(f"no agent is called {agent!r}; name one of {known_ids}")
    if not agents:
        raise UnclaimedHook("no workspace is known yet: start with `recalld discover`, or name the right --home")
    found = ((known, paths) for known in agents if (paths := _paths_of(hook, AgentFiles.of(settings, known), known)))
    if len(agents) == 1 and (agent is not None or not hook.paths):
        meant = agents
    else:
        meant = [known for known in agents if known.id.lower() == (hook.agent or "").lower()]
    chosen, paths = next(found, (meant[0], hook.paths) if meant else (None, ()))
    if chosen is None:
        raise UnclaimedHook(
            f"this session is in no agent's folders: name the agent with --agent (one of {known_ids}), "
            "or add the folder to its sessions"
        )
    if hook.kind == "session-start":
        return Event(hook.kind, chosen.id, hook.paths, program=hook.program)  # everything is compared
    # A session that cannot be found by its id is found by comparing everything.
    kind = hook.kind if paths or hook.session is None else "reconcile"
    return Event(kind, chosen.id, paths, program=hook.program)


def _paths_of(hook: Hook, files: AgentFiles, agent: AgentSettings) -> tuple[str, ...]:
    """Return the transcripts that a hook is about, as the agent's settings spell them; empty if the agent has none."""
    if not hook.paths and hook.session:
        # Right inside one of its folders, named by the session's id.
        named = [os.path.join(folder, f"{hook.session}.jsonl") for folder in agent.sessions]  # noqa: PTH118
        return tuple(file for file in named if os.path.isfile(file))  # noqa: PTH113 - Path may raise
    paths = []
    for path in hook.paths:
        # Links of its folder may be followed. The transcript itself is never a link.
        folder, name = os.path.split(path)
        spelt = (path, os.path.join(os.path.realpath(folder), name))  # noqa: PTH118 - Path.resolve follows the last part
        # Its settings may leave it out.
        own = [one for one in spelt if files.key_of(one) is not None or files.reason_of(one) is not None]
        paths.append(next(iter(own), None))
    return tuple(own or path for own, path in zip(paths, hook.paths, strict=True)) if any(paths) else ()
