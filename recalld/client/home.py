"""Files by which a home's service is found and asked: its entry, and the agents' tokens."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple

from .address import is_plain

#: Relative to the home folder: the entry of the service that runs for it.
SERVICE_FILE = Path("run") / "service.json"


class RunningService(NamedTuple):
    """Entry of a home's service: where it is called, its process, and the secret by which it proves itself.

    A service of an earlier version has no secret.
    """

    host: str
    port: int
    pid: int
    secret: str | None = None


def running_service(home: Path) -> RunningService | None:
    """Return the entry of this home's service, None where there is none or its process is gone.

    A service that was killed leaves its entry behind; its process id and its port may be another program's by now.
    """
    try:
        entry = json.loads((home / SERVICE_FILE).read_bytes())
        host, port, pid, secret = entry["host"], entry["port"], entry["pid"], entry.get("secret")
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return None
    if not (isinstance(host, str) and is_plain(host) and type(port) is int and 0 < port < 65536 and _alive(pid)):
        return None
    return RunningService(_reachable(host), port, pid, secret if isinstance(secret, str) and secret else None)


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
        token = (home / "run" / "tokens" / name).read_text("utf-8").strip()
    except (OSError, ValueError):
        return None
    return token if is_plain(token) else None


def _reachable(host: str) -> str:
    """Where to call a service that listens everywhere."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - not bound to


def _alive(pid: object) -> bool:
    if type(pid) is not int or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True  # somebody else's process
    return True
