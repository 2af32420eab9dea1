"""Directory of a fleet: its agents with their settings, and its access tokens with the memory that each opens.

A token is shown once, when it is made. The store keeps its SHA-256: the token is random, so no slow hash is needed.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice
from typing import Any

from pydantic import ValidationError

from memory.http.authorization import AccessDenied, Authorizer, bearer
from memory.store.postgres.connection import Database
from schemas.agents import DEFAULT_TENANT, NAME, Scope, Share
from schemas.errors import UserError
from schemas.settings import AgentSettings, MemorySettings, Settings, has_agent
from schemas.validation_messages import problem_words

#: Seconds for which this process trusts a row that it read: a revoked token is refused after them at the latest.
TRUSTED_SECONDS = 5.0

#: Seconds for which the sums of a tenant are trusted: they count all its chunks.
SUMS_SECONDS = 30.0

#: Rows of each kind that are trusted at a time, and agents of one page of the list of all agents.
_MOST_TRUSTED, _PAGE_AGENTS = 1_000, 500

#: Agents of one view for a token that opens more: status, metrics, the page.
VIEW_AGENTS = 50

_BY_HASH = """
SELECT tenant, name, rights, agents, extract(epoch FROM expires_at)::float8 FROM recalld.access_tokens
WHERE hash = %s AND revoked_at IS NULL
"""
_SHARE = """
SELECT t.weight * coalesce(a.weight, 1), t.tokens_a_day FROM recalld.tenants AS t
LEFT JOIN recalld.agents AS a ON (a.tenant, a.agent) = (t.tenant, %s) WHERE t.tenant = %s
"""
_NAMES = "SELECT agent FROM recalld.agents WHERE tenant = %s AND agent > %s ORDER BY agent LIMIT %s"
#: Counts by indexes alone. Agents of a settings file have generations, and no row of their own. NULL is all agents.
_SUMS = """
WITH generations AS MATERIALIZED (
    SELECT agent, generation, state = 'current' AS answers FROM recalld.generations
    WHERE tenant = %(tenant)s AND state <> 'old' AND agent = ANY (coalesce(%(agents)s::text[], ARRAY[agent]))
), answering AS MATERIALIZED (SELECT agent, generation FROM generations WHERE answers)
SELECT
    (SELECT count(*) FROM (SELECT agent FROM generations UNION SELECT agent FROM recalld.agents
        WHERE tenant = %(tenant)s AND agent = ANY (coalesce(%(agents)s::text[], ARRAY[agent]))) AS named),
    (SELECT count(*) FROM recalld.files JOIN answering USING (agent, generation) WHERE tenant = %(tenant)s),
    (SELECT count(*) FROM recalld.chunks JOIN answering USING (agent, generation) WHERE tenant = %(tenant)s),
    (SELECT count(*) FROM recalld.chunks JOIN answering USING (agent, generation)
        WHERE tenant = %(tenant)s AND vector_state = 'pending'),
    (SELECT count(*) FROM recalld.chunks JOIN answering USING (agent, generation)
        WHERE tenant = %(tenant)s AND vector_state = 'refused'),
    (SELECT coalesce(json_object_agg(agent, letters), '{}') FROM (
        SELECT agent, count(DISTINCT (source, path)) AS letters
        FROM recalld.dead_letters JOIN generations USING (agent, generation) WHERE tenant = %(tenant)s GROUP BY agent
    ) AS failed)
