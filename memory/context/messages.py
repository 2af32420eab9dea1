"""Messages of a model call, in the shapes of OpenAI (chat and responses), Anthropic and OpenClaw.

Context management reads turns, characters and results of tools. Messages are never changed in place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2s
from typing import Any

#: Message, or item of OpenAI's responses, as JSON.
Message = dict[str, Any]

#: Characters that an image, or another part that is no text, counts for.
IMAGE_CHARACTERS = 8_000

_TEXT_TYPES = frozenset({"text", "input_text", "output_text"})
_IMAGE_TYPES = frozenset({"image", "image_url", "input_image", "document", "file", "input_file", "input_audio"})

#: Types of items that a model wrote.
_MODEL_TYPES = frozenset({"function_call", "custom_tool_call", "reasoning"})

#: Type or role of a message or part that is the result of a tool -> the keys of its call's id and of its content.
_RESULT_KEYS = {
    "tool": ("tool_call_id", "content"),
    "function": ("name", "content"),
    "toolResult": ("toolCallId", "content"),
    "tool_result": ("tool_use_id", "content"),
    "function_call_output": ("call_id", "output"),
    "custom_tool_call_output": ("call_id", "output"),
}

#: Keys that `characters` ignores.
_NAMES = frozenset({"type", "role", "id", "status", *(key for key, _ in _RESULT_KEYS.values())})


@dataclass(frozen=True, slots=True)
class ToolResult:
    """Text that a tool returned, in the message at `place`, and there in the part `part` (Anthropic).

    `key` names it by its call, its text, and its number among equal ones.
    """

    place: int
    part: int | None
    key: str
    tool: str
    text: str


def is_user(message: Message) -> bool:
    """Return True for words of a user, and False for results of tools in a user's role."""
    content = message.get("content")
    parts = content if isinstance(content, list) else None
    return message.get("role") == "user" and (not parts or any(_type(part) != "tool_result" for part in parts))


def assistant_turns(messages: Sequence[Message]) -> list[int]:
    """Return the places where the model's turns begin: its words, calls and thoughts without another between."""
    is_model = [message.get("role") == "assistant" or _type(message) in _MODEL_TYPES for message in messages]
    return [place for place, by_model in enumerate(is_model) if by_model and not (place and is_model[place - 1])]


def text_of(content: object) -> str:
    """Return the text of a content: a string, or the text parts of a list, a line each."""
    if isinstance(content, str):
        return content
    texts = (part.get("text") for part in _objects(content) if _type(part) in _TEXT_TYPES)
    return "\n".join(text for text in texts if isinstance(text, str))


def characters(value: object) -> int:
    """Return the characters that a message, or a part of it, takes of a window."""
    return sum(map(len, texts(value)))


def texts(value: object) -> Iterator[str]:
    """Yield the texts that a message, or a part of it, puts into a window; for an image as many blanks as it counts."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for part in value:
            yield from texts(part)
    elif _type(value) in _IMAGE_TYPES:
        yield " " * IMAGE_CHARACTERS
    elif isinstance(value, Mapping):
        for name, part in value.items():
            if name not in _NAMES:
                yield from texts(part)


def tool_results(messages: Sequence[Message]) -> Iterator[ToolResult]:
    """Yield the results of tools that are text only, oldest first."""
    names: dict[str, str] = {}
    repetitions: Counter[tuple[str, str]] = Counter()
    for place, message in enumerate(messages):
        names |= dict(_calls(message))
        content = message.get("content")
        parts = enumerate(content if isinstance(content, list) else ())
        for number, holder in [(None, message), *parts]:
            keys = _result_keys(holder)
            if keys is None or not _is_text(holder.get(keys[1])):
                continue
            call, text = str(holder.get(keys[0]) or ""), text_of(holder[keys[1]])
            tool = str(message.get("toolName") or message.get("name") or names.get(call, ""))
            number_of_equals = repetitions[call, text]
            repetitions[call, text] += 1
            identity = f"{call}\0{text}" + (f"\0{number_of_equals}" if number_of_equals else "")
            key = blake2s(identity.encode("utf-8", "replace"), digest_size=8).hexdigest()
            yield ToolResult(place, number, key, tool, text)


def with_text(message: Message, part: int | None, text: str) -> Message:
    """Return a message with another text of its tool result, or of that in its part `part`."""
    holder = message if part is None else message["content"][part]
    _, key = _result_keys(holder) or ("", "content")
    content = holder[key]
    changed = {**holder, key: [{**content[0], "text": text}] if isinstance(content, list) else text}
    if part is None:
        return changed
    parts = message["content"]
    return {**message, "content": [*parts[:part], changed, *parts[part + 1 :]]}


def _result_keys(holder: object) -> tuple[str, str] | None:
    """Return the keys of the call's id and of the content of a tool's result; None for anything else."""
    kinds = (_type(holder), str(holder.get("role"))) if isinstance(holder, Mapping) else ()
    return next((_RESULT_KEYS[kind] for kind in kinds if kind in _RESULT_KEYS), None)


def _calls(message: Message) -> Iterator[tuple[str, str]]:
    """Yield ids and tools of the calls in a message."""
    for call in _objects(message.get("tool_calls")):
        for function in _objects([call.get("function"), call.get("custom")]):
            yield str(call.get("id")), str(function.get("name", ""))
    if _type(message) in _MODEL_TYPES and message.get("call_id"):
        yield str(message["call_id"]), str(message.get("name", ""))
    for part in _objects(message.get("content")):
        if _type(part) in {"tool_use", "toolCall"}:
            yield str(part.get("id")), str(part.get("name", ""))


def _objects(value: object) -> Iterator[Mapping[str, Any]]:
    """Yield the objects of a list; anything else is no list of objects."""
    yield from (part for part in (value if isinstance(value, list) else ()) if isinstance(part, Mapping))


def _is_text(content: object) -> bool:
    if isinstance(content, list):
        return bool(content) and all(_type(part) in _TEXT_TYPES for part in content)
    return isinstance(content, str)


def _type(part: object) -> str:
    return str(part.get("type")) if isinstance(part, Mapping) else ""
