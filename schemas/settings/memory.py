"""The whole tree of settings: those that an agent may override, those of one agent, and those of a home."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import Field, field_validator, model_validator

from schemas.agents import Share
from schemas.settings.context import Context
from schemas.settings.embedding import Cache, Cost, Credentials, FallbackName, Local, ProviderName, Remote
from schemas.settings.search import Limits, Qmd, Query, Scope
from schemas.settings.section import FLEET_AGENT_ID_PATTERN, AnyExtraPath, Globs, Section
from schemas.settings.service import Auth, Broker, Fleet, Hooks, Ingest, Service, StoreSettings, Tracing, Up, Workers
from schemas.settings.sync import Chunking, Redaction, Source, Sync


class MemorySettings(Section):
    """Settings that an agent may override."""

    enabled: bool = Field(True, description="Index and search this memory.")
    backend: str = Field(
        "builtin",
        min_length=1,
        description="Backend that answers searches: builtin, qmd, or the name of an installed one.",
    )
    qmd: Qmd = Qmd()
    provider: ProviderName = Field("auto", description="Provider of embeddings; none means keywords only.")
    fallback: FallbackName = Field(
        "none", description="Provider that takes over, as a new index, when the first one fails for good."
    )
    model: str | None = Field(None, description="Embedding model; unset means the provider's default.")
    output_dimensionality: int | None = Field(
        None, ge=8, le=8192, description="Dimensions to request from a model that can shorten its vectors."
    )
    remote: Remote = Remote()
    local: Local = Local()
    query_input_type: str | None = Field(
        None, description="Input type sent with queries, for models that distinguish queries and documents."
    )
    document_input_type: str | None = Field(None, description="Input type sent with documents.")
    query_prefix: str | None = Field(
        None,
        description="Text before every query to a provider; unset means the prefix of an open model's family "
        "(nomic-embed-text, e5, mxbai, qwen3-embedding, embeddinggemma, arctic-embed, bge), empty means none.",
    )
    document_prefix: str | None = Field(
        None, description="The same for every indexed text; the prefix is embedded, not shown."
    )
    sources: tuple[Source, ...] = Field(
        ("memory", "sessions"), description="Sources to index; an agent without session folders has no transcripts."
    )
    extra_paths: tuple[AnyExtraPath, ...] = Field(
        (),
        description="Further files or folders of Markdown notes, absolute or relative to the workspace; as a table "
        "with include and exclude, globs relative to that path.",
    )
    include: Globs = Field(
        (), description="Globs of the notes and transcripts to index, by the paths that results show; none means all."
    )
    exclude: Globs = Field(
        (), description="Globs of notes and transcripts to leave out, such as drafts/ or sessions/cron-*."
    )
    chunking: Chunking = Chunking()
    query: Query = Query()
    sync: Sync = Sync()
    limits: Limits = Limits()
    citations: Literal["auto", "on", "off"] = Field(
        "auto", description="Name the source of each result; auto: except to groups and channels."
    )
    scope: Scope = Scope()
    redaction: Redaction = Redaction()
    context: Context = Context()


class AgentSettings(MemorySettings):
    """The effective settings of one agent: defaults and its own overrides, merged."""

    id: str = Field(
        pattern=FLEET_AGENT_ID_PATTERN, description="Name of the agent: letters, digits, dot, dash, underscore."
    )
    workspace: Path = Field(description="Folder that holds MEMORY.md and memory/.")
    sessions: tuple[str, ...] = Field((), description="Folders of the agent's transcripts.")

    @field_validator("workspace")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        if not value.is_absolute():
            raise ValueError("must be an absolute path")
        return value


class AgentDirectory(Protocol):
    """Agents by their ids: those of the settings, or rows of a fleet's store, whose errors then come from every method.

    Nothing reads all of them to serve one.
    """

    def agent(self, agent_id: str) -> AgentSettings:
        """Return the effective settings of one agent. Raises KeyError: there is no such agent."""

    def agent_ids(self) -> Iterator[str]:
        """Yield the ids of all agents. A fleet's are read page by page."""

    def share(self, agent_id: str) -> Share:
        """Return the share of an agent in all work."""


def has_agent(directory: AgentDirectory, agent_id: str) -> bool:
    """Return True if there is such an agent."""
    try:
        return bool(directory.agent(agent_id))
    except KeyError:
        return False


class Settings(MemorySettings):
    """All settings, resolved once at the entry point and handed down."""

    home: Path = Field(description="Folder that holds everything recalld writes.")
    store: StoreSettings = StoreSettings()
    cache: Cache = Cache()
    cost: Cost = Cost()
    auth: Auth = Auth()
    broker: Broker = Broker()
    service: Service = Service()
    ingest: Ingest = Ingest()
    fleet: Fleet = Fleet()
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

    def agent_ids(self) -> Iterator[str]:
        """Yield the ids of all agents."""
        yield from (agent.id for agent in self.agents)

    def share(self, agent_id: str) -> Share:  # noqa: ARG002 - of a fleet
        """Return the share of an agent: all agents of one machine have the same weight, and one budget."""
        return Share(tokens_a_day=self.cost.tokens_per_day)

    def agent(self, agent_id: str) -> AgentSettings:
        """Return the effective settings of one agent.

        Raises:
            KeyError: no agent has that id; the message lists those that exist.
        """
        for agent in self.agents:
            if agent.id == agent_id:
                return agent
        names = ", ".join(agent.id for agent in self.agents) or "none"
        raise KeyError(f"no agent is called {agent_id!r} (known: {names})")
