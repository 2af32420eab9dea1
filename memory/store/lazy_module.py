"""A module that is imported when something of it is first used.

For numpy in the store: a search by keywords in a process of its own uses none of it, and importing it takes
longer than the search.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


class LazyModule:
    """Stands in for a module; every name that was used once is found without a detour from then on."""

    def __init__(self, name: str) -> None:
        self.__name = name

    def __getattr__(self, name: str) -> Any:
        value = getattr(import_module(self.__name), name)
        setattr(self, name, value)
        return value
