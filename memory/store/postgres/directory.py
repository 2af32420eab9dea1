"""Directory of a fleet: its agents with their settings, and access tokens, read as services and workers need them."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from pydantic import ValidationError

from memory.http.access_tokens import AccessToken
from memory.store.postgres.connection import Database
from schemas.agents import Scope
from schemas.errors import UserError
from schemas.settings import AgentSettings, MemorySettings, Settings
from schemas.validation_messages import problem_words

#: Seconds for which this process trusts a row that it read: a revoked token is refused after them at the latest.
TRUSTED_SECONDS = 5.0

#: Rows of each kind that are trusted at a time, and agents of one page of the list of all agents.
_MOST_TRUSTED, _PAGE_AGENTS = 10_000, 500

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_BY_HASH = """
SELECT tenant, name, rights, agents, machine, extract(epoch FROM expires_at)::float8 FROM recalld.access_tokens
WHERE hash = %s AND revoked_at IS NULL
"""
_AGENT = "SELECT settings FROM recalld.agents WHERE tenant = %s AND agent = %s"
_NAMES = "SELECT agent FROM recalld.agents WHERE tenant = %s AND agent > %s ORDER BY agent LIMIT %s"
_SCOPES = """
SELECT tenant, agent FROM recalld.agents WHERE (tenant, agent) > (%s, %s) ORDER BY tenant, agent LIMIT %s
"""


class FleetDirectory:
    """Agents and tokens in the store; agents of the settings file belong to the tenant `default`. Thread-safe.

    Implements `AgentDirectory` and `TokenDirectory`. Methods raise the errors of `Database`.
    `clock` is monotonic.
    """

    def __init__(self, settings: Settings, database: Database, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._database = database
        self._configured = {Scope.of(agent.id): agent for agent in settings.agents}
        self._tokens: _Trusted[bytes, AccessToken] = _Trusted(self._read_token, clock)
        self._agents: _Trusted[Scope, AgentSettings] = _Trusted(self._read_agent, clock)

    def agent(self, agent_id: str) -> AgentSettings:
        """Return the effective settings of one agent: its row's, laid over those of this process.

        Raises:
            KeyError: there is no such agent.
            UserError: the row's settings are not valid.
        """
        agent = self._agents.get(Scope.of(agent_id))
        if agent is None:
            raise KeyError(f"the fleet has no agent {agent_id!r}")
        return agent

    def agent_ids(self) -> Iterator[str]:
        """Yield the ids of all agents, reading page by page."""
        yield from (agent.id for agent in self._settings.agents)
        last = ("", "")
        while True:
            with self._database.directory() as connection:
                rows = connection.execute(_SCOPES, (*last, _PAGE_AGENTS)).fetchall()
            scopes = [Scope(*row) for row in rows]
            yield from (scope.agent_id for scope in scopes if scope not in self._configured)
            if len(rows) < _PAGE_AGENTS:
                return
            last = (scopes[-1].tenant, scopes[-1].agent)

    def token(self, digest: bytes) -> AccessToken | None:
        """See `TokenDirectory.token`."""
        return self._tokens.get(digest)

    def has_agent(self, scope: Scope) -> bool:
        """See `TokenDirectory.has_agent`."""
        return self._agents.get(scope) is not None

    def page(self, tenant: str, *, after: str, limit: int) -> Sequence[str]:
        """See `TokenDirectory.page`."""
        configured = {scope.agent for scope in self._configured if scope.tenant == tenant and scope.agent > after}
        with self._database.transaction(tenant, read_only=True) as connection:
            rows = connection.execute(_NAMES, (tenant, after, limit)).fetchall()
        return sorted(configured.union(name for (name,) in rows))[:limit]

    def check(self) -> None:
        """Raise the errors of `Database` unless the store answers now."""
        with self._database.directory() as connection:
            connection.execute("SELECT 1")

    def _read_token(self, digest: bytes) -> AccessToken | None:
        with self._database.directory() as connection:
            connection.execute("SELECT set_config('recalld.token_hash', %s, true)", (digest.hex(),))
            row = connection.execute(_BY_HASH, (digest,)).fetchone()
        if row is None:
            return None
        tenant, name, rights, agents, machine, expires_at = row
        return AccessToken(
            tenant=tenant,
            name=name,
            rights=frozenset(rights),
            agents=tuple(agents) if agents is not None else None,
            machine=machine,
            expires_at=expires_at,
        )

    def _read_agent(self, scope: Scope) -> AgentSettings | None:
        if (configured := self._configured.get(scope)) is not None:
            return configured
        with self._database.transaction(scope, read_only=True) as connection:
            row = connection.execute(_AGENT, (scope.tenant, scope.agent)).fetchone()
        return agent_settings(self._settings, scope, row[0]) if row is not None else None


def agent_settings(settings: Settings, scope: Scope, overrides: Mapping[str, Any]) -> AgentSettings:
    """Return the settings of a fleet's agent: `overrides` replace values and lists, and are merged into tables.

    Its workspace is a folder that does not exist: its documents come over the network.

    Raises:
        UserError: the result is not valid.
    """
    shared = settings.model_dump(include=set(MemorySettings.model_fields))
    workspace = settings.home / "agents" / scope.tenant / scope.agent
    try:
        return AgentSettings.model_validate(
            {**_laid_over(shared, overrides), "id": scope.agent_id, "workspace": workspace}
        )
    except ValidationError as error:
        problem = problem_words(error.errors(), below=0)
        raise UserError(f"the settings of agent {scope.agent_id} in the store are not valid: {problem}") from None


def _laid_over(below: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in values.items():
        table = merged.get(key)
        merged[key] = value
        if isinstance(table, Mapping) and isinstance(value, Mapping):
            merged[key] = _laid_over(table, value)
    return merged


class _Trusted(Generic[K, V]):
    """Rows that were read at most `TRUSTED_SECONDS` ago, the last used of them. Absent rows are read each time."""

    def __init__(self, read: Callable[[K], V | None], clock: Callable[[], float]) -> None:
        self._read, self._clock = read, clock
        self._lock = threading.Lock()
        self._rows: OrderedDict[K, tuple[float, V]] = OrderedDict()

    def get(self, key: K) -> V | None:
        """Return a row, None if there is none."""
        now = self._clock()
        with self._lock:
            until, row = self._rows.get(key, (now, None))
            if now < until:
                self._rows.move_to_end(key)
                return row
        # Unlocked: reading takes time, and may fail.
        fresh = self._read(key)
        with self._lock:
            if fresh is None:
                self._rows.pop(key, None)
            else:
                self._rows[key] = now + TRUSTED_SECONDS, fresh
                while len(self._rows) > _MOST_TRUSTED:
                    self._rows.popitem(last=False)
        return fresh
