"""Hooks of agents' programs, as hints for the producers, and their conversion to events of a configured agent.

Claude Code and Codex send `{hook_event_name, session_id, transcript_path, cwd, ...}` (code.claude.com/docs/en/hooks,
developers.openai.com/codex/hooks); Codex's older `notify` sends `{type: "agent-turn-complete", thread-id, ...}`.
OpenClaw's internal hooks have `{type, action, sessionKey, context}` (docs.openclaw.ai/automation/hooks). The rest of a
payload (prompts, tool output, summaries) is dropped. Programs wait for this module's imports (`recalld.hooks.entry`):
they are few, and only of the standard library.
"""

from __future__ import annotations

import json
import os
from collections import namedtuple

TYPE_CHECKING = False  # `typing` is not imported
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from memory.documents.agent_files import AgentFiles
    from schemas.ports import Event
    from schemas.settings import AgentSettings, Settings

#: Names of the programs, as of `recalld hook` and of the HTTP interface.
PROGRAMS = ("claude-code", "codex", "openclaw")

#: Bytes of a payload at most. Hooks after a tool call carry the tool's output.
MAX_PAYLOAD_BYTES = 8 * 1024 * 1024

#: Event of a program -> the kind of hook. Every other event of a session makes it grow.
_KINDS: Mapping[str, str] = {
    "PreCompact": "compaction",
    "PostCompact": "compaction",
    "SessionStart": "session-start",
    "SessionEnd": "ended",
    "command:new": "ended",
    "command:reset": "ended",
    "command:stop": "grew",
    "session:compact:before": "compaction",
    "session:compact:after": "compaction",
    "session:auto-reset": "ended",
    "gateway:startup": "reconcile",
}

#: OpenClaw's events that are about a session.
OPENCLAW_EVENTS = tuple(name for name in _KINDS if ":" in name)


class HookUnreadable(ValueError):
    """Payload that is no hook of that program. The message repeats nothing of its content."""


class UnclaimedHook(ValueError):
    """Hook that belongs to none of the configured agents. The message has the remedy."""


class Hook(
    namedtuple(
        "Hook",
        ("kind", "paths", "session", "agent", "meant", "program", "at"),
        defaults=((), None, None, None, None, None),
    )
):
    """Meaning of a hook for a memory. The field names are also those of the spooled JSON.

    `kind`: as of `schemas.ports.Event`. `paths`: absolute paths of transcripts, as the program names them. `session`:
    id of the session if the hook has no path. `agent`: the program's name of its agent. `meant`: agent that the hook's
    command names. `program`: program that sent the hook. `at`: Unix time of its arrival.
    """

    __slots__ = ()

    kind: str
    paths: tuple[str, ...]
    session: str | None
    agent: str | None
    meant: str | None
    program: str | None
    at: float | None


def read_payload(text: bytes | str) -> dict[str, Any]:
    """Return the JSON object of a hook. Raise HookUnreadable if the text is no object or is too large."""
    if len(text) > MAX_PAYLOAD_BYTES:
        raise HookUnreadable(f"the hook's JSON is larger than {MAX_PAYLOAD_BYTES // 1024 // 1024} MB")
    try:
        payload = json.loads(text)
    except (ValueError, RecursionError):
        raise HookUnreadable("the hook is not JSON") from None
    if not isinstance(payload, dict):
        raise HookUnreadable("the hook is not a JSON object")
    return payload


def read_hook(program: str, payload: Mapping[str, Any]) -> Hook | None:
    """Return a payload as a hook; None for a hook that does not concern a memory.

    Raises:
        HookUnreadable: the payload is no hook of this program.
    """
    session = agent = None
    if program == "openclaw":
        kind, action, key, context = map(payload.get, ("type", "action", "sessionKey", "context"))
        if not isinstance(kind, str) or not isinstance(action, str):
            raise HookUnreadable("the hook does not say which it is: type and action are missing")
        name, context = f"{kind}:{action}", context if isinstance(context, dict) else {}
        # /new and /reset end the previous session. The session that begins is another entry.
        session_entries = (context.get("previousSessionEntry"), context, context.get("sessionEntry"))
        entries = [entry for entry in session_entries if isinstance(entry, dict)]
        if _KINDS.get(name) == "ended":
            entries = [entry for entry in entries if entry.get("sessionFile") or entry.get("sessionId")][:1]
        paths = _paths(*(_transcript_of(entry.get("sessionFile")) for entry in entries))
        session = next(filter(_is_id, (str(entry.get("sessionId") or "") for entry in entries)), None)
        # OpenClaw names its sessions `agent:<id>:...`.
        agent = key.split(":")[1] if isinstance(key, str) and key.startswith("agent:") else None
    elif payload.get("type") == "agent-turn-complete":
        return Hook("reconcile")  # Codex's `notify` does not say where the session is kept
    else:
        name = str(payload.get("hook_event_name") or "")
        if not name:
            raise HookUnreadable("the hook does not say which it is: hook_event_name is missing")
        if name == "SessionStart" and payload.get("source") == "compact":
            name = "PostCompact"
        # A subagent that ends names its own transcript and that of the session.
        paths = _paths(payload.get("transcript_path"), payload.get("agent_transcript_path"))
    meaning = _KINDS.get(name, "grew")
    if paths or session or meaning == "session-start":
        return Hook(meaning, paths, None if paths else session, agent)
    # Without a session all documents are compared, unless the hook is about growth only.
    return None if meaning == "grew" else Hook("reconcile", agent=agent)


