"""Check of a request's Host, Origin and declared size, before any application sees it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from urllib.parse import urlsplit

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from memory.http.loopback import is_loopback

#: Headers of every answer that does not set them: no cache keeps a memory, no browser guesses a type.
ANSWER_HEADERS = {"x-content-type-options": "nosniff", "cache-control": "no-store"}

_RAW_ANSWER_HEADERS = [(name.encode(), value.encode()) for name, value in ANSWER_HEADERS.items()]

#: Bytes of a request's body at most.
MAX_BODY_BYTES = 1024 * 1024

TOO_LARGE = f"the request is larger than {MAX_BODY_BYTES} bytes"


#: Headers of a request that are checked.
_CHECKED = (b"host", b"origin", b"sec-fetch-mode", b"sec-fetch-site", b"content-encoding", b"content-length")


class OriginGuard:
    """ASGI middleware that refuses requests that a web page of another site could send.

    A page can make a browser send requests to this machine under the page's own name (DNS rebinding) or across sites.
    A service whose `host` is on loopback answers to loopback names only. An `Origin` must be the service itself. A link
    on another site leads to `pages` only. Every answer gets `ANSWER_HEADERS`.

    `is_owner` tells the owner's tokens in an Authorization header, which open all memories: they are accepted from
    clients on this machine only. For a proxy on this machine, uvicorn names the client that the proxy forwards for.

    Starlette's `TrustedHostMiddleware` and the MCP SDK compare with a list of names; loopback is a range of addresses.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        host: str,
        pages: Collection[str] = (),
        is_owner: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._app = app
        self._loopback_only = is_loopback(host)
        self._pages = pages
        self._is_owner = is_owner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request and hand it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", ()))
                present = {name for name, _ in headers}
                message["headers"] = headers + [header for header in _RAW_ANSWER_HEADERS if header[0] not in present]
            await send(message)

        refusal = self._refusal(scope)
        if refusal is None:
            await self._app(scope, receive, answer)
        else:
            status, sentence = refusal
            await JSONResponse({"error": sentence}, status)(scope, receive, answer)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers: dict[bytes, list[str]] = {name: [] for name in _CHECKED}
        for name, value in scope["headers"]:
            if name in headers:
                headers[name].append(value.decode("latin-1"))
        hosts, origins, modes, sites, codings, lengths = headers.values()
        if len(hosts) != 1:
            return 400, "exactly one Host header is needed"
        host = _authority(hosts[0])
        if host is None or (self._loopback_only and not is_loopback(host[0])):
            return 403, "this service answers to loopback names only (127.0.0.1, localhost, [::1])"
        if any(_origin(origin) != host for origin in origins):
            return 403, "requests from other origins are refused"
        is_navigation = scope["method"] == "GET" and modes == ["navigate"] and scope["path"] in self._pages
        if "cross-site" in sites and not is_navigation:
            return 403, "requests from other sites are refused"
        if any(coding.strip().lower() != "identity" for coding in codings):
            return 415, "send the request's body as it is, without Content-Encoding"
        if any(not length.isdecimal() or int(length) > MAX_BODY_BYTES for length in lengths):
            return 413, TOO_LARGE
        authorizations = [value.decode("latin-1") for name, value in scope["headers"] if name == b"authorization"]
        if not _is_here(scope) and any(map(self._is_owner, authorizations)):
            return 403, "the owner's token opens memory from its own machine only; send an agent's token"
        return None


def _is_here(scope: Scope) -> bool:
    """Return True if the client of a request is on this machine: on loopback, or at the address that it called."""
    client, server = scope.get("client"), scope.get("server")
    return client is None or is_loopback(client[0]) or (server is not None and client[0] == server[0])


def _authority(text: str) -> tuple[str, int | None] | None:
    """Return host and port of a Host header, None when it is malformed."""
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    plain = parts.username is None and not (parts.path or parts.query or parts.fragment)
    return (host, port) if host and plain else None


def _origin(text: str) -> tuple[str, int | None] | None:
    """Return host and port of an Origin header; None for `null` and every scheme but http."""
    scheme, _, authority = text.partition("://")
    return _authority(authority) if scheme in {"http", "https"} else None
