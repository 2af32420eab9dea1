"""Requests and answers about the context of a conversation, as they travel over HTTP.

Field names are camelCase on the wire. Messages of a model call are JSON objects in the shape of their provider.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from schemas.search import Wire

SessionKindOfPrompt = Literal["chat", "subagent", "cron"]
PruneDecision = Literal["trim", "clear"]

#: Control characters, but for tabs and line ends.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

#: Text of the user's own for a turn of a model. Control characters in it are left out.
OwnPrompt = Annotated[str, Field(max_length=10_000), AfterValidator(lambda text: _CONTROLS.sub("", text).strip())]


class PromptRequest(Wire):
    """Prompt that is about to go to a model; without `prompt` its session only begins.

    `session` names the conversation: nothing comes twice in it until it begins anew. `begins`: the session starts, or
    its context was compacted. `projects`: repositories that the conversation is about, such as github.com/acme/shop or
    its URL. `repeats`: texts may come again, for a program that keeps no text of an earlier prompt.
    """

    prompt: Annotated[str, Field(max_length=200_000)] = ""
    session: Annotated[str, Field(max_length=512)] = ""
    session_key: str | None = None
    begins: bool = False
    repeats: bool = False
    projects: Annotated[tuple[str, ...], Field(max_length=4)] = ()
    agent: str | None = None


class PromptBlock(Wire):
    """Block of the text for a prompt. `source` is a citation, `kind` "standing" or "memory"."""

    kind: str
    source: str
    characters: int
    tokens: int


class PromptAnswer(Wire):
    """Text to put before a prompt, empty if there is none, and its blocks. `disabled`: the setting is off."""

    text: str = ""
    blocks: tuple[PromptBlock, ...] = ()
    disabled: bool | None = None
    took_ms: float = 0.0


class BootstrapFile(Wire):
    """File that a session begins with: its characters, and the characters and tokens of its shown part.

    `text` is there on request only. `problem`: the reason why nothing is shown.
    """

    path: str
    characters: int
    shown: int
    tokens: int
    truncated: bool = False
    problem: str | None = None
    text: str | None = None


class ToolCost(Wire):
    """Size of a tool's definition in a request to a model."""

    name: str
    characters: int
    tokens: int


class IndexedDocument(Wire):
    """Document that searches find. `tokens` is an estimate from its bytes, or the words of a transcript."""

    path: str
    source: str
    bytes: int
    chunks: int
    tokens: int


class ContextReport(Wire):
    """Share of a session's prompt and of the index, by file and tool, in characters and estimated tokens."""

    files: tuple[BootstrapFile, ...] = ()
    standing: tuple[PromptBlock, ...] = ()
    daily_notes: tuple[PromptBlock, ...] = ()
    tools: tuple[ToolCost, ...] = ()
    indexed: tuple[IndexedDocument, ...] = ()
    error: str | None = None


class FlushRequest(Wire):
    """State of a session before its next turn.

    `tokens`: last known size of the context, None if never counted. While it `is_stale` or unknown, `messages` are
    counted. `compactions`: their number so far. `flushed_at`: that number at the last flush, None before the first one.
    `is_writable`: None to look at the workspace. `prompt` and `system_prompt` take the place of those of the settings.
    """

    window_tokens: Annotated[int, Field(ge=1)]
    tokens: Annotated[int, Field(ge=0)] | None = None
    is_stale: bool = False
    messages: tuple[dict[str, Any], ...] = ()
    transcript_bytes: Annotated[int, Field(ge=0)] = 0
    compactions: Annotated[int, Field(ge=0)] = 0
    flushed_at: int | None = None
    is_writable: bool | None = None
    is_heartbeat: bool = False
    prompt: OwnPrompt | None = None
    system_prompt: OwnPrompt | None = None
    agent: str | None = None


class FlushAnswer(Wire):
    """Plan of a flush that is `due`, else the code of the reason in `skip`, such as "below_threshold".

    A plan has the prompts of the hidden turn, the only `path` that it may write, and the token for "nothing to say".
    Afterwards the session's `flushed_at` is `cycle`, the number of compactions when the plan was made.
    """

    due: bool
    skip: str | None = None
    system_prompt: str | None = None
    prompt: str | None = None
    path: str | None = None
    silent_token: str | None = None
    model: str | None = None
    cycle: int | None = None


class PruneRequest(Wire):
    """Messages of the next call. `touched_at` and `decisions` are those of the last answer.

    `touched_at` is the Unix time of the last call that wrote the provider's cache, `now` that of this call.
    `decisions` name a result by its call and its text.
    """

    messages: tuple[dict[str, Any], ...]
    window_tokens: Annotated[int, Field(ge=1)] | None = None
    touched_at: Annotated[float, Field(allow_inf_nan=False)] | None = None
    decisions: dict[str, PruneDecision] = Field(default_factory=dict)
    now: Annotated[float, Field(allow_inf_nan=False)] | None = None
    agent: str | None = None


class PruneAnswer(Wire):
    """Messages for the model, the state for the next request, and the characters before and after.

    `touched_at` moves only if something new was pruned; the client moves it after every call that writes the cache.
    """

    messages: tuple[dict[str, Any], ...]
    touched_at: float | None = None
    decisions: dict[str, PruneDecision] = Field(default_factory=dict)
    characters_before: int
    characters_after: int
