"""What a running service leaves in its home folder: where it listens, and the agents' tokens."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple


class RunningService(NamedTuple):
    """Where a home's service can be called, and its process."""

    host: str
    port: int
    pid: int


def running_service(home: Path) -> RunningService | None:
    """The service that runs for this home folder, None when none says that it does."""
    try:
        service = json.loads((home / "run" / "service.json").read_text("utf-8"))
        host, port, pid = str(service["host"]), int(service["port"]), int(service["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    # A killed service leaves its file behind, and by now its port may be somebody else's.
    return RunningService(_reachable(host), port, pid) if _alive(pid) else None


def agents_with_tokens(home: Path) -> list[str]:
    """The agents whose tokens this user may read, in the order of their names; empty where no tokens are needed."""
    try:
        return sorted(entry.name for entry in (home / "run" / "tokens").iterdir() if not entry.name.startswith("."))
    except OSError:
        return []


def token_of(home: Path, agent: str | None) -> str | None:
    """The agent's token, or the only one that there is; None when it cannot be told or read."""
    known = agents_with_tokens(home)
    # Only names from the folder's own list: what a caller passes is never made a path.
    name = agent if agent is not None else known[0] if len(known) == 1 else None
    if name not in known or name is None:
        return None
    try:
        return (home / "run" / "tokens" / name).read_text("utf-8").strip() or None
    except OSError:
        return None


def _reachable(host: str) -> str:
    """Where to call a service that listens everywhere."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)  # noqa: S104 - not bound to


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # somebody else's process
    return True
