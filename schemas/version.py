"""Which recalld this is."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def recalld_version() -> str:
    """The installed version; "unknown" when run from a checkout that is not installed."""
    try:
        return version("recalld")
    except PackageNotFoundError:
        return "unknown"
