"""Tokens of agents, and which agent's memory a request may open.

Each agent has one token. It opens that agent's memory and no other.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from memory.http.origin_guard import is_loopback
from memory.http.private_folders import check_private
from memory.http.whole_files import create_whole, write_whole
from schemas.errors import UserError
from schemas.settings import Settings
from schemas.validation_messages import shown_name

#: Relative to the home folder: one file per agent, mode 0600, in a folder of mode 0700.
TOKENS_PATH = Path("run") / "tokens"

#: Relative to the home folder: opens `/metrics` with the numbers of all agents, and nothing else.
METRICS_TOKEN_PATH = Path("run") / "metrics-token"

_TOKEN_BYTES = 32


def needs_tokens(settings: Settings, *, host: str) -> bool:
    """Return True if clients of a service that listens on `host` must send an agent's token.

    Beyond loopback always; on loopback with several agents, unless `auth.trust_loopback`.
    """
    if not is_loopback(host):
        return True
    return len(settings.agents) > 1 and not settings.auth.trust_loopback


def check_tokens(settings: Settings, *, host: str, key: str) -> None:
    """Make the missing tokens on loopback; beyond it the operator must have made them. Nothing if none is needed.

    Raises:
        UserError: they cannot be written, are missing or could be another user's; `key` is the setting that names the
            host.
    """
    if not needs_tokens(settings, host=host):
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
    `metrics_token` is that of metrics collectors, None when there is none.
    """

    agents: tuple[str, ...]
    tokens: Mapping[str, str] | None
    metrics_token: str | None = None

    @classmethod
    def of(cls, settings: Settings, *, host: str) -> Authorizer:
        """Return the authorizer of a service that listens on `host`, with the tokens that exist."""
        ids = tuple(agent.id for agent in settings.agents)
        if not needs_tokens(settings, host=host):
            return cls(ids, None)
        return cls(ids, read_tokens(settings.home, ids), _read(settings.home / METRICS_TOKEN_PATH))

    def agent(self, authorization: str | None, requested: str | None) -> str:
        """Return the agent whose memory this request may open.

        Raises:
            AccessDenied: no token, a wrong token, another agent's token, or no agent named among several.
        """
        if self.tokens is not None:
            owner = self.owner(authorization)
            if requested is not None and requested != owner:
                raise AccessDenied(403, "this token does not open the memory of that agent")
            return owner
        if requested is None:
            if len(self.agents) == 1:
                return self.agents[0]
            raise AccessDenied(400, f"say which agent: {self._agent_names}")
        if requested not in self.agents:
            raise AccessDenied(404, f"no agent is called {shown_name(requested)!r} (known: {self._agent_names})")
        return requested

    def visible(self, authorization: str | None, requested: str | None = None) -> tuple[str, ...]:
        """Return the agents that this request may see: all, or only the agent it names. Raises AccessDenied."""
        if requested is not None:
            return (self.agent(authorization, requested),)
        return self.agents if self.tokens is None else (self.owner(authorization),)

    def measurable(self, authorization: str | None) -> tuple[str, ...]:
        """Return the agents whose numbers this request may see: all with the metrics token. Raises AccessDenied."""
        if self.metrics_token is not None and agent_of(_bearer(authorization), {"": self.metrics_token}) is not None:
            return self.agents
        return self.visible(authorization)

    def owner(self, authorization: str | None) -> str:
        """Return the agent whose token came with the request. Raises AccessDenied."""
        token = _bearer(authorization)
        if not token:
            raise AccessDenied(
                401, "a token is needed: send Authorization: Bearer with the content of <home>/run/tokens/<agent>"
            )
        owner = agent_of(token, self.tokens or {})
        if owner is None:
            raise AccessDenied(401, "this token is not known here")
        return owner

    @property
    def _agent_names(self) -> str:
        return ", ".join(self.agents) or "none"


def ensure_tokens(home: Path, agents: Iterable[str]) -> dict[str, str]:
    """Return every agent's token, making those that are missing. Raises OSError if that is not possible."""
    return {agent: _ensure(home / TOKENS_PATH / agent) for agent in agents}


def read_tokens(home: Path, agents: Iterable[str]) -> dict[str, str]:
    """Return the tokens that exist."""
    folder = home / TOKENS_PATH
    tokens = {agent: _read(folder / agent) for agent in agents}
    return {agent: token for agent, token in tokens.items() if token is not None}


def agent_of(token: str, tokens: Mapping[str, str]) -> str | None:
    """Return the agent whose token this is, compared in constant time; None when it is no agent's."""
    given = token.encode()
    owner = None
    for agent, expected in tokens.items():
        if hmac.compare_digest(expected.encode(), given):
            owner = agent
    return owner


def _bearer(authorization: str | None) -> str:
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
