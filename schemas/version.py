"""Version of recalld, and the way it is installed."""

from __future__ import annotations

import shlex
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path


@cache
def recalld_version() -> str:
    """Return the installed version; "unknown" in a checkout that is not installed."""
    from importlib.metadata import PackageNotFoundError, version  # slow to import

    try:
        return version("recalld")
    except PackageNotFoundError:
        return "unknown"


def install_command(extra: str, *, environment: str = sys.prefix) -> str:
    """Return the command that adds an extra's packages to the environment of this Python, as a person types it."""
    package = f'"recalld[{extra}]"'
    if Path(environment, "pipx_metadata.json").exists():
        return f"pipx inject recalld {package}"
    if Path(environment, "uv-receipt.toml").exists():
        return f"uv tool install {package}"
    python = shlex.quote(sys.executable)
    # Environments that uv makes have no pip.
    return f"{python} -m pip install {package}" if find_spec("pip") else f"uv pip install --python {python} {package}"
