"""A `recalld.toml` for the memories that a user picked, with values that recalld accepts."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from recalld.discover.memories import Found
from recalld.settings.keys import agent_keys, top_level_keys
from schemas.settings import Settings

_TITLE = """\
# Settings of recalld, written by `recalld discover`. `recalld config show` says what holds;
# docs/settings.md lists every key with its default.
"""

_BARE = re.compile(r"[A-Za-z0-9_-]+")

#: Allowed in JSON as it is, and not in TOML.
_DELETE = "\x7f"


def accepted(values: Mapping[str, Any], remarks: list[str]) -> dict[str, Any]:
    """Return dotted keys as nested tables. `remarks` gets a sentence on each value that the schema refuses."""
    kept = {key: _whole(key, value) for key, value in values.items()}
    wrong = [key for key, value in kept.items() if _is_odd(key, value)]
    while True:
        for key in wrong:
            del kept[key]
            remarks.append(f"{key} has a value that is not allowed here")
        try:
            Settings.model_validate({"home": "/", **nested(kept)})
        except ValidationError as error:
            places = {".".join(map(str, found["loc"])) for found in error.errors()}
            # An error of a section (overlap against tokens) is about every key of it.
            wrong = [key for key in kept if any(key == at or at.startswith(f"{key}.") for at in places)]
            wrong = wrong or [key for key in kept if any(key.startswith(f"{at}.") for at in places)] or list(kept)
        else:
            return nested(kept)


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return dotted keys as nested tables."""
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *above, last = key.split(".")
        table = tree
        for part in above:
            table = table.setdefault(part, {})
        table[last] = value
    return tree


def dotted(tree: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Return nested tables as dotted keys."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        found |= dotted(value, f"{above}{name}.") if isinstance(value, Mapping) else {above + name: value}
    return found


def _whole(key: str, value: Any) -> Any:
    """Return 5e4 as a whole number where the schema wants one."""
    if isinstance(value, float) and value.is_integer() and top_level_keys()[key].allowed.startswith("a whole number"):
        return int(value)
    return value


def _is_odd(key: str, value: Any) -> bool:
    """Return True for a value that the schema would read as another: true as 1, "5" as 5."""
    allowed = top_level_keys()[key].allowed
    if allowed.startswith(("a number", "a whole number")):
        return isinstance(value, bool | str) or (isinstance(value, float) and not math.isfinite(value))
    return allowed == "true or false" and not isinstance(value, bool)


def settings_file(picked: Iterable[Found]) -> str:
    """Return the text of a `recalld.toml`. Where memories differ in a setting for all agents, the first one counts."""
    agents = list(picked)
    shared: dict[str, Any] = {}
    for one in agents:
        shared = {**dotted(one.shared), **shared}
    text = [_TITLE, "\n" if shared else "", *_lines(shared)]
    seen: set[str] = set()
    for one in agents:
        text.append(f"\n# {_comment(one.title)}\n")
        text += [f"# Note: {_comment(remark)}\n" for remark in one.remarks if remark not in seen]
        seen.update(one.remarks)
        sessions = {"sessions": one.sessions} if one.sessions else {}
        text += ["[[agents]]\n", *_lines({"id": one.name, "workspace": str(one.workspace), **sessions})]
        text += _lines(dotted(one.settings))
    return "".join(text)


def _lines(values: Mapping[str, Any]) -> Iterator[str]:
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
    """Return one line, without the control characters that a comment may not have."""
    return "".join(sign if sign.isprintable() else " " for sign in text)
