"""Messages of a model call, in the shapes of OpenAI (chat and responses), Anthropic and OpenClaw.

Context management reads turns, characters and results of tools. Messages are never changed in place.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2s
from typing import Any

#: Message, or item of OpenAI's responses, as JSON.
Message = Mapping[str, Any]

#: Characters that an image, or another part that is no text, counts for.
IMAGE_CHARACTERS = 8_000

_TEXT_TYPES = frozenset({"text", "input_text", "output_text"})
_IMAGE_TYPES = frozenset({"image", "image_url", "input_image", "document", "file", "input_file", "input_audio"})

#: Types of items that a model wrote.
_MODEL_TYPES = frozenset({"function_call", "custom_tool_call", "reasoning"})

#: Role or type of a message that is the result of a tool -> the keys of its call's id and of its content.
_RESULT_KEYS = {
    "tool": ("tool_call_id", "content"),
    "function": ("name", "content"),
    "toolResult": ("toolCallId", "content"),
    "function_call_output": ("call_id", "output"),
    "custom_tool_call_output": ("call_id", "output"),
}


@dataclass(frozen=True, slots=True)
class ToolResult:
    """Result of a tool in the message at `place`, and there in the part `part` (Anthropic).

    `key` names it by its call and its text. `is_text` is False if it holds an image or another part that is no text.
    """

    place: int
    part: int | None
    key: str
    tool: str
    text: str
    is_text: bool


def is_user(message: Message) -> bool:
    """Return True for words of a user, and False for results of tools in a user's role."""
    content = message.get("content")
    parts = content if isinstance(content, list) else None
    return message.get("role") == "user" and (not parts or any(_type(part) != "tool_result" for part in parts))


def is_assistant(message: Message) -> bool:
    """Return True for words, calls and thoughts of the model."""
    return message.get("role") == "assistant" or _type(message) in _MODEL_TYPES


def assistant_turns(messages: Sequence[Message]) -> list[int]:
    """Return the places where the model's turns begin. Items of the model without another between are one turn."""
    return [
        place
        for place, message in enumerate(messages)
        if is_assistant(message) and (place == 0 or not is_assistant(messages[place - 1]))
    ]


def text_of(content: object) -> str:
    """Return the text of a content: a string, or the text parts of a list, a line each."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = (part.get("text") for part in parts if isinstance(part, Mapping) and _type(part) in _TEXT_TYPES)
    return "\n".join(text for text in texts if isinstance(text, str))


def characters(message: Message) -> int:
    """Return the characters that a message takes of a window."""
    kind = str(message.get("type") or message.get("role"))
    content = message.get(_RESULT_KEYS[kind][1]) if kind in _RESULT_KEYS else message.get("content")
    called = [message.get(name) for name in ("tool_calls", "arguments", "input", "summary")]
    return _characters(content) + sum(_characters(value) for value in called if value)


def tool_results(messages: Sequence[Message]) -> Iterator[ToolResult]:
    """Yield the results of tools, oldest first."""
    names: dict[str, str] = {}
    for place, message in enumerate(messages):
        names |= dict(_calls(message))
        kind = str(message.get("type") or message.get("role"))
        if kind not in _RESULT_KEYS:
            kind = str(message.get("role"))
        if kind in _RESULT_KEYS:
            id_key, content_key = _RESULT_KEYS[kind]
            call = str(message.get(id_key) or "")
            tool = str(message.get("toolName") or message.get("name") or names.get(call, ""))
            yield _result(place, None, call, tool, message.get(content_key))
            continue
        content = message.get("content")
        for number, part in enumerate(content if isinstance(content, list) else ()):
            if _type(part) == "tool_result":
                call = str(part.get("tool_use_id") or "")
                yield _result(place, number, call, names.get(call, ""), part.get("content"))


def with_texts(messages: Sequence[Message], texts: Mapping[tuple[int, int | None], str]) -> list[Message]:
    """Return the messages with other texts of the tool results at these places and parts; the others as they are."""
    changed = list(messages)
    for (place, number), text in texts.items():
        message = changed[place]
        if number is None:
            kind = str(message.get("type") or message.get("role"))
            key = _RESULT_KEYS[kind if kind in _RESULT_KEYS else str(message.get("role"))][1]
            changed[place] = {**message, key: _in_form_of(message[key], text)}
        else:
            parts = list(message["content"])
            parts[number] = {**parts[number], "content": _in_form_of(parts[number]["content"], text)}
            changed[place] = {**message, "content": parts}
    return changed


def _calls(message: Message) -> Iterator[tuple[str, str]]:
    """Yield ids and tools of the calls in a message."""
    for call in _tables(message.get("tool_calls")):
        for function in _tables([call.get("function"), call.get("custom")]):
            yield str(call.get("id")), str(function.get("name", ""))
    if _type(message) in _MODEL_TYPES and message.get("call_id"):
        yield str(message["call_id"]), str(message.get("name", ""))
    for part in _tables(message.get("content")):
        if _type(part) in {"tool_use", "toolCall"}:
            yield str(part.get("id")), str(part.get("name", ""))


def _tables(value: object) -> Iterator[Mapping[str, Any]]:
    """Yield the objects of a list; anything else is no list of objects."""
    yield from (one for one in (value if isinstance(value, list) else ()) if isinstance(one, Mapping))


def _result(place: int, part: int | None, call: str, tool: str, content: object) -> ToolResult:
    text = text_of(content)
    parts = content if isinstance(content, list) else []
    is_text = isinstance(content, str) or (bool(parts) and all(_type(one) in _TEXT_TYPES for one in parts))
    key = blake2s(f"{call}\0{text}".encode("utf-8", "replace"), digest_size=8).hexdigest()
    return ToolResult(place, part, key, tool, text, is_text)


def _in_form_of(content: object, text: str) -> object:
    if not isinstance(content, list):
        return text
    return [{**content[0], "text": text}]


def _characters(value: object) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, list):
        return sum(map(_characters, value))
    if not isinstance(value, Mapping):
        return 0
    kind = _type(value)
    if kind in _TEXT_TYPES:
        return len(str(value.get("text", "")))
    if kind in _IMAGE_TYPES:
        return IMAGE_CHARACTERS
    if kind == "tool_result":
        return _characters(value.get("content"))
    return len(json.dumps(value, ensure_ascii=False, default=str))


def _type(part: object) -> str:
    return str(part.get("type")) if isinstance(part, Mapping) else ""
