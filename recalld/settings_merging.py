"""How an agent's own settings meet those that all agents share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def merge_agent(defaults: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Merge one agent's raw overrides into the raw defaults.

    Tables are merged key by key, lists and values replace, except `extra_paths`, which are united
    (defaults first, duplicates dropped): the rule that users of the reference system know.
    """
    merged = _merge(defaults, overrides)
    united = [*defaults.get("extra_paths", ()), *overrides.get("extra_paths", ())]
    if united:
        merged["extra_paths"] = list(dict.fromkeys(united))
    return merged


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged
