"""Access tokens of a fleet, and the memory that each opens.

A token is shown once, when it is made. The store keeps its SHA-256: the token is random, so no slow hash is needed.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from memory.http.authorization import AccessDenied, Authorizer, bearer
from schemas.agents import NAME, Scope
from schemas.settings import has_agent

if TYPE_CHECKING:
    from memory.store.postgres.directory import FleetDirectory

#: Agents of one view for a token that opens more: status, metrics, the page.
VIEW_AGENTS = 50


def new_token() -> str:
    """Return a new random access token; its first letters tell scanners for secrets that it is one."""
    return f"rcl_{secrets.token_urlsafe(32)}"


def token_hash(token: str) -> bytes:
    """Return the SHA-256 by which the store knows a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


@dataclass(frozen=True, slots=True)
class AccessToken:
    """Access token without its secret. `rights` are of search, ingest and admin.

    `agents` are the tenant's agents that it opens, the first one by default; None for all of them. `expires_at` is a
    Unix time.
    """

    tenant: str
    name: str
    rights: tuple[str, ...]
    agents: tuple[str, ...] | None = None
    expires_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetAuthorizer(Authorizer):
    """Decision which agent's memory a request may open, by its access token. There is no owner.

    A decision may wait for the store, and raises its errors.
    """

    directory: FleetDirectory

    def token(self, authorization: str | None, right: str) -> AccessToken:
        """Return the access token of a request. Raises AccessDenied: it is not valid now, or lacks the right."""
        if not (secret := bearer(authorization)):
            raise AccessDenied(401, "an access token is needed: send Authorization: Bearer rcl_...")
        token = self.directory.token(token_hash(secret))
        if token is None or (token.expires_at is not None and token.expires_at <= self.clock()):
            raise AccessDenied(401, "this access token is unknown, expired or revoked")
        if right not in token.rights:
            raise AccessDenied(403, f"this access token lacks the right {right}")
        return token

    def agent(self, authorization: str | None, requested: str | None, *, right: str = "search") -> str:
        """Return the id of the agent whose memory this request may open, by default the token's first one.

        Raises:
            AccessDenied: no valid token, or it opens no agent of that name.
        """
        token = self.token(authorization, right)
        if requested is None:
            names = self.directory.page(token.tenant, limit=1) if token.agents is None else token.agents
            requested = next(iter(names), "")
        scope = Scope(token.tenant, requested.removeprefix(f"{token.tenant}/"))
        is_open = NAME.fullmatch(scope.agent) and (token.agents is None or scope.agent in token.agents)
        if not is_open or not has_agent(self.directory, scope.agent_id):
            # The same words for an unknown agent and for another tenant's.
            raise AccessDenied(404, "this access token opens no agent of that name")
        return scope.agent_id

    def visible(self, authorization: str | None, requested: str | None = None, *, after: str = "") -> tuple[str, ...]:
        """Return the agents that a view for this request shows: the requested one, else a page. Raises AccessDenied."""
        if requested is not None:
            return (self.agent(authorization, requested),)
        token = self.token(authorization, "search")
        after = after.removeprefix(f"{token.tenant}/")
        if token.agents is None:
            return tuple(Scope(token.tenant, name).agent_id for name in self.directory.page(token.tenant, after=after))
        ids = (Scope(token.tenant, name).agent_id for name in sorted(token.agents) if name > after)
        return tuple(islice((agent for agent in ids if has_agent(self.directory, agent)), VIEW_AGENTS))
