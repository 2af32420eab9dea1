"""Tokens of agents and of their owner, and which agent's memory a request may open.

Each agent has one token. It opens that agent's memory and no other. The owner's token opens the memory of all agents,
and so does a session, which the page gets for a one-time link.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from memory.http.loopback import is_loopback
from memory.http.private_folders import check_private
from memory.http.whole_files import create_whole, write_whole
from schemas.errors import UserError
from schemas.settings import Settings
from schemas.validation_messages import shown_name

#: Relative to the home folder: one file per agent, mode 0600, in a folder of mode 0700.
TOKENS_PATH = Path("run") / "tokens"

#: Relative to the home folder: opens `/metrics` with the numbers of all agents, and nothing else.
METRICS_TOKEN_PATH = Path("run") / "metrics-token"

#: Relative to the home folder: the owner's token, mode 0600. A user who can read it is the owner of the home.
OWNER_TOKEN_PATH = Path("run") / "owner-token"

#: Seconds for which a link of `recalld open` can be used, and for which the page's session lasts.
LINK_SECONDS, SESSION_SECONDS = 60, 30 * 86_400

_TOKEN_BYTES = 32


def needs_tokens(settings: Settings, *, host: str) -> bool:
    """Return True if clients of a service that listens on `host` must send an agent's token.

    Beyond loopback always; on loopback with several agents, unless `auth.trust_loopback`.
    """
    if not is_loopback(host):
        return True
    return len(settings.agents) > 1 and not settings.auth.trust_loopback


def check_tokens(settings: Settings, *, host: str, key: str) -> None:
    """Make the missing tokens on loopback; beyond it the operator must have made them. A fleet has its own.

    Raises:
        UserError: they cannot be written, are missing or could be another user's; `key` is the setting that names the
            host.
    """
    if settings.store.url is not None or not needs_tokens(settings, host=host):
        return
    ids = [agent.id for agent in settings.agents]
    check_private(settings.home / TOKENS_PATH, home=settings.home)
    if is_loopback(host):
        try:
            ensure_tokens(settings.home, ids)
            _ensure(settings.home / METRICS_TOKEN_PATH)
        except OSError as error:
            raise UserError(f"the agents' tokens cannot be written below {settings.home}: {error.strerror}") from error
        return
    missing = [agent for agent in ids if agent not in read_tokens(settings.home, ids)]
    if missing or not ids:
        raise UserError(
            f"refusing to listen on {host} without tokens: "
            f"put one for {', '.join(missing) or 'an agent'} into {settings.home / 'run' / 'tokens'}/<agent> "
            f"(mode 0600), or use {key} = 127.0.0.1"
        )


class AccessDenied(Exception):
    """Refusal of a request. `status` is the HTTP status, the message one sentence."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Authorizer:
    """Decision which agent's memory a request may open.

    `tokens` is None when none is needed: one agent, or a trusted loopback; otherwise agent id -> token.
    `metrics_token` is that of metrics collectors, None when there is none. `owner_token` is None where the owner has no
    more rights than other clients. `clock` returns Unix time.
    """

    agents: tuple[str, ...]
    tokens: Mapping[str, str] | None
    metrics_token: str | None = None
    owner_token: str | None = None
    clock: Callable[[], float] = time.time

    @classmethod
    def of(cls, settings: Settings, *, host: str) -> Authorizer:
        """Return the authorizer of a service that listens on `host`, with the tokens that exist."""
        ids, owner_token = tuple(agent.id for agent in settings.agents), _read(settings.home / OWNER_TOKEN_PATH)
        if not needs_tokens(settings, host=host):
            return cls(ids, None, owner_token=owner_token)
        metrics_token = _read(settings.home / METRICS_TOKEN_PATH)
        return cls(ids, read_tokens(settings.home, ids), metrics_token, owner_token)

    def is_owner(self, authorization: str | None) -> bool:
        """Return True if the owner's token, or a session that has not expired, came with the request."""
        token = bearer(authorization)
        until = token.removeprefix("session.").partition(".")[0]
        if len(until) < _TOKEN_BYTES and until.isdecimal() and int(until) > self.clock():
            return self.owner_token is not None and _is_equal(token, self._session(int(until)))
        return self.has_owner_token(authorization)

    def has_owner_token(self, authorization: str | None) -> bool:
        """Return True if the owner's token itself came with the request."""
        return self.owner_token is not None and _is_equal(bearer(authorization), self.owner_token)

    def new_session(self) -> str:
        """Return a token that opens as much as the owner's for `SESSION_SECONDS`. A new owner's token ends it."""
        return self._session(int(self.clock()) + SESSION_SECONDS)

    def _session(self, until: int) -> str:
        """Return the session that ends at a Unix time: no service has to remember it, and it survives a restart."""
        return (
            f"session.{until}.{hmac.new((self.owner_token or '').encode(), f'{until}'.encode(), 'sha256').hexdigest()}"
        )

    def agent_or_all(self, authorization: str | None, requested: str | None) -> str | None:
        """Return the agent whose memory this request may open; None for all agents, if the owner names none of several.

        Raises:
            AccessDenied: as `agent`.
        """
        if requested is None and len(self.agents) > 1 and self.is_owner(authorization):
            return None
        return self.agent(authorization, requested)

    def agent(self, authorization: str | None, requested: str | None) -> str:
        """Return the agent whose memory this request may open.

        Raises:
            AccessDenied: no token, a wrong token, another agent's token, or no agent named among several.
        """
        if self.tokens is not None and not self.is_owner(authorization):
            agent = self.token_agent(authorization)
            if requested is not None and requested != agent:
                raise AccessDenied(403, "this token does not open the memory of that agent")
            return agent
        if requested is None:
            if len(self.agents) == 1:
                return self.agents[0]
            raise AccessDenied(400, f"say which agent: {self._agent_names}")
        if requested not in self.agents:
            raise AccessDenied(404, f"no agent is called {shown_name(requested)!r} (known: {self._agent_names})")
        return requested

    def visible(self, authorization: str | None, requested: str | None = None, *, after: str = "") -> tuple[str, ...]:  # noqa: ARG002 - a fleet's
        """Return the agents that this request may see: all, or only the agent it names. Raises AccessDenied."""
        if requested is not None:
            return (self.agent(authorization, requested),)
        if self.tokens is None or self.is_owner(authorization):
            return self.agents
        return (self.token_agent(authorization),)

    def measurable(self, authorization: str | None) -> tuple[str, ...]:
        """Return the agents whose numbers this request may see: all with the metrics token. Raises AccessDenied."""
        if self.metrics_token is not None and _is_equal(bearer(authorization), self.metrics_token):
            return self.agents
        return self.visible(authorization)

    def token_agent(self, authorization: str | None) -> str:
        """Return the agent whose token came with the request. Raises AccessDenied."""
        token = bearer(authorization)
        if not token:
            raise AccessDenied(
                401,
                "a token is needed: send Authorization: Bearer with the content of <home>/run/tokens/<agent>, or let "
                "`recalld connect PROGRAM` connect a program on this machine without one",
            )
        agent = agent_of(token, self.tokens or {})
        if agent is None:
            raise AccessDenied(401, "this token is not known here")
        return agent

    @property
    def _agent_names(self) -> str:
        return ", ".join(self.agents) or "none"


