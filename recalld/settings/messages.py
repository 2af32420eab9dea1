"""Sentences about mistakes in settings: one a mistake, naming the key as it was written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from recalld.settings.keys import SettingKey, agent_keys, top_level_keys
from schemas.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recalld.settings.sources import AgentTable, Written

#: The schema's tags for the forms of an extra path.
_TAGS = frozenset({"text", "table"})


class SettingsInvalid(UserError):
    """The settings cannot be used. One problem a line, each naming the key as it was written."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(dict.fromkeys(problems))
        super().__init__("\n".join(self.problems), exit_code=2)


def sentences_of(error: ValidationError, written: Mapping[str, Written], agents: Sequence[AgentTable]) -> Iterator[str]:
    """Yield the schema's complaints in sentences that name the key at its source.

    A wrong value that agents inherit is reported once, at the top level.
    """
    for found in error.errors(include_url=False, include_context=False):
        where = tuple(part for part in found["loc"] if part not in _TAGS)
        keys, known, label = written, top_level_keys(), "settings"
        if len(where) > 1 and where[0] == "agents":
            agent = agents[int(where[1])]
            keys, known, label, where = agent.keys, agent_keys(), agent.label, where[2:]
        place = ".".join(map(str, where))
        at = _nearest(place, keys)
        if at is not None:
            inner = place.removeprefix(at) if place.startswith(f"{at}.") else ""
            yield _sentence(found, keys[at], known[at], inner=inner)
        elif found["type"] == "missing" and place in known:
            yield f"{label}.{place} is missing; it must be {known[place].allowed}"


def _nearest(place: str, written: Mapping[str, Written]) -> str | None:
    """Return the written key that an error is about: the one at its place, around it, or in the section it names.

    Of several the last one: of "overlap is above half of tokens" that is the overlap.
    """
    around = [key for key in written if place == key or place.startswith(f"{key}.")]
    below = [key for key in written if key.startswith(f"{place}.")]
    return next(reversed(around or below), None)


def _sentence(found: Any, written: Written, key: SettingKey, *, inner: str) -> str:
    at, kind, message = written.label + inner, found["type"], found["msg"]
    if kind == "value_error":
        return f"{at}: {message.removeprefix('Value error, ')}"
    if inner:
        known = {"extra_forbidden": "unknown key", "missing": "is missing"}
        return f"{at}: {known.get(kind) or message[:1].lower() + message[1:]}"
    if key.secret:
        return f"{at} is not valid; it must be {key.allowed}"
    finite = ", and finite" if kind == "finite_number" else ""
    return f"{at} is {shown(written.value)}; it must be {key.allowed}{finite}{_suggestion(written.value, key)}"


def _suggestion(value: Any, key: SettingKey) -> str:
    if not key.allowed.startswith("one of ") or not isinstance(value, str):
        return ""
    near = did_you_mean(value, key.allowed.removeprefix("one of ").split(", "))
    return near or ("; openai-compatible takes any server with OpenAI's API" if key.name == "provider" else "")


def did_you_mean(key: str, known: Iterable[str]) -> str:
    """Return a suggestion if a known name is near: by its whole name, else by its last part wherever that lives."""
    names = list(known)
    for part in (_plain, _plain_leaf):
        by_part = {part(name): name for name in reversed(names)}
        near = get_close_matches(part(key), by_part, n=1, cutoff=0.8)
        if near:
            return f"; did you mean {by_part[near[0]]}?"
    return ""


def _plain(name: str) -> str:
    """Return a name without case and underscores: maxResults is near max_results."""
    return name.lower().replace("_", "")


def _plain_leaf(name: str) -> str:
    return _plain(name.rpartition(".")[2])


def shown(value: Any) -> str:
    """Return a wrong value as a message shows it: cut when it is long."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list | tuple):
        return "a list"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
