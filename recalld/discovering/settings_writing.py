"""A `recalld.toml` for what a person picked."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from recalld.discovering.checking import dotted
from recalld.discovering.finding import Found
from recalld.settings.keys import agent_keys, top_level_keys

_TITLE = """\
# Settings of recalld, written by `recalld discover`. `recalld config show` says what holds;
# the README lists every key with its default.
"""

_BARE = re.compile(r"[A-Za-z0-9_-]+")

#: Allowed in JSON as it is, and not in TOML.
_DELETE = "\x7f"


def settings_file(picked: Iterable[Found]) -> str:
    """The file's text. What holds for all agents is that of the first who says it."""
    agents = list(picked)
    shared: dict[str, Any] = {}
    for one in agents:
        shared = {**dotted(one.shared), **shared}
    said: set[str] = set()
    return "".join([_TITLE, *_lines(shared, blank="\n"), *("".join(_agent(one, said)) for one in agents)])


def _agent(one: Found, said: set[str]) -> Iterable[str]:
    yield f"\n# {_comment(one.title)}\n"
    for remark in one.remarks:
        if remark not in said:
            said.add(remark)
            yield f"# Note: {_comment(remark)}\n"
    yield "[[agents]]\n"
    own = {"id": one.name, "workspace": str(one.workspace), "sessions": list(one.sessions)}
    yield from _lines(own if one.sessions else {key: own[key] for key in ("id", "workspace")})
    yield from _lines(dotted(one.settings))


def _lines(values: Mapping[str, Any], *, blank: str = "") -> Iterable[str]:
    if values:
        yield blank
    order = {key: place for place, key in enumerate((*agent_keys(), *top_level_keys()))}
    for key, value in sorted(values.items(), key=lambda item: order[item[0]]):
        yield f"{'.'.join(_name(part) for part in key.split('.'))} = {_value(value)}\n"


def _name(part: str) -> str:
    return part if _BARE.fullmatch(part) else _text(part)


def _value(value: Any) -> str:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_name(name)} = {_value(item)}" for name, item in value.items()) + " }"
    return json.dumps(value)


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace(_DELETE, "\\u007f")


def _comment(text: str) -> str:
    """One line, without the control characters that a comment may not have."""
    return "".join(sign if sign.isprintable() else " " for sign in text)