class OneTimeLinks:
    """Tokens of links to the page, each good once and for `LINK_SECONDS`. A restart of the service forgets them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._expiries: dict[str, float] = {}

    def make(self) -> str:
        """Return the token of a new link."""
        now = self._clock()
        self._expiries = {link: expiry for link, expiry in self._expiries.items() if expiry > now}
        link = secrets.token_urlsafe(_TOKEN_BYTES)
        self._expiries[link] = now + LINK_SECONDS
        return link

    def use(self, link: str) -> None:
        """Use up a link. Raises AccessDenied: it is unknown, used or too old."""
        if self._expiries.pop(link, 0.0) <= self._clock():
            raise AccessDenied(401, "this link was used already, or is older than a minute: run `recalld open` again")


def ensure_tokens(home: Path, agents: Iterable[str]) -> dict[str, str]:
    """Return every agent's token, making those that are missing. Raises OSError if that is not possible."""
    return {agent: _ensure(home / TOKENS_PATH / agent) for agent in agents}


def ensure_owner_token(home: Path) -> str | None:
    """Return the owner's token, made if there is none; None if it cannot be written, as in a read-only home."""
    with suppress(OSError):
        return _ensure(home / OWNER_TOKEN_PATH)
    return None


def read_tokens(home: Path, agents: Iterable[str]) -> dict[str, str]:
    """Return the tokens that exist."""
    folder = home / TOKENS_PATH
    tokens = {agent: _read(folder / agent) for agent in agents}
    return {agent: token for agent, token in tokens.items() if token is not None}


def agent_of(token: str, tokens: Mapping[str, str]) -> str | None:
    """Return the agent whose token this is, compared in constant time; None when it is no agent's."""
    token_agent = None
    for agent, expected in tokens.items():
        if _is_equal(token, expected):
            token_agent = agent
    return token_agent


def _is_equal(token: str, expected: str) -> bool:
    return hmac.compare_digest(expected.encode(), token.encode())


def bearer(authorization: str | None) -> str:
    """Return the token of an Authorization header, "" without one."""
    scheme, _, token = (authorization or "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip() or None
    except (OSError, ValueError):
        return None


def _ensure(path: Path) -> str:
    """Return a token, made if there is none; if another process is faster, its token is the one."""
    if (expected := _read(path)) is not None:
        return expected
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    content = f"{token}\n".encode()
    if not create_whole(path, content) and _read(path) is None:
        write_whole(path, content)  # a file without a token is not being written: it is damaged
    return _read(path) or token
