"""Names and addresses of this machine alone. Imports nothing heavy: commands ask before they need a server."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Return True if a name or address means this machine only."""
    name = host.strip("[]").rstrip(".").lower()
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
