"""Where a service is."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

from .errors import InvalidSettings

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 7373

_PORTS = {"http": 80, "https": 443}


class Address(NamedTuple):
    """A service's address. `prefix` comes before every path, for a service behind a proxy; no slash ends it."""

    host: str
    port: int
    secure: bool = False
    prefix: str = ""

    @property
    def authority(self) -> str:
        """Host and port as in a URL and in a Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The address as a URL."""
        return f"{'https' if self.secure else 'http'}://{self.authority}{self.prefix}"


def address_of(url: str) -> Address:
    """Read a URL such as `http://127.0.0.1:7373` or `https://memory.example.com/recalld`.

    Raises:
        InvalidSettings: it is no such URL.
    """
    wanted = f"the service's address must look like http://{DEFAULT_HOST}:{DEFAULT_PORT} or https://host/path"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise InvalidSettings(wanted) from None
    if parts.username is not None or parts.password is not None:
        raise InvalidSettings("leave the password out of the address: the agent's token is passed as token=")
    if parts.scheme not in _PORTS or not host or parts.query or parts.fragment or not is_plain(url):
        raise InvalidSettings(wanted)
    return Address(host, port or _PORTS[parts.scheme], parts.scheme == "https", parts.path.rstrip("/"))


def header_value(name: str, value: str) -> str:
    """A value that can be sent in a header as it is, without what surrounds it.

    Raises:
        InvalidSettings: it would break the header; the message does not show it.
    """
    value = value.strip()
    if not is_plain(value):
        raise InvalidSettings(f"{name} must be a text of visible ASCII characters, or left out")
    return value


def is_plain(text: str) -> bool:
    """Return True if the text is made of visible ASCII characters, at least one."""
    return bool(text) and all("!" <= character <= "~" for character in text)
