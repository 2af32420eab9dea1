"""How an agent's own settings meet those that all agents share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def merge_agent(defaults: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Merge one agent's raw overrides into the raw defaults.

    Tables are merged key by key, lists and values replace, except `extra_paths`, which are united
    (defaults first): the rule that users of the reference system know. What the agent says of a path replaces what
    the defaults say of it.
    """
    merged = _merge(defaults, overrides)
    united = united_paths(defaults.get("extra_paths", ()), overrides.get("extra_paths", ()))
    if united:
        merged["extra_paths"] = united
    return merged


def united_paths(first: Any, second: Any) -> list[Any]:
    """Return the entries of two lists of extra paths, each path once, as it was written last."""
    entries = [entry for entries in (first, second) if isinstance(entries, list | tuple) for entry in entries]
    paths = [entry.get("path", entry) if isinstance(entry, Mapping) else entry for entry in entries]
    return list({repr(path): entry for path, entry in zip(paths, entries, strict=True)}.values())


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged
