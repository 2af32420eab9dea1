"""Keep of translated settings what recalld accepts; the rest is a remark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from recalld.settings.keys import top_level_keys
from schemas.settings import Settings


def accepted(values: Mapping[str, Any], remarks: list[str]) -> dict[str, Any]:
    """Dotted keys as nested tables, without those whose values the schema refuses; `remarks` says which."""
    kept = {key: _whole(key, value) for key, value in values.items()}
    for key in [key for key, value in kept.items() if _is_odd(key, value)]:
        del kept[key]
        remarks.append(f"{key} has a value that is not allowed here")
    while True:
        try:
            Settings.model_validate({"home": "/", **nested(kept)})
        except ValidationError as error:
            places = {".".join(map(str, found["loc"])) for found in error.errors()}
            # A section's error (overlap against tokens) is about all that was set in it.
            wrong = [key for key in kept if any(key == at or at.startswith(f"{key}.") for at in places)]
            wrong = wrong or [key for key in kept if any(key.startswith(f"{at}.") for at in places)] or list(kept)
            for key in wrong:
                del kept[key]
                remarks.append(f"{key} has a value that is not allowed here")
        else:
            return nested(kept)


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys as nested tables."""
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *above, last = key.split(".")
        table = tree
        for part in above:
            table = table.setdefault(part, {})
        table[last] = value
    return tree


def dotted(tree: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Nested tables as dotted keys."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            found |= dotted(value, f"{above}{name}.")
        else:
            found[above + name] = value
    return found


def _whole(key: str, value: Any) -> Any:
    """5e4 is a whole number to those who wrote it."""
    if isinstance(value, float) and value.is_integer() and top_level_keys()[key].allowed.startswith("a whole number"):
        return int(value)
    return value


def _is_odd(key: str, value: Any) -> bool:
    """What the schema would read as something else: true as 1, "5" as 5."""
    allowed = top_level_keys()[key].allowed
    if allowed.startswith(("a number", "a whole number")):
        return isinstance(value, bool | str) or value != value or value in (float("inf"), float("-inf"))
    if allowed == "true or false":
        return not isinstance(value, bool)
    return False
