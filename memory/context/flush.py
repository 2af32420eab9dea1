"""Flush: a hidden turn in which the model saves durable facts, before its context is compacted.

`flush_plan` decides if it is due. `memory.context.note_files` writes the turn's notes. `recalld.context.SilentFilter`
keeps an answer from the user that only says "nothing to say".
"""

from __future__ import annotations

from datetime import datetime

from memory.chunking.chunker import estimate_tokens
from memory.context.messages import texts
from memory.transcripts.transcript_format import tagged
from schemas.context import FlushAnswer, FlushRequest
from schemas.settings import Flush

#: Answer of a model that has nothing to say to the user.
SILENT_TOKEN = "NO_REPLY"  # noqa: S105 - a word, no secret

#: At most one part in so many of the window is reserved for the answer, and as much for the flush before that.
MAX_RESERVE_PART = 4

_SYSTEM_PROMPT = (
    "The conversation is about to be compacted. Save its durable facts to the memory file now: decisions, preferences, "
    "names, numbers, open tasks. The user does not see this turn. If there is nothing to save, answer {token}."
)

_PROMPT = (
    "Save what is worth remembering to {path}, and to no other file. Append to it: never replace or repeat what it "
    "holds, and create no other file for the same day. MEMORY.md, USER.md, SOUL.md, TOOLS.md and AGENTS.md are "
    "read-only now. It is {time}. Afterwards, or if there is nothing to save, answer {token}."
)

#: Parts that a text of the user's own must have, and the sentences about them.
_TARGET = "Save to {path}, and to no other file: append to it, and never replace what it holds."
_SILENCE = "If there is nothing to save, answer {token}."


def flush_plan(session: FlushRequest, settings: Flush, *, now: datetime) -> FlushAnswer:
    """Return the plan of a flush that is due `now`, in the user's time zone, or the code of the reason why none is."""
    skip = _skip(session, settings)
    if skip is not None:
        return FlushAnswer(due=False, skip=skip)
    path, token = f"memory/{now:%Y-%m-%d}.md", SILENT_TOKEN
    time = f"{now:%Y-%m-%d %H:%M %Z}"
    prompt, system_prompt = session.prompt or settings.prompt, session.system_prompt or settings.system_prompt
    prompt = (
        f"{_completed(prompt, path)}\n\nIt is {time}." if prompt else _PROMPT.format(path=path, time=time, token=token)
    )
    system_prompt = _completed(system_prompt, path) if system_prompt else _SYSTEM_PROMPT.format(token=token)
    return FlushAnswer(
        due=True,
        system_prompt=tagged(system_prompt, kind="flush"),
        prompt=tagged(prompt, kind="flush"),
        path=path,
        silent_token=token,
        model=settings.model,
        cycle=session.compactions,
    )


def _completed(text: str, path: str) -> str:
    """Return a user's own text with the day of the note, and with the note's path and the token if it lacks them."""
    text = text.replace("YYYY-MM-DD", path.removeprefix("memory/").removesuffix(".md"))
    parts = {path: _TARGET.format(path=path), SILENT_TOKEN: _SILENCE.format(token=SILENT_TOKEN)}
    return "\n\n".join([text, *(sentence for part, sentence in parts.items() if part not in text)])


def _skip(session: FlushRequest, settings: Flush) -> str | None:
    is_long = settings.transcript_bytes is not None and session.transcript_bytes >= settings.transcript_bytes
    tokens = _context_tokens(session)
    part = session.window_tokens // MAX_RESERVE_PART
    reserves = min(settings.reserve_tokens, part) + min(settings.soft_threshold_tokens, part)
    threshold = max(1, session.window_tokens - reserves)
    reasons = {
        "disabled": not settings.enabled,
        "heartbeat": session.is_heartbeat,
        "workspace_read_only": session.is_writable is False,
        "flushed_in_this_cycle": session.flushed_at == session.compactions,
        "size_unknown": not is_long and tokens is None,
        "below_threshold": not is_long and (tokens or 0) < threshold,
    }
    return next((code for code, holds in reasons.items() if holds), None)


def _context_tokens(session: FlushRequest) -> int | None:
    """Return the known size of a context; where it is stale or unknown, at least the estimate from the messages."""
    if not session.messages or (session.tokens is not None and not session.is_stale):
        return session.tokens
    estimated = sum(map(estimate_tokens, texts(list(session.messages))))
    return max(round(estimated), session.tokens or 0)
