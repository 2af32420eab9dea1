"""Pruning of old tool results before a model call. Only the prompt shrinks: transcripts and the caller's messages stay.

A provider's prompt cache holds the bytes of a prompt's beginning. So nothing new is pruned while the cache is warm,
and earlier decisions are repeated byte for byte in every later call.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from memory.context.messages import (
    Message,
    ToolResult,
    assistant_turns,
    characters,
    is_user,
    tool_results,
    with_text,
)
from schemas.context import PruneAnswer, PruneDecision, PruneRequest
from schemas.settings import Pruning

#: Characters of a token, and tokens of a window that the caller does not know.
TOKEN_CHARACTERS = 4
UNKNOWN_WINDOW_TOKENS = 200_000

_TRIMMED = "[Tool result trimmed: kept first {head} and last {tail} of {all} characters.]"

#: Characters for the note in a trimmed text. A text hardly longer than its ends stays, and so does a trimmed text.
_NOTE_ROOM = 200


def prune(request: PruneRequest, settings: Pruning, *, now: float) -> PruneAnswer:
    """Return the messages for a call at Unix time `now`, with old results of tools shortened or cleared."""
    before = sum(map(characters, request.messages))
    if settings.mode == "off":
        unchanged = request.model_dump(include={"touched_at", "decisions"})
        return PruneAnswer(messages=request.messages, characters_before=before, characters_after=before, **unchanged)
    prompt = _Prompt(request, settings, before)
    for result in prompt.results:
        if (decision := request.decisions.get(result.key)) is not None:
            prompt.shorten(result, decision)
    repeated = dict(prompt.decisions)
    if request.touched_at is not None and now - request.touched_at > settings.ttl_minutes * 60:
        _decide(prompt, _prunable(prompt.results, request.messages, settings), settings)
    has_new = prompt.decisions != repeated
    return PruneAnswer(
        messages=tuple(prompt.messages),
        touched_at=now if has_new else request.touched_at,
        decisions=prompt.decisions if has_new else request.decisions,
        characters_before=before,
        characters_after=prompt.characters,
    )


class _Prompt:
    """Messages of one call while results of tools are shortened: their decisions, and the characters of all."""

    def __init__(self, request: PruneRequest, settings: Pruning, size: int) -> None:
        self.messages: list[Message] = list(request.messages)
        self.results = list(tool_results(self.messages))
        self.decisions: dict[str, PruneDecision] = {}
        self.characters = size
        self._window = (request.window_tokens or UNKNOWN_WINDOW_TOKENS) * TOKEN_CHARACTERS
        self._settings = settings
        self._lengths = {(result.place, result.part): len(result.text) for result in self.results}

    def fills(self, share: float) -> bool:
        """Return True if the messages take at least this share of the window."""
        return self.characters / self._window >= share

    def length(self, result: ToolResult) -> int:
        """Return the characters that a result has by now."""
        return self._lengths[result.place, result.part]

    def shorten(self, result: ToolResult, decision: PruneDecision) -> None:
        """Carry out a decision, unless the result is as short already."""
        settings = self._settings
        text = _trimmed(result.text, settings) if decision == "trim" else settings.hard_clear.placeholder
        saved = self.length(result) - len(text)
        if saved <= 0:
            return
        self.characters -= saved
        self.messages[result.place] = with_text(self.messages[result.place], result.part, text)
        self._lengths[result.place, result.part] = len(text)
        self.decisions[result.key] = decision


def _decide(prompt: _Prompt, old: Sequence[ToolResult], settings: Pruning) -> None:
    """Trim long results once a share of the window is full, then clear the oldest ones."""
    if not prompt.fills(settings.soft_trim_ratio):
        return
    clearable = [result for result in old if prompt.decisions.get(result.key) != "clear"]
    for result in clearable:
        prompt.shorten(result, "trim")
    if not settings.hard_clear.enabled or sum(map(prompt.length, clearable)) < settings.min_prunable_tool_chars:
        return
    for result in clearable:
        if prompt.fills(settings.hard_clear_ratio):
            prompt.shorten(result, "clear")


def _prunable(results: Sequence[ToolResult], messages: Sequence[Message], settings: Pruning) -> list[ToolResult]:
    """Return the results that may be pruned: after the first user message, before the last turns."""
    turns = [*assistant_turns(messages), len(messages)]
    first = next((place for place, message in enumerate(messages) if is_user(message)), len(messages))
    end = turns[-1 - settings.keep_last_assistants] if settings.keep_last_assistants < len(turns) else 0
    return [result for result in results if first < result.place < end and _is_allowed(result.tool.lower(), settings)]


def _is_allowed(tool: str, settings: Pruning) -> bool:
    allowed, denied = (
        any(fnmatchcase(tool, glob.lower()) for glob in globs)
        for globs in (settings.tools.allow or ("*",), settings.tools.deny)
    )
    return allowed and not denied


def _trimmed(text: str, settings: Pruning) -> str:
    head, tail = settings.soft_trim.head_chars, settings.soft_trim.tail_chars
    if len(text) <= max(settings.soft_trim.max_chars, head + tail + _NOTE_ROOM):
        return text
    note = _TRIMMED.format(head=head, tail=tail, all=len(text))
    return f"{text[:head]}\n...\n{text[len(text) - tail :]}\n\n{note}"