def _is_id(text: str) -> bool:
    """Return True for the id of a session, which becomes a file name."""
    return text.replace("-", "").replace("_", "").isalnum()


def _transcript_of(name: object) -> object:
    """Return the path of a transcript that `sqlite:<agent>:<session>:<store>` names; other values as they are.

    The store is `agents/<agent>/sessions/sessions.json` or the database `agents/<agent>/agent/openclaw-agent.sqlite`.
    """
    kind, _, rest = name.partition(":") if isinstance(name, str) else ("", "", "")
    _, _, rest = rest.partition(":")
    session, _, store = rest.partition(":")
    if kind != "sqlite" or not _is_id(session) or not store:
        return name
    folder = os.path.dirname(store)
    folder = f"{os.path.dirname(folder)}/sessions" if os.path.basename(folder) == "agent" else folder
    return f"{folder}/{session}.jsonl"


def _paths(*values: object) -> tuple[str, ...]:
    """Return the absolute paths among these values, each once. Unusual paths are left to the next comparison."""
    texts = [os.path.expanduser(path) for path in values if isinstance(path, str) and path.isprintable()]
    return tuple(dict.fromkeys(path for path in texts if path.startswith("/") and len(path) < 4096))


# Agents of hooks


def event_of(hook: Hook, settings: Settings, *, agent: str | None = None) -> Event:
    """Return the event for the named agent, else for the session's agent, else, without a path, for the only agent.

    Only names are compared. The worker that reads a transcript checks that it lies in its agent's folders.

    Raises:
        UnclaimedHook: no agent is configured, none has that name, or none has this session.
    """
    from schemas.ports import Event

    agents = {
        candidate.id.lower(): candidate
        for candidate in settings.agents
        if candidate.enabled and agent in (None, candidate.id)
    }
    claims = ((candidate, paths) for candidate in agents.values() if (paths := _claimed(hook, settings, candidate)))
    requested = agents.get((agent or hook.agent or "").lower())
    if requested is None and not hook.paths and len(agents) == 1:
        [requested] = agents.values()
    chosen, paths = next(claims, (requested, hook.paths))
    if chosen is None:
        known_ids = ", ".join(agent.id for agent in settings.agents) or "none yet: see `recalld discover`"
        raise UnclaimedHook(
            f"no agent has this session: add its folder to an agent's sessions, or name one with --agent ({known_ids})"
        )
    # A session that cannot be found by its id is found by comparing everything.
    kind = "reconcile" if hook.session and not paths else hook.kind
    return Event(kind, chosen.id, paths, program=hook.program, at=hook.at)


def _is_row(files: AgentFiles, path: str) -> bool:
    """Return True if a transcript is in a database."""
    from schemas.errors import RecalldError

    try:
        return (key := files.key_of(path)) is not None and files.stat(key) is not None
    except RecalldError:
        return False


def _claimed(hook: Hook, settings: Settings, agent: AgentSettings) -> tuple[str, ...]:
    """Return the transcripts of a hook, spelled as in the agent's settings; empty if the agent has none of them."""
    from memory.documents.agent_files import AgentFiles
    from memory.documents.roots import archives_of

    files, spellings = AgentFiles.of(settings, agent), []
    if not hook.paths and hook.session:
        # Right inside one of its folders, named by the session's id, or in a database beside it, or an archive already.
        paths = [os.path.join(folder, f"{hook.session}.jsonl") for folder in agent.sessions]
        return tuple(file for file in paths if os.path.isfile(file) or _is_row(files, file) or archives_of(file))
    for path in hook.paths:
        # Links of its folder may be followed, the transcript itself is never a link. Its settings may leave it out.
        candidates = (path, os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path)))
        spellings.append(
            next((spelling for spelling in candidates if files.key_of(spelling) or files.reason_of(spelling)), None)
        )
    return (
        tuple(spelling or path for spelling, path in zip(spellings, hook.paths, strict=True)) if any(spellings) else ()
    )
