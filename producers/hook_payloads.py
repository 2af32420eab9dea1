"""Hooks of agents' programs, read as hints for the producers. Pure: nothing is looked up on the disk.

Claude Code and Codex send `{hook_event_name, session_id, transcript_path, cwd, ...}` (code.claude.com/docs/en/hooks,
developers.openai.com/codex/hooks); Codex's older `notify` sends `{type: "agent-turn-complete", thread-id, ...}`.
OpenClaw's internal hooks have `{type, action, sessionKey, context}` (docs.openclaw.ai/automation/hooks). The rest of a
payload (prompts, tool output, summaries) is not read. Programs wait for this module's imports (`recalld.hooks.entry`):
they are few, and of the standard library alone.
"""

from __future__ import annotations

import json
import os
import re
from collections import namedtuple

TYPE_CHECKING = False  # `typing` is not imported
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

#: Bytes of a payload at most. Hooks after a tool call carry the tool's output.
MAX_PAYLOAD_BYTES = 8 * 1024 * 1024

#: Claude Code's and Codex's event -> the kind of hook. Every other event of a session makes it grow.
_KINDS: Mapping[str, str] = {
    "PreCompact": "compaction",
    "PostCompact": "compaction",
    "SessionStart": "session-start",
    "SessionEnd": "ended",
}

#: OpenClaw's event -> the kind of hook.
_OPENCLAW_KINDS: Mapping[str, str] = {
    "command:new": "ended",
    "command:reset": "ended",
    "command:stop": "grew",
    "session:compact:before": "compaction",
    "session:compact:after": "compaction",
    "session:auto-reset": "ended",
    "gateway:startup": "reconcile",
}

#: OpenClaw's events that are about a session.
OPENCLAW_EVENTS = tuple(_OPENCLAW_KINDS)

_MAX_PATH_CHARS = 4096

#: A session's id becomes a file name.
_SESSION_ID = r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}"

#: `agent:<id>:...` is how OpenClaw names its sessions.
_SESSION_KEY = r"agent:([^:]+):"


class HookUnreadable(ValueError):
    """Raised for a payload that is no hook of that program; the message repeats nothing of its content."""


class Hook(
    namedtuple("Hook", ("kind", "paths", "session", "agent", "meant", "program"), defaults=((), None, None, None, None))
):
    """Meaning of a hook to a memory.

    `kind`: as of `schemas.ports.Event`. `paths`: absolute paths of transcripts, as the program names them. `session`:
    the id of the session where no path was given. `agent`: the program's own name of its agent. `meant`: the agent
    that the hook's command names. `program`: the program that sent it.
    """

    __slots__ = ()

    kind: str
    paths: tuple[str, ...]
    session: str | None
    agent: str | None
    meant: str | None
    program: str | None


def read_hook(program: str, payload: bytes | str) -> Hook | None:
    """Return a payload as a hook; None for a hook that does not concern a memory.

    Raises:
        HookUnreadable: it is not JSON, or not what this program sends.
        KeyError: there is no such program.
    """
    read = PROGRAMS[program]
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise HookUnreadable(f"the hook's JSON is larger than {MAX_PAYLOAD_BYTES // 1024 // 1024} MB")
    try:
        found = json.loads(payload)
    except RecursionError:
        raise HookUnreadable("the hook's JSON is nested too deeply") from None
    except ValueError:
        raise HookUnreadable("the hook is not JSON") from None
    if not isinstance(found, dict):
        raise HookUnreadable("the hook is not a JSON object")
    return read(found)


def _claude_code(payload: Mapping[str, Any]) -> Hook | None:
    name = payload.get("hook_event_name")
    if not isinstance(name, str) or not name:
        raise HookUnreadable("the hook does not say which it is: hook_event_name is missing")
    is_compacted = name == "SessionStart" and payload.get("source") == "compact"
    # A subagent that ends names its own transcript and that of the session.
    paths = _paths(payload.get("transcript_path"), payload.get("agent_transcript_path"))
    return _about("compaction" if is_compacted else _KINDS.get(name, "grew"), paths)


def _codex(payload: Mapping[str, Any]) -> Hook | None:
    if "hook_event_name" not in payload and payload.get("type") == "agent-turn-complete":
        return Hook("reconcile")  # `notify` does not say where the session is kept
    return _claude_code(payload)


def _openclaw(payload: Mapping[str, Any]) -> Hook | None:
    kind, action, key = (payload.get(name) for name in ("type", "action", "sessionKey"))
    if not isinstance(kind, str) or not isinstance(action, str):
        raise HookUnreadable("the hook does not say which it is: type and action are missing")
    context = payload.get("context")
    context = context if isinstance(context, dict) else {}
    # /new and /reset end the previous session.
    named = [context.get("previousSessionEntry") if kind == "command" else None, context, context.get("sessionEntry")]
    entries = [entry for entry in named if isinstance(entry, dict)]
    ids = (entry.get("sessionId") for entry in entries)
    agent = re.match(_SESSION_KEY, key) if isinstance(key, str) else None
    return _about(
        _OPENCLAW_KINDS.get(f"{kind}:{action}", "grew"),
        _paths(*(entry.get("sessionFile") for entry in entries)),
        next((name for name in ids if isinstance(name, str) and re.fullmatch(_SESSION_ID, name)), None),
        agent[1] if agent else None,
    )


#: Program -> reader of its hooks. The names are those of `recalld hook` and of the HTTP interface.
PROGRAMS: Mapping[str, Callable[[Mapping[str, Any]], Hook | None]] = {
    "claude-code": _claude_code,
    "codex": _codex,
    "openclaw": _openclaw,
}


def _about(kind: str, paths: tuple[str, ...], session: str | None = None, agent: str | None = None) -> Hook | None:
    """Return a hook about one session, which its path or else its id names.

    Without both, all sessions are compared, unless nothing but the growth of this one would be missed.
    """
    if kind == "reconcile" or not (paths or session or kind == "session-start"):
        return None if kind == "grew" else Hook("reconcile", agent=agent)
    return Hook(kind, paths, None if paths else session, agent)


def _paths(*named: object) -> tuple[str, ...]:
    """Return the absolute paths among these values, each once. Hooks may hold null, or values of later versions."""
    found: dict[str, None] = {}
    for path in named:
        if not isinstance(path, str) or not 0 < len(path) <= _MAX_PATH_CHARS:
            continue
        try:
            absolute = os.path.expanduser(path)
            if absolute.startswith("/") and b"\0" not in os.fsencode(absolute):
                found[absolute] = None
        except UnicodeEncodeError:
            continue  # half of a surrogate pair
    return tuple(found)
