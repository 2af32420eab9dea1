"""Where hooks may be sent by HTTP: `run/hooks.json`, written by the producers, read by status."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from memory.local_processes import is_alive

#: Relative to the home folder. One object: {url, pid}.
HOOKS_STATE_PATH = Path("run") / "hooks.json"


def write_hooks_state(home: Path, url: str) -> None:
    """Say where this process takes hooks; `url` ends where the program's name belongs.

    Raises:
        OSError: the home folder cannot be written.
    """
    path = home / HOOKS_STATE_PATH
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(json.dumps({"url": url, "pid": os.getpid()}), encoding="utf-8")
    draft.replace(path)


def read_hooks_state(home: Path) -> str | None:
    """Where hooks may be sent; None when nobody takes them."""
    state = _read(home)
    url = state.get("url")
    return url if isinstance(url, str) and is_alive(state.get("pid")) else None


def remove_hooks_state(home: Path) -> None:
    """Say that this process takes no hooks any more."""
    if _read(home).get("pid") == os.getpid():
        with contextlib.suppress(OSError):
            (home / HOOKS_STATE_PATH).unlink()


def _read(home: Path) -> dict[str, object]:
    try:
        state = json.loads((home / HOOKS_STATE_PATH).read_bytes())
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}
