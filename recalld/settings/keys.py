"""The settings tree, flattened: one entry a key, with its allowed values in words.

Derived from `schemas.settings`, so that the environment's variables, error messages, `config show` and the table of
settings always agree with the schema.
"""

from __future__ import annotations

import types
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from schemas.settings import AgentSettings, MemorySettings, Settings
from schemas.settings.section import AGENT_ID_PATTERN

#: Keys that hold a folder or a file. Relative ones are relative to the place where they were written.
PATH_KEYS = frozenset(
    {"workspace", "sessions", "store.path", "store.vector.extension_path", "local.model_cache_dir", "local.model_path"}
)

#: URLs in which a user name and a password may be written.
URL_KEYS = frozenset({"remote.base_url", "query.rerank.base_url"})


_BOUNDS = ((Ge, "ge", "at least"), (Gt, "gt", "above"), (Le, "le", "at most"), (Lt, "lt", "below"))


@dataclass(frozen=True, slots=True)
class SettingKey:
    """One key: dotted name, allowed values in words, default and meaning.

    `shape` is "value", "list" or "table" (of free keys); `required` keys have no default.
    """

    name: str
    allowed: str
    default: Any
    description: str
    shape: str
    secret: bool
    required: bool

    @property
    def is_number(self) -> bool:
        """Return True if the key holds a number."""
        return self.allowed.startswith(("a number", "a whole number"))


@cache
def top_level_keys() -> Mapping[str, SettingKey]:
    """Return every key of `recalld.toml` outside `[[agents]]`, and `agents` itself, in the schema's order."""
    return {key.name: key for key in _keys_of(Settings) if key.name != "home"}


@cache
def agent_keys() -> Mapping[str, SettingKey]:
    """Return every key of one `[[agents]]` table, those that only an agent has first."""
    keys = {key.name: key for key in _keys_of(AgentSettings)}
    keys["id"] = replace(keys["id"], allowed=f"a text of the form {AGENT_ID_PATTERN}")
    return {name: keys[name] for name in ("id", "workspace", "sessions")} | keys


@cache
def memory_sections() -> frozenset[str]:
    """Return the first parts of the keys that an agent may override."""
    return frozenset(MemorySettings.model_fields)


def is_section(keys: Mapping[str, SettingKey], name: str) -> bool:
    """Return True if `name` is a table that holds further keys."""
    return any(key.startswith(f"{name}.") for key in keys)


def dotted(tree: Mapping[str, Any], whole_keys: Container[str] = (), above: str = "") -> dict[str, Any]:
    """Return nested tables as dotted keys; a table that is empty, or a known key, stays whole."""
    flat: dict[str, Any] = {}
    for part, value in tree.items():
        key = above + part
        is_leaf = not isinstance(value, Mapping) or not value or key in whole_keys
        flat |= {key: value} if is_leaf else dotted(value, whole_keys, f"{key}.")
    return flat


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


def _keys_of(model: type[BaseModel], prefix: str = "") -> Iterator[SettingKey]:
    for field_name, field in model.model_fields.items():
        if field.exclude:
            continue
        name = prefix + (field.alias or field_name)
        kind = _kind(field)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _keys_of(kind, name + ".")
            continue
        yield SettingKey(
            name=name,
            allowed=_words(kind, field.metadata),
            default=None if field.is_required() else field.get_default(call_default_factory=True),
            description=field.description or "",
            shape={tuple: "list", dict: "table"}.get(get_origin(kind), "value"),
            secret=kind is SecretStr or name == "remote.headers",
            required=field.is_required(),
        )


def _kind(field: FieldInfo) -> Any:
    """Return the type of a field, without the None of an optional one."""
    kinds = get_args(field.annotation) if get_origin(field.annotation) in (Union, types.UnionType) else ()
    return next((kind for kind in kinds if kind is not type(None)), field.annotation)


def _words(kind: Any, metadata: list[Any]) -> str:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return "one of " + ", ".join(map(str, arguments))
    if origin is tuple:
        inner = arguments[0]
        if get_origin(inner) is Literal:
            return "a list of any of " + ", ".join(get_args(inner))
        if get_origin(inner) is Annotated:
            return "a list of texts or tables"
        return "a list of texts" if inner is str else "a list of tables"
    if origin is dict:
        return "a table of names and texts"
    if kind in (int, float):
        return ("a whole number" if kind is int else "a number") + _range(metadata)
    if kind in (bool, Path):
        return "true or false" if kind is bool else "a path"
    pattern = next(filter(None, (getattr(item, "pattern", None) for item in metadata)), None)
    return f"a text of the form {pattern}" if pattern else "a text"


def _range(metadata: list[Any]) -> str:
    bounds = [
        (words, getattr(item, name)) for kind, name, words in _BOUNDS for item in metadata if isinstance(item, kind)
    ]
    if [words for words, _ in bounds] == ["at least", "at most"]:
        return f" from {bounds[0][1]:g} to {bounds[1][1]:g}"
    return ", " * bool(bounds) + " and ".join(f"{words} {bound:g}" for words, bound in bounds)


def brief(value: Any) -> str:
    """Return a wrong value for a message, cut when it is long."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list | tuple):
        return "a list"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
