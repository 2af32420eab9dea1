"""Pruning of old tool results before a model call. Only the prompt shrinks: transcripts and the caller's messages stay.

A provider's prompt cache holds the bytes of a prompt's beginning. So nothing new is pruned while the cache is warm,
and earlier decisions are repeated byte for byte in every later call.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

from memory.context.messages import (
    Message,
    ToolResult,
    assistant_turns,
    characters,
    is_user,
    tool_results,
    with_texts,
)
from schemas.sections import Pruning

#: Characters of a token, and tokens of a window that the caller does not know.
TOKEN_CHARACTERS = 4
UNKNOWN_WINDOW_TOKENS = 200_000

_TRIMMED = "[Tool result trimmed: kept first {head} and last {tail} of {all} characters.]"
_IS_TRIMMED = re.compile(r"\[Tool result trimmed: kept first \d+ and last \d+ of \d+ characters\.\]\Z")

Decision = Literal["trim", "clear"]


@dataclass(frozen=True, slots=True)
class PruningState:
    """State between the calls of one session: Unix time of the last cache write, and decisions by a result's key."""

    touched_at: float | None = None
    decisions: Mapping[str, Decision] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pruned:
    """Messages for the model and the state for the next call; `characters` before and after."""

    messages: list[Message]
    state: PruningState
    characters: tuple[int, int]


def prune(
    messages: Sequence[Message],
    settings: Pruning,
    *,
    now: float,
    state: PruningState | None = None,
    window_tokens: int | None = None,
) -> Pruned:
    """Return the messages for a call at Unix time `now`, with old results of tools shortened or cleared.

    The model's window has `window_tokens`. The state's time moves only if something new was pruned; the caller moves it
    after every call that writes the provider's cache.
    """
    state = state or PruningState()
    before = sum(map(characters, messages))
    if settings.mode == "off":
        return Pruned(list(messages), state, (before, before))
    results = list(tool_results(messages))
    pruning = _Pruning(
        settings, results, total=before, window=(window_tokens or UNKNOWN_WINDOW_TOKENS) * TOKEN_CHARACTERS
    )
    pruning.repeat(state.decisions)
    kept = dict(pruning.decisions)
    if state.touched_at is not None and now - state.touched_at > settings.ttl_minutes * 60:
        pruning.decide(_old(messages, results, settings))
    if pruning.decisions != kept:
        state = PruningState(now, pruning.decisions)
    texts = {(one.place, one.part): pruning.texts[index] for index, one in enumerate(results) if index in pruning.texts}
    return Pruned(with_texts(messages, texts), state, (before, pruning.total))


def _old(messages: Sequence[Message], results: Sequence[ToolResult], settings: Pruning) -> list[int]:
    """Return the indexes of results that may be pruned: after the first user message, before the last turns."""
    turns = assistant_turns(messages)
    first = next((place for place, message in enumerate(messages) if is_user(message)), None)
    if first is None or len(turns) < settings.keep_last_assistants:
        return []
    end = turns[-settings.keep_last_assistants] if settings.keep_last_assistants else len(messages)
    return [
        index
        for index, one in enumerate(results)
        if first < one.place < end and one.is_text and _is_allowed(one.tool, settings)
    ]


def _is_allowed(tool: str, settings: Pruning) -> bool:
    def matches(globs: Sequence[str]) -> bool:
        return any(fnmatchcase(tool.lower(), glob.lower()) for glob in globs)

    return not matches(settings.tools.deny) and (not settings.tools.allow or matches(settings.tools.allow))


class _Pruning:
    """Decisions of one call, the texts that follow from them, and the characters that the prompt has with them."""

    def __init__(self, settings: Pruning, results: Sequence[ToolResult], *, total: int, window: int) -> None:
        self._settings = settings
        self._results = results
        self._window = window
        self.total = total
        self.decisions: dict[str, Decision] = {}
        self.texts: dict[int, str] = {}

    def repeat(self, decisions: Mapping[str, Decision]) -> None:
        """Carry out earlier decisions."""
        for index, one in enumerate(self._results):
            if one.is_text and (decision := decisions.get(one.key)) is not None:
                self._carry_out(index, decision)

    def decide(self, old: Sequence[int]) -> None:
        """Trim long results once a share of the window is full, then clear the oldest ones."""
        settings = self._settings
        if self._share < settings.soft_trim_ratio:
            return
        for index in old:
            if self.decisions.get(self._results[index].key) is None:
                self._carry_out(index, "trim")
        left = [index for index in old if self.decisions.get(self._results[index].key) != "clear"]
        prunable = sum(len(self._text(index)) for index in left)
        if not settings.hard_clear.enabled or prunable < settings.min_prunable_tool_chars:
            return
        for index in left:
            if self._share < settings.hard_clear_ratio:
                return
            self._carry_out(index, "clear")

    @property
    def _share(self) -> float:
        return self.total / self._window

    def _text(self, index: int) -> str:
        return self.texts.get(index, self._results[index].text)

    def _carry_out(self, index: int, decision: Decision) -> None:
        result = self._results[index]
        settings = self._settings
        text = _trimmed(result.text, settings) if decision == "trim" else settings.hard_clear.placeholder
        before = self._text(index)
        if len(text) >= len(before):
            return
        self.total += len(text) - len(before)
        self.texts[index] = text
        self.decisions[result.key] = decision


def _trimmed(text: str, settings: Pruning) -> str:
    trim = settings.soft_trim
    if len(text) <= trim.max_chars or _IS_TRIMMED.search(text, max(0, len(text) - 200)):
        return text
    note = _TRIMMED.format(head=trim.head_chars, tail=trim.tail_chars, all=len(text))
    return f"{text[: trim.head_chars]}\n...\n{text[len(text) - trim.tail_chars :]}\n\n{note}"
