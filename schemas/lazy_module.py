"""Lazy import of a module on its first use.

It serves numpy: a search by keywords does not use numpy, and importing it takes longer than the search.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


class LazyModule:
    """Stand-in for a module. A name is resolved once, on its first use."""

    def __init__(self, name: str) -> None:
        self.__name = name

    def __getattr__(self, name: str) -> Any:
        value = getattr(import_module(self.__name), name)
        setattr(self, name, value)
        return value
