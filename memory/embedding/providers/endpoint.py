"""What makes an endpoint the same endpoint, without anything secret."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import platform
import re
from collections.abc import Mapping
from urllib.parse import urlsplit, urlunsplit

#: Header names that hold secrets; neither an identity nor a message shows their values.
_SECRET_HEADER = re.compile(r"auth|api-?key|token|secret|cookie|password|signature|credential", re.IGNORECASE)

_DEFAULT_PORTS = {"http": 80, "https": 443}


def normalised_url(base_url: str) -> str:
    """Scheme, host, port and path in one spelling; user, query and fragment, which may be secret, left out."""
    parts = urlsplit(base_url.strip())
    scheme = parts.scheme.lower()
    host = (parts.hostname or "").lower()
    if ":" in host:
        host = f"[{host}]"
    if parts.port is not None and parts.port != _DEFAULT_PORTS.get(scheme):
        host = f"{host}:{parts.port}"
    return urlunsplit((scheme, host, parts.path.rstrip("/"), "", ""))


def is_secret_header(name: str) -> bool:
    """Whether a header's value must not be shown."""
    return _SECRET_HEADER.search(name) is not None


def identity_of(
    *,
    provider: str,
    model: str,
    base_url: str,
    dimensions: int | None = None,
    query_input_type: str | None = None,
    document_input_type: str | None = None,
    query_prefix: str = "",
    document_prefix: str = "",
    headers: Mapping[str, str] | None = None,
) -> str:
    """Everything that decides what numbers come back, as sorted JSON. A key is not part of it."""
    facts: dict[str, object] = {
        "base_url": normalised_url(base_url),
        "dimensions": dimensions,
        "document_input_type": document_input_type,
        "document_prefix": document_prefix or None,
        "headers": {k.lower(): v for k, v in (headers or {}).items() if not is_secret_header(k)} or None,
        "model": model,
        "provider": provider,
        "query_input_type": query_input_type,
        "query_prefix": query_prefix or None,
    }
    shown = {key: value for key, value in facts.items() if value is not None}
    return json.dumps(shown, sort_keys=True, ensure_ascii=True, separators=(",", ":"))


def account_of(*, base_url: str, api_key: str | None, headers: Mapping[str, str] | None = None) -> str:
    """Whose limits the requests count against: a digest of address, key and secret headers; it gives none away.

    The same in every process. An address on this machine is another server on every machine, so its account
    holds the machine's name.
    """
    parts = urlsplit(base_url.strip())
    facts = [
        normalised_url(base_url),
        platform.node() if _is_loopback(parts.hostname or "") else None,
        [parts.username, parts.password, parts.query],
        api_key,
        sorted([name.lower(), value] for name, value in (headers or {}).items() if is_secret_header(name)),
    ]
    return hashlib.blake2b(json.dumps(facts).encode(), digest_size=16, person=b"recalld account").hexdigest()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
