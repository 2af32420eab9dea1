"""A `recalld.toml` for the memories that a user picked, with values that recalld accepts."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from recalld.discover.memories import Found
from recalld.settings.keys import agent_keys, dotted, nested, top_level_keys
from schemas.settings import Settings

_TITLE = """\
# Settings of recalld, written by `recalld discover`. `recalld config show` says what holds;
# docs/settings.md lists every key with its default.
"""


def accepted(values: Mapping[str, Any], remarks: list[str]) -> dict[str, Any]:
    """Return dotted keys as nested tables. `remarks` gets a sentence on each value that the schema refuses."""
    kept: dict[str, Any] = {}
    wrong: list[str] = []
    for key, value in values.items():
        known = top_level_keys()[key]
        # The schema would read these as other values: true as 1, "5" as 5.
        odd = isinstance(value, bool | str) or (isinstance(value, float) and not math.isfinite(value))
        if odd if known.is_number else known.allowed == "true or false" and not isinstance(value, bool):
            wrong.append(key)
        else:
            kept[key] = int(value) if isinstance(value, float) and value.is_integer() else value
    while True:
        remarks += [f"{key} has a value that is not allowed here" for key in wrong]
        kept = {key: value for key, value in kept.items() if key not in wrong}
        try:
            Settings.model_validate({"home": "/", **nested(kept)})
        except ValidationError as error:
            places = {".".join(map(str, found["loc"])) for found in error.errors()}
            # An error of a section (overlap against tokens) is about every key of it.
            wrong = [key for key in kept if any(key == at or at.startswith(f"{key}.") for at in places)]
            wrong = wrong or [key for key in kept if any(key.startswith(f"{at}.") for at in places)] or list(kept)
        else:
            return nested(kept)


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
        own = {"id": one.name, "workspace": str(one.workspace), **sessions, **dotted(one.settings)}
        text += ["[[agents]]\n", *_lines(own)]
    return "".join(text)


def _lines(values: Mapping[str, Any]) -> Iterator[str]:
    order = {key: place for place, key in enumerate((*agent_keys(), *top_level_keys()))}
    for key, value in sorted(values.items(), key=lambda item: order[item[0]]):
        yield f"{key} = {_value(value)}\n"


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_value(name)} = {_value(item)}" for name, item in value.items()) + " }"
    # JSON's texts, numbers and booleans are those of TOML, but for one character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _comment(text: str) -> str:
    """Return one line, without the control characters that a comment may not have."""
    return "".join(sign if sign.isprintable() else " " for sign in text)
