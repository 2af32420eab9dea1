"""The settings tree, flattened: one entry a key, with what is allowed there in words.

Derived from `schemas.settings`, so that the environment's variables, error messages, `config show` and the
documentation can never disagree with the schema.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from schemas.settings import AgentSettings, MemorySettings, Settings

#: Keys that hold a folder or a file. Relative ones are relative to where they were written.
PATH_KEYS = frozenset(
    {"workspace", "sessions", "store.path", "store.vector.extension_path", "local.model_cache_dir", "local.model_path"}
)

#: Keys that may hold a secret without being declared as one.
SENSITIVE_KEYS = frozenset({"remote.headers"})

#: URLs in which a user name and a password may be written.
URL_KEYS = frozenset({"remote.base_url", "store.url"})


@dataclass(frozen=True, slots=True)
class SettingKey:
    """One key: its dotted name, what it accepts in words, its default and what it means.

    `shape` is "value", "list" or "table" (of free keys); `required` keys have no default.
    """

    name: str
    allowed: str
    default: Any
    description: str
    shape: str
    secret: bool
    required: bool


@cache
def top_level_keys() -> Mapping[str, SettingKey]:
    """Every key of `recalld.toml` outside `[[agents]]`, in the schema's order; `agents` itself is one of them."""
    return {key.name: key for key in _keys_of(Settings) if key.name != "home"}


@cache
def agent_keys() -> Mapping[str, SettingKey]:
    """Every key of one `[[agents]]` table, its own ones first."""
    keys = {key.name: key for key in _keys_of(AgentSettings)}
    own = [name for name in ("id", "workspace", "sessions") if name in keys]
    return {name: keys[name] for name in [*own, *(name for name in keys if name not in own)]}


@cache
def memory_sections() -> frozenset[str]:
    """First parts of the keys that an agent may override."""
    return frozenset(MemorySettings.model_fields)


def is_section(keys: Mapping[str, SettingKey], name: str) -> bool:
    """Whether `name` is a table that holds further keys."""
    return any(known.startswith(f"{name}.") for known in keys)


def _keys_of(model: type[BaseModel], prefix: str = "") -> Iterator[SettingKey]:
    for field_name, field in model.model_fields.items():
        name = prefix + (field.alias or field_name)
        section = _section_of(field)
        if section is not None:
            yield from _keys_of(section, name + ".")
            continue
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        yield SettingKey(
            name=name,
            allowed=_allowed(field),
            default=default,
            description=field.description or "",
            shape=_shape(field.annotation),
            secret=SecretStr in _alternatives(field.annotation) or name in SENSITIVE_KEYS,
            required=field.is_required(),
        )


def _section_of(field: FieldInfo) -> type[BaseModel] | None:
    annotation = field.annotation
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    """The members of a union without None; a single type is a union of one."""
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(member for member in get_args(annotation) if member is not type(None))
    return (annotation,)


def _shape(annotation: Any) -> str:
    (first, *_) = _alternatives(annotation)
    origin = get_origin(first)
    if origin in (tuple, list):
        return "list"
    return "table" if origin is dict else "value"


def _allowed(field: FieldInfo) -> str:
    (first, *_) = _alternatives(field.annotation)
    return _words(first, list(field.metadata))


def _words(kind: Any, metadata: list[Any]) -> str:
    origin = get_origin(kind)
    if origin is Literal:
        return "one of " + ", ".join(str(value) for value in get_args(kind))
    if origin in (tuple, list):
        inner = get_args(kind)[0]
        if inner is str:
            return "a list of texts"
        if get_origin(inner) is Annotated:
            return "a list of texts or tables"
        if get_origin(inner) is Literal:
            return "a list of any of " + ", ".join(get_args(inner))
        return "a list of tables"
    if origin is dict:
        return "a table of names and texts"
    if kind is bool:
        return "true or false"
    if kind is int:
        return "a whole number" + _range(metadata)
    if kind is float:
        return "a number" + _range(metadata)
    if kind is Path:
        return "a path"
    pattern = next((found for item in metadata if (found := getattr(item, "pattern", None))), None)
    return f"a text of the form {pattern}" if pattern else "a text"


def _range(metadata: list[Any]) -> str:
    lowest = next((item.ge for item in metadata if isinstance(item, Ge)), None)
    highest = next((item.le for item in metadata if isinstance(item, Le)), None)
    above = next((item.gt for item in metadata if isinstance(item, Gt)), None)
    below = next((item.lt for item in metadata if isinstance(item, Lt)), None)
    if lowest is not None and highest is not None:
        return f" from {_plain(lowest)} to {_plain(highest)}"
    parts = []
    if lowest is not None:
        parts.append(f"at least {_plain(lowest)}")
    if above is not None:
        parts.append(f"above {_plain(above)}")
    if highest is not None:
        parts.append(f"at most {_plain(highest)}")
    if below is not None:
        parts.append(f"below {_plain(below)}")
    return f", {' and '.join(parts)}" if parts else ""


def _plain(number: Any) -> str:
    return f"{number:g}" if isinstance(number, float) else str(number)
