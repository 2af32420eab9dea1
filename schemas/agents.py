"""Names of agents in a fleet, where each agent belongs to a tenant."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

#: Name of a tenant, or of an agent within it.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

#: Tenant of an agent whose id names none.
DEFAULT_TENANT = "default"

#: Owner of an embedding cache that all tenants share. No tenant, agent or token may have this name.
SHARED_CACHE = "shared"


@dataclass(frozen=True, slots=True, order=True)
class Scope:
    """Tenant and agent whose rows a statement may see."""

    tenant: str
    agent: str

    @classmethod
    def of(cls, agent_id: str) -> Scope:
        """Return the scope of an agent's id: "acme/anna", or "anna" of the tenant `default`."""
        tenant, slash, agent = agent_id.partition("/")
        return cls(tenant, agent) if slash else cls(DEFAULT_TENANT, agent_id)

    @property
    def agent_id(self) -> str:
        """Return the agent's id, without the tenant if that is `default`."""
        return self.agent if self.tenant == DEFAULT_TENANT else f"{self.tenant}/{self.agent}"

    def workspace(self, home: Path) -> Path:
        """Return the workspace of an agent of a fleet's directory: no folder, its documents come over the network."""
        return home / "agents" / self.tenant / self.agent


def tenant_of(agent_id: str) -> str:
    """Return the name of the usage of all agents of this one's tenant, which has the tokens of each day."""
    return f"{Scope.of(agent_id).tenant}/*"


@dataclass(frozen=True, slots=True)
class Share:
    """Share of an agent in all work: the `weight` of its turns, and its tenant's tokens a day (None: no bound)."""

    weight: float = 1.0
    tokens_a_day: int | None = None