"""
_BUDGETS = "SELECT tenant, tokens_a_day FROM recalld.tenants WHERE tenant = coalesce(%s, tenant) ORDER BY tenant"
_SCOPES = "SELECT tenant, agent FROM recalld.agents WHERE (tenant, agent) > (%s, %s) ORDER BY tenant, agent LIMIT %s"


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


@dataclass(frozen=True, slots=True)
class TenantSums:
    """Sums over agents of one tenant. `dead_letters` has their numbers by name, of agents that have some."""

    agents: int
    documents: int
    chunks: int
    vectors_pending: int
    vectors_refused: int
    dead_letters: Mapping[str, int]


class FleetDirectory:
    """Agents and tokens in the store; agents of the settings file belong to the tenant `default`. Thread-safe.

    Methods raise the errors of `Database`. `clock` is monotonic.
    """

    def __init__(self, settings: Settings, database: Database, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._database = database
        self._clock = clock
        self._configured = {Scope.of(agent.id): agent for agent in settings.agents}
        # Their last argument is the time in units of `TRUSTED_SECONDS`. An absent row raises, and is read each time.
        self._token_at = lru_cache(_MOST_TRUSTED)(self._read_token)
        self._agent_at = lru_cache(_MOST_TRUSTED)(self._read_agent)
        self._share_at = lru_cache(_MOST_TRUSTED)(self._read_share)
        self._sums_at = lru_cache(_MOST_TRUSTED)(self._read_sums)
        self._with = lru_cache(_MOST_TRUSTED)(partial(_settings_with, settings))
        self._summing = threading.Lock()

    @classmethod
    def of(cls, settings: Settings) -> FleetDirectory:
        """Return the directory of the fleet in the settings."""
        return cls(settings, Database.of(settings.store))

    def authorizer(self) -> FleetAuthorizer:
        """Return the authorizer of a service of this fleet."""
        return FleetAuthorizer((), {}, directory=self)

    def token(self, digest: bytes) -> AccessToken | None:
        """Return the token with this hash; None if it is unknown or revoked."""
        try:
            return self._token_at(digest, self._clock() // TRUSTED_SECONDS)
        except KeyError:
            return None

    def agent(self, agent_id: str) -> AgentSettings:
        """Return the effective settings of one agent: its row's, laid over those of this process.

        Raises:
            KeyError: there is no such agent.
            UserError: the row's settings are not valid.
        """
        return self._agent_at(Scope.of(agent_id), self._clock() // TRUSTED_SECONDS)

    def settings_of(self, scope: Scope, overrides: str = "{}") -> AgentSettings:
        """Return the settings of an agent whose row has these overrides, a JSON object. Raises UserError.

        They replace values and lists of this process's settings, and are merged into tables. The workspace is a folder
        that does not exist: documents come over the network. Agents with the same overrides share all other values.
        """
        try:
            shared = self._with(overrides)
        except ValidationError as error:
            problem = problem_words(error.errors())
            raise UserError(f"the settings of agent {scope.agent_id} in the store are not valid: {problem}") from None
        workspace = scope.workspace(self._settings.home)
        return shared.model_copy(update={"id": scope.agent_id, "workspace": workspace})

    def share(self, agent_id: str) -> Share:
        """Return the share of an agent in all work: its weight times that of its tenant, and the tenant's budget."""
        return self._share_at(Scope.of(agent_id), self._clock() // TRUSTED_SECONDS)

    def page(self, tenant: str, *, after: str = "", limit: int = VIEW_AGENTS) -> Sequence[str]:
        """Return the names of the tenant's agents that come after a name, in order."""
        configured = {scope.agent for scope in self._configured if scope.tenant == tenant and scope.agent > after}
        with self._database.transaction(tenant, read_only=True) as connection:
            rows = connection.execute(_NAMES, (tenant, after, limit)).fetchall()
        return sorted(configured.union(name for (name,) in rows))[:limit]

    def budgets(self, tenant: str | None = None) -> dict[str, int | None]:
        """Return the tokens a day of a tenant, or of all tenants, by name."""
        with self._database.directory() as connection:
            budgets = dict(connection.execute(_BUDGETS, (tenant,)).fetchall())
        # The agents of a settings file have no row, nor need their tenant.
        is_default = tenant == DEFAULT_TENANT or (tenant is None and self._configured)
        return {DEFAULT_TENANT: None, **budgets} if is_default else budgets

    def sums(self, tenant: str, agents: tuple[str, ...] | None = None) -> TenantSums:
        """Return the sums over these agents of a tenant, or over all, at most `SUMS_SECONDS` old; one statement."""
        with self._summing:  # several at once would take the connections of searches
            return self._sums_at(tenant, agents, self._clock() // SUMS_SECONDS)

    def agent_ids(self) -> Iterator[str]:
        """Yield the ids of all agents, reading page by page."""
        yield from self._settings.agent_ids()
        scopes = [Scope("", "")]
        while scopes:
            with self._database.directory() as connection:
                rows = connection.execute(_SCOPES, (scopes[-1].tenant, scopes[-1].agent, _PAGE_AGENTS)).fetchall()
            scopes = [Scope(*row) for row in rows]
            yield from (scope.agent_id for scope in scopes if scope not in self._configured)

    def _read_token(self, digest: bytes, _: float) -> AccessToken:
        with self._database.directory() as connection:
            connection.execute("SELECT set_config('recalld.token_hash', %s, true)", (digest.hex(),))
            row = connection.execute(_BY_HASH, (digest,)).fetchone()
        if row is None:
            raise KeyError(digest)
        tenant, name, rights, agents, expires_at = row
        return AccessToken(tenant, name, tuple(rights), tuple(agents) if agents is not None else None, expires_at)

    def _read_sums(self, tenant: str, agents: tuple[str, ...] | None, _: float) -> TenantSums:
        names = list(agents) if agents is not None else None
        with self._database.transaction(tenant, read_only=True) as connection:
            row = connection.execute(_SUMS, {"tenant": tenant, "agents": names}).fetchone()
        assert row is not None  # noqa: S101 - a row of counts
        return TenantSums(*row)

    def _read_share(self, scope: Scope, _: float) -> Share:
        with self._database.transaction(scope, read_only=True) as connection:
            row = connection.execute(_SHARE, (scope.agent, scope.tenant)).fetchone()
        return Share(*row) if row is not None else Share()

    def _read_agent(self, scope: Scope, _: float) -> AgentSettings:
        if (configured := self._configured.get(scope)) is not None:
            return configured
        with self._database.transaction(scope, read_only=True) as connection:
            query = "SELECT settings::text FROM recalld.agents WHERE tenant = %s AND agent = %s"
            row = connection.execute(query, (scope.tenant, scope.agent)).fetchone()
        if row is None:
            raise KeyError(f"the fleet has no agent {scope.agent_id!r}")
        return self.settings_of(scope, row[0])


def _settings_with(settings: Settings, overrides: str) -> AgentSettings:
    merged = _laid_over(settings.model_dump(include=set(MemorySettings.model_fields)), json.loads(overrides))
    return AgentSettings.model_validate({**merged, "id": DEFAULT_TENANT, "workspace": settings.home})


def _laid_over(below: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**below, **values}
    for key, table in below.items():
        if isinstance(table, Mapping) and isinstance(values.get(key), Mapping):
            merged[key] = _laid_over(table, values[key])
    return merged


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
