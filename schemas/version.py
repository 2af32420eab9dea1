"""Version of recalld."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def recalld_version() -> str:
    """Return the installed version; "unknown" in a checkout that is not installed."""
    try:
        return version("recalld")
    except PackageNotFoundError:
        return "unknown"
