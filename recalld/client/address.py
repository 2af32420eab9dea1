"""Address of a service: given as a URL, or written in a home folder beside the tokens of its agents."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from .errors import InvalidSettings

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 7373

#: Relative to the home folder: the entry of the service that runs for it.
SERVICE_FILE = Path("run") / "service.json"

#: Relative to the home folder: the token of the home's owner, which opens the memory of every agent.
OWNER_TOKEN_FILE = Path("run") / "owner-token"

_PORTS = {"http": 80, "https": 443}


class Address(NamedTuple):
    """Address of a service. `prefix` comes before every path, for a service behind a proxy; no slash ends it."""

    host: str
    port: int
    secure: bool = False
    prefix: str = ""

    @property
    def authority(self) -> str:
        """Host and port as in a URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The address as a URL."""
        return f"{'https' if self.secure else 'http'}://{self.authority}{self.prefix}"


def address_of(url: str) -> Address:
    """Read a URL such as `http://127.0.0.1:7373` or `https://memory.example.com/recalld`.

    Raises:
        InvalidSettings: the text is no such URL.
    """
    rule = f"the service's address must look like http://{DEFAULT_HOST}:{DEFAULT_PORT} or https://host/path"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise InvalidSettings(rule) from None
    if parts.username is not None or parts.password is not None:
        raise InvalidSettings("leave the password out of the address: the agent's token is passed as token=")
    if parts.scheme not in _PORTS or not host or parts.query or parts.fragment or not is_plain(url):
        raise InvalidSettings(rule)
    return Address(host, port or _PORTS[parts.scheme], parts.scheme == "https", parts.path.rstrip("/"))


def header_value(name: str, value: str) -> str:
    """Return the value without surrounding space, ready to be sent in a header.

    Raises:
        InvalidSettings: the value would break the header; the message does not show it.
    """
    value = value.strip()
    if not is_plain(value):
        raise InvalidSettings(f"{name} must be a text of visible ASCII characters, or left out")
    return value


def is_plain(text: str) -> bool:
    """Return True if the text is made of visible ASCII characters, at least one."""
    return bool(text) and all("!" <= character <= "~" for character in text)


class RunningService(NamedTuple):
    """Entry of a home's service: its address, its process, and the secret by which it proves itself."""

    host: str
    port: int
    pid: int
    secret: str


def running_service(home: Path) -> RunningService | None:
    """Return the entry of this home's service, None without an entry, without its process or by another user.

    A killed service leaves its entry behind; another program may have its process id and port by now.
    """
    try:
        with (home / SERVICE_FILE).open("rb") as file:
            if os.fstat(file.fileno()).st_uid not in {0, os.geteuid(), home.stat().st_uid}:
                return None
            entry = json.load(file)
        host, port, pid, secret = entry["host"], entry["port"], entry["pid"], entry["secret"]
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return None
    if not (isinstance(host, str) and is_plain(host) and type(port) is int and 0 < port < 65536 and _alive(pid)):
        return None
    if not isinstance(secret, str) or not secret:
        return None
    # A service that listens on all addresses is called on loopback.
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - not bound to
    return RunningService(host, port, pid, secret)


def agents_with_tokens(home: Path) -> list[str]:
    """Return the agents whose tokens this user may read, sorted by name; empty if no tokens are needed."""
    try:
        return sorted(entry.name for entry in (home / "run" / "tokens").iterdir() if not entry.name.startswith("."))
    except OSError:
        return []


def token_of(home: Path, agent: str | None) -> str | None:
    """Return the agent's token, without an agent the only token; None if there is none or several."""
    agents = agents_with_tokens(home)
    # Only names from the folder's own list: what a caller passes is never made a path.
    name = agent if agent is not None else agents[0] if len(agents) == 1 else None
    if name not in agents or name is None:
        return None
    return _token_in(home / "run" / "tokens" / name)


def owner_token_of(home: Path) -> str | None:
    """Return the owner's token of a home, None if there is none or this user may not read it."""
    return _token_in(home / OWNER_TOKEN_FILE)


def _token_in(file: Path) -> str | None:
    try:
        token = file.read_text("utf-8").strip()
    except (OSError, ValueError):
        return None
    return token if is_plain(token) else None


def _alive(pid: object) -> bool:
    if type(pid) is not int or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True  # another user's process
    return True
