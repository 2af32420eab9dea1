"""The settings tree: every key, its default, its unit and its limits.

The tree is pure data. Reading files, the environment and flags is the front door's business
(`recalld.settings.load`), and how an agent's overrides meet what is shared (`recalld.settings.resolution`); this module
only says what is valid.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from schemas.globs import compiled
from schemas.settings_sections import (
    Auth,
    Broker,
    Cache,
    Chunking,
    Credentials,
    Hooks,
    Limits,
    Local,
    Query,
    Redaction,
    Remote,
    Scope,
    Section,
    Service,
    StoreSettings,
    Sync,
    Tracing,
    Up,
    Workers,
)

_Served = Literal["openai", "gemini", "mistral", "ollama", "voyage", "lmstudio", "deepinfra", "bedrock"]
ProviderName = Literal["auto", _Served, "openai-compatible", "local", "none", "stub"]
FallbackName = Literal[_Served, "local", "none", "stub"]
Source = Literal["memory", "sessions"]

#: An agent id becomes a folder name, a URL part and a token's file name.
AGENT_ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"


def _is_glob(value: tuple[str, ...]) -> tuple[str, ...]:
    compiled(value, ())
    return value


class ExtraPath(Section):
    """A file or folder of notes beside the workspace's, and which of its files count."""

    path: str
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    _globs = field_validator("include", "exclude")(_is_glob)


def _form_of_path(value: Any) -> str | None:
    if isinstance(value, str):
        return "text"
    return "table" if isinstance(value, Mapping | ExtraPath) else None


#: A path, or a table when only some of its files count. The tags make an error name the written form only.
AnyExtraPath = Annotated[
    Annotated[str, Tag("text")] | Annotated[ExtraPath, Tag("table")],
    Discriminator(
        _form_of_path,
        custom_error_type="extra_path",
        custom_error_message="Must be a path, or a table with path, include and exclude",
    ),
]


class MemorySettings(Section):
    """Settings that an agent may override."""

    enabled: bool = Field(True, description="Whether this memory exists at all.")
    backend: Literal["builtin"] = Field("builtin", description="Which search manager answers.")
    provider: ProviderName = Field("auto", description="Where embeddings come from; none means keywords only.")
    fallback: FallbackName = Field(
        "none", description="Provider that takes over, as a new index, when the first one fails for good."
    )
    model: str | None = Field(None, description="Embedding model; unset means the provider's default.")
    output_dimensionality: int | None = Field(
        None, ge=8, le=8192, description="Dimensions asked of a model that can shorten its vectors."
    )
    remote: Remote = Remote()
    local: Local = Local()
    query_input_type: str | None = Field(
        None, description="Input type sent with queries, for models that tell them apart."
    )
    document_input_type: str | None = Field(None, description="Input type sent with documents.")
    query_prefix: str | None = Field(
        None,
        description="Put before every query that is sent to a provider; unset means what an open model's family wants "
        "(nomic-embed-text, e5, mxbai, qwen3-embedding, embeddinggemma, arctic-embed, bge), empty means nothing.",
    )
    document_prefix: str | None = Field(
        None, description="The same before every text that is indexed; it is embedded, not shown."
    )
    sources: tuple[Source, ...] = Field(
        ("memory", "sessions"), description="What is indexed; an agent without session folders has no transcripts."
    )
    extra_paths: tuple[AnyExtraPath, ...] = Field(
        (),
        description="Further files or folders of Markdown notes, absolute or relative to the workspace; as a table "
        "with include and exclude, globs relative to that path.",
    )
    include: tuple[str, ...] = Field(
        (), description="Globs of the only notes and transcripts that count, by the paths that results show."
    )
    exclude: tuple[str, ...] = Field(
        (), description="Globs of notes and transcripts that do not count, such as drafts/ or sessions/cron-*."
    )
    chunking: Chunking = Chunking()
    query: Query = Query()
    sync: Sync = Sync()
    limits: Limits = Limits()
    citations: Literal["auto", "on", "off"] = Field(
        "auto", description="Whether results name their source; auto: not to groups and channels."
    )
    scope: Scope = Scope()
    redaction: Redaction = Redaction()

    _globs = field_validator("include", "exclude")(_is_glob)


class AgentSettings(MemorySettings):
    """The effective settings of one agent: defaults and its own overrides, merged."""

    id: str = Field(pattern=AGENT_ID_PATTERN, description="Name of the agent: letters, digits, dot, dash, underscore.")
    workspace: Path = Field(description="Folder that holds MEMORY.md and memory/.")
    sessions: tuple[str, ...] = Field((), description="Folders of the agent's transcripts.")

    @field_validator("workspace")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        if not value.is_absolute():
            raise ValueError("must be an absolute path")
        return value


class Settings(MemorySettings):
    """All settings, resolved once at the entry point and handed down."""

    home: Path = Field(description="Folder that holds everything recalld writes.")
    store: StoreSettings = StoreSettings()
    cache: Cache = Cache()
    auth: Auth = Auth()
    broker: Broker = Broker()
    service: Service = Service()
    hooks: Hooks = Hooks()
    workers: Workers = Workers()
    up: Up = Up()
    tracing: Tracing = Tracing()
    credentials: Credentials = Credentials()
    agents: tuple[AgentSettings, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _model_cache_below_home(cls, data: Any) -> Any:
        """Set `local.model_cache_dir` to a folder of the home where it is not set."""
        if not isinstance(data, Mapping) or data.get("home") is None:
            return data
        folder = Path(data["home"]) / "cache" / "models"

        def with_folder(section: Any) -> Any:
            local = section.get("local", {}) if isinstance(section, Mapping) else None
            if not isinstance(local, Mapping):
                return section
            return {**section, "local": {"model_cache_dir": folder, **local}}

        agents = data.get("agents", ())
        if isinstance(agents, list | tuple):
            data = {**data, "agents": [with_folder(agent) for agent in agents]}
        return with_folder(data)

    @model_validator(mode="after")
    def _unique_agents(self) -> Settings:
        ids = [agent.id.lower() for agent in self.agents]
        for agent_id in ids:
            if ids.count(agent_id) > 1:
                raise ValueError(f"agents: the id {agent_id!r} is used twice")
        return self

    @property
    def indexes_path(self) -> Path:
        """Folder with one folder per agent."""
        return self.store.path or self.home / "indexes"

    def agent(self, agent_id: str) -> AgentSettings:
        """Return the effective settings of one agent.

        Raises:
            KeyError: no agent has that id; the message lists those that exist.
        """
        for agent in self.agents:
            if agent.id == agent_id:
                return agent
        known = ", ".join(agent.id for agent in self.agents) or "none"
        raise KeyError(f"no agent is called {agent_id!r} (known: {known})")
