"""What is checked before any request is looked at: Host, Origin, size. And who is asking."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from memory.service.tokens import agent_of
from schemas.settings import Settings
from schemas.validation_messages import shown_name

#: Headers of every answer that does not say otherwise: no cache keeps a memory, no browser guesses a type.
ANSWER_HEADERS = {"x-content-type-options": "nosniff", "cache-control": "no-store"}

#: Bytes of a request's body at most.
MAX_BODY_BYTES = 1024 * 1024


def is_loopback(host: str) -> bool:
    """Whether a name or address means this machine only."""
    name = host.strip("[]").rstrip(".").lower()
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def needs_tokens(settings: Settings, *, host: str) -> bool:
    """Whether callers of a service that listens on `host` must show an agent's token.

    Beyond loopback always; on loopback with several agents, unless `auth.trust_loopback`.
    """
    if not is_loopback(host):
        return True
    return len(settings.agents) > 1 and not settings.auth.trust_loopback


class AccessDenied(Exception):
    """Who asks may not. `status` is the HTTP status, the message one sentence."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Gatekeeper:
    """Decides which agent's memory a request is about.

    `tokens` is None when none is needed: one agent, or a trusted loopback; otherwise agent id -> token.
    `metrics_token` is that of those who collect metrics, None when there is none.
    """

    agents: tuple[str, ...]
    tokens: Mapping[str, str] | None
    metrics_token: str | None = None

    def agent(self, authorization: str | None, asked: str | None) -> str:
        """The agent that this request may ask for.

        Raises:
            AccessDenied: no token, a wrong one, another agent's, or no agent named where one must be.
        """
        if self.tokens is not None:
            owner = self.owner(authorization)
            if asked is not None and asked != owner:
                raise AccessDenied(403, "this token does not open the memory of that agent")
            return owner
        if asked is None:
            if len(self.agents) == 1:
                return self.agents[0]
            raise AccessDenied(400, f"say which agent: {_known(self.agents)}")
        if asked not in self.agents:
            raise AccessDenied(404, f"no agent is called {shown_name(asked)!r} (known: {_known(self.agents)})")
        return asked

    def visible(self, authorization: str | None) -> tuple[str, ...]:
        """All agents that this request may see.

        Raises:
            AccessDenied: a token is needed and missing or wrong.
        """
        return self.agents if self.tokens is None else (self.owner(authorization),)

    def measurable(self, authorization: str | None) -> tuple[str, ...]:
        """All agents whose numbers this request may see: everybody's with the token for metrics.

        Raises:
            AccessDenied: a token is needed and missing or wrong.
        """
        collector = {"": self.metrics_token} if self.metrics_token is not None else {}
        if self.tokens is not None and agent_of(_bearer(authorization), collector) is not None:
            return self.agents
        return self.visible(authorization)

    def owner(self, authorization: str | None) -> str:
        """Whose token came with the request.

        Raises:
            AccessDenied: none, or nobody's.
        """
        token = _bearer(authorization)
        if not token:
            raise AccessDenied(
                401, "a token is needed: send Authorization: Bearer with the content of <home>/run/tokens/<agent>"
            )
        owner = agent_of(token, self.tokens or {})
        if owner is None:
            raise AccessDenied(401, "this token is not known here")
        return owner


class Doorkeeper:
    """ASGI middleware that refuses what a web page of another site could send.

    A page can make a browser ask this machine, under its own name (DNS rebinding) or across sites. On
    loopback only loopback names are served, so a rebound name is refused; an `Origin` must be this
    very service. A link on another site leads to `pages` only. Bodies above 1 MB are refused as soon as that is known.
    Every answer gets `ANSWER_HEADERS`.
    """

    def __init__(self, app: ASGIApp, *, loopback_only: bool, pages: Collection[str] = ()) -> None:
        self._app = app
        self._loopback_only = loopback_only
        self._pages = pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check, then hand on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = _headers(scope)
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await _refuse(send, *refusal)
            return
        too_large = False
        received = 0

        async def limited() -> Message:
            nonlocal received, too_large
            message = await receive()
            received += len(message.get("body", b""))
            if received > MAX_BODY_BYTES:
                too_large = True
                return {"type": "http.request", "body": b"", "more_body": False}
            return message

        async def answer(message: Message) -> None:
            if not too_large:
                await send(_with_answer_headers(message))

        await self._app(scope, limited, answer)
        if too_large:
            await _refuse(send, 413, f"the request is larger than {MAX_BODY_BYTES} bytes")

    def _refusal(self, scope: Scope, headers: Mapping[bytes, list[bytes]]) -> tuple[int, str] | None:
        hosts = headers.get(b"host", [])
        if len(hosts) != 1:
            return 400, "exactly one Host header is needed"
        host = _authority(hosts[0].decode("latin-1"))
        if host is None or (self._loopback_only and not is_loopback(host[0])):
            return 403, "this service answers to loopback names only (127.0.0.1, localhost, [::1])"
        origins = headers.get(b"origin", [])
        if origins and any(_origin(origin.decode("latin-1")) != host for origin in origins):
            return 403, "requests from other origins are refused"
        followed = scope["method"] == "GET" and headers.get(b"sec-fetch-mode") == [b"navigate"]
        if b"cross-site" in headers.get(b"sec-fetch-site", []) and not (followed and scope["path"] in self._pages):
            return 403, "requests from other sites are refused"
        if any(coding.strip().lower() != b"identity" for coding in headers.get(b"content-encoding", [])):
            return 415, "send the request's body as it is, without Content-Encoding"
        length = headers.get(b"content-length", [b"0"])[0]
        if not length.isdigit() or int(length) > MAX_BODY_BYTES:
            return 413, f"the request is larger than {MAX_BODY_BYTES} bytes"
        return None


def _bearer(authorization: str | None) -> str:
    """The token that came with a request, "" without one."""
    scheme, _, token = (authorization or "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _known(agents: tuple[str, ...]) -> str:
    return ", ".join(agents) or "none"


def _headers(scope: Scope) -> dict[bytes, list[bytes]]:
    headers: dict[bytes, list[bytes]] = {}
    for name, value in scope["headers"]:
        headers.setdefault(name.lower(), []).append(value)
    return headers


def _authority(text: str) -> tuple[str, int | None] | None:
    """Host and port of a Host header, None when it is malformed."""
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    plain = parts.username is None and not (parts.path or parts.query or parts.fragment)
    return (host, port) if host and plain else None


def _origin(text: str) -> tuple[str, int | None] | None:
    """Host and port of an Origin header; None for `null` and everything that is not http."""
    scheme, _, authority = text.partition("://")
    return _authority(authority) if scheme in {"http", "https"} else None


def _with_answer_headers(message: Message) -> Message:
    if message["type"] != "http.response.start":
        return message
    headers = list(message.get("headers", ()))
    named = {name.lower() for name, _ in headers}
    more = [(name.encode(), value.encode()) for name, value in ANSWER_HEADERS.items() if name.encode() not in named]
    return {**message, "headers": [*headers, *more]}


async def _refuse(send: Send, status: int, message: str) -> None:
    body = json.dumps({"error": message}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send(_with_answer_headers({"type": "http.response.start", "status": status, "headers": headers}))
    await send({"type": "http.response.body", "body": body})
