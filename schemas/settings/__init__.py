"""The settings tree: every key, its default, its unit and its limits, one module a subject.

The tree is pure data: this package only defines valid settings. The front door reads files, the environment and flags
(`recalld.settings.load`), and merges an agent's overrides with the shared settings (`recalld.settings.resolution`).
"""

from schemas.settings.context import Bootstrap, Context, Flush, Injection, Pruning
from schemas.settings.embedding import Cache, Cost, Credentials, ProviderName, Remote, hub_file
from schemas.settings.memory import AgentDirectory, AgentSettings, MemorySettings, Settings, has_agent
from schemas.settings.search import Hybrid, Limits, Qmd, Rerank, Scope, ScopeRule, TemporalDecay
from schemas.settings.section import ExtraPath
from schemas.settings.service import StoreSettings
from schemas.settings.sync import Chunking, SessionKind, Sync, SyncSessions

__all__ = ["AgentDirectory", "AgentSettings", "MemorySettings", "Settings", "has_agent"]
__all__ += ["Bootstrap", "Context", "Flush", "Injection", "Pruning"]
__all__ += ["Cache", "Cost", "Credentials", "ProviderName", "Remote", "hub_file"]
__all__ += ["Chunking", "SessionKind", "Sync", "SyncSessions"]
__all__ += ["ExtraPath"]
__all__ += ["Hybrid", "Limits", "Qmd", "Rerank", "Scope", "ScopeRule", "TemporalDecay"]
__all__ += ["StoreSettings"]
