"""Access tokens of a fleet: their form, and the memory that each opens.

A token is shown once, when it is made. The store keeps its SHA-256: the token is random, so no slow hash is needed.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal, Protocol, TypeAlias

from memory.http.authorization import AccessDenied, Authorizer, bearer
from schemas.agents import Scope
from schemas.settings.section import AGENT_ID_PATTERN

#: Beginning of every access token, by which scanners for secrets know it.
TOKEN_PREFIX = "rcl_"  # noqa: S105 - a prefix

#: Right of a token: to search and read, to send documents, to administer its tenant.
Right: TypeAlias = Literal["search", "ingest", "admin"]

#: Agents of one view for a token that opens more: status, metrics, the page.
VIEW_AGENTS = 50

#: Another tenant's agent and an unknown one get this very answer.
_NO_SUCH_AGENT = "this token opens no agent of that name"

_RANDOM_BYTES = 32


def new_token() -> str:
    """Return a new random access token."""
    return TOKEN_PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)


def token_hash(token: str) -> bytes:
    """Return the SHA-256 by which the store knows a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


@dataclass(frozen=True, slots=True)
class AccessToken:
    """Access token without its secret.

    `agents` are the tenant's agents that it opens, the first one by default; None for all of them. `machine` is the one
    machine that may use it, None before its first use. `expires_at` is a Unix time.
    """

    tenant: str
    name: str
    rights: frozenset[str]
    agents: tuple[str, ...] | None = None
    machine: str | None = None
    expires_at: float | None = None


class TokenDirectory(Protocol):
    """Tokens and agents of a fleet. A revoked token is unknown after 5 seconds at most."""

    def token(self, digest: bytes) -> AccessToken | None:
        """Return the token with this hash; None if it is unknown or revoked."""

    def has_agent(self, scope: Scope) -> bool:
        """Return True if there is such an agent."""

    def page(self, tenant: str, *, after: str, limit: int) -> Sequence[str]:
        """Return the names of the tenant's agents that come after a name, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetAuthorizer(Authorizer):
    """Decision which agent's memory a request may open, by its access token. It may wait for the store.

    There is no owner. A decision also raises the errors of the store while that does not answer.
    """

    directory: TokenDirectory

    def token(self, authorization: str | None, right: Right) -> AccessToken:
        """Return the access token of a request. Raises AccessDenied: it is not valid now, or lacks the right."""
        secret = bearer(authorization)
        if not secret:
            raise AccessDenied(401, "an access token is needed: send Authorization: Bearer rcl_...")
        token = self.directory.token(token_hash(secret)) if secret.startswith(TOKEN_PREFIX) else None
        if token is None or (token.expires_at is not None and token.expires_at <= self.clock()):
            raise AccessDenied(401, "this access token is unknown, expired or revoked")
        if right not in token.rights:
            raise AccessDenied(403, f"this access token lacks the right {right}")
        return token

    def agent(self, authorization: str | None, requested: str | None) -> str:
        """Return the id of the agent whose memory this request may open, by default the token's first one.

        Raises:
            AccessDenied: no valid token, or it opens no agent of that name.
        """
        token = self.token(authorization, "search")
        if requested is None:
            names = self.directory.page(token.tenant, after="", limit=1) if token.agents is None else token.agents
            requested = next(iter(names), "")
        name = requested.removeprefix(f"{token.tenant}/")
        is_open = re.fullmatch(AGENT_ID_PATTERN, name) and (token.agents is None or name in token.agents)
        if not is_open or not self.directory.has_agent(scope := Scope(token.tenant, name)):
            raise AccessDenied(404, _NO_SUCH_AGENT)
        return scope.agent_id

    def visible(self, authorization: str | None, requested: str | None = None, *, after: str = "") -> tuple[str, ...]:
        """Return the agents that a view for this request shows: the requested one, else a page. Raises AccessDenied."""
        if requested is not None:
            return (self.agent(authorization, requested),)
        token = self.token(authorization, "search")
        if token.agents is None:
            scopes = [
                Scope(token.tenant, name) for name in self.directory.page(token.tenant, after=after, limit=VIEW_AGENTS)
            ]
        else:
            named = (Scope(token.tenant, name) for name in sorted(token.agents) if name > after)
            scopes = list(islice(filter(self.directory.has_agent, named), VIEW_AGENTS))
        return tuple(scope.agent_id for scope in scopes)
