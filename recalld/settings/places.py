"""Home folder and settings file of a call, by name.

An agent's program waits for this module at every hook (`recalld.hooks.entry`): it imports nothing but `os`.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # `typing` is not imported
if TYPE_CHECKING:
    from collections.abc import Mapping


def home_folder(home: str | None, environment: Mapping[str, str]) -> str:
    """Return the folder that recalld writes to: --home, else RECALLD_HOME, else recalld in the XDG data folder."""
    chosen = home or environment.get("RECALLD_HOME")
    if chosen:
        return absolute(chosen)
    return absolute(os.path.join(environment.get("XDG_DATA_HOME") or "~/.local/share", "recalld"))


def named_config(config: str | None, environment: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the name of the option or variable with a settings file, and the file's path; None without either."""
    for name, value in (("--config", config), ("RECALLD_CONFIG", environment.get("RECALLD_CONFIG"))):
        if value:
            return name, absolute(value)
    return None


def absolute(path: str) -> str:
    """Expand `~` and make a path absolute by name: a symbolic link in it is not followed."""
    return os.path.abspath(os.path.expanduser(path))
