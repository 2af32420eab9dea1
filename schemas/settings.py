"""The settings tree: every key, its default, its unit and its limits.

The tree is pure data: this module only defines valid settings. The front door reads files, the environment and flags
(`recalld.settings.load`), and merges an agent's overrides with the shared settings (`recalld.settings.resolution`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    ConfigDict,
    Discriminator,
    Field,
    SecretStr,
    Tag,
    field_validator,
    model_validator,
)

from schemas.globs import compiled
from schemas.sections import Context, Qmd, Section, Share

#: Kinds of sessions. A file that several sessions share has the kind of the first.
SessionKind = Literal["chat", "subagent", "cron", "heartbeat", "hook", "dreaming", "system"]


class RemoteBatch(Section):
    """The provider's own asynchronous Batch API (used for backfills)."""

    enabled: bool = Field(False, description="Use the provider's Batch API for backfills.")
    wait: bool = Field(True, description="Wait for a batch job to end before the command returns.")
    concurrency: int = Field(2, ge=1, description="Batch jobs in flight.")
    poll_interval_ms: int = Field(2000, ge=100, description="Milliseconds between two checks of a batch job.")
    timeout_minutes: float = Field(
        60, gt=0, description="Minutes after which a batch job is stopped; providers may take a day."
    )


class Remote(Section):
    """A remote embedding endpoint."""

    base_url: str | None = Field(
        None, description="Endpoint of an OpenAI-compatible server, for example http://127.0.0.1:11434/v1."
    )
    api_key: SecretStr | None = Field(
        None, description="Key for the endpoint; the provider's own environment variable is used when unset."
    )
    headers: dict[str, str] = Field(default_factory=dict, description="Extra HTTP headers of every embedding request.")
    concurrency: int = Field(4, ge=1, le=64, description="Embedding requests in flight per worker process.")
    requests_per_minute: int | None = Field(
        None, ge=1, description="Upper bound of requests a minute; unset means unbounded."
    )
    tokens_per_minute: int | None = Field(
        None, ge=1, description="Upper bound of tokens a minute; unset means unbounded."
    )
    price_per_million_tokens: float | None = Field(
        None, ge=0, description="Price of a million tokens in US dollars, for estimates; unset means the list price."
    )
    batch: RemoteBatch = RemoteBatch()

    @field_validator("base_url")
    @classmethod
    def _a_url(cls, value: str | None) -> str | None:
        if value is not None and not value.lower().startswith(("http://", "https://")):
            raise ValueError("must begin with http:// or https://")
        return value


class Local(Section):
    """A model that runs on this machine."""

    model_path: str | None = Field(
        None,
        description="multilingual-e5-small, a name of `recalld model list`, a folder with an ONNX export, or a .gguf "
        "file; unset means the bundled multilingual model.",
    )
    model_cache_dir: Path | None = Field(
        None, description="Folder for downloaded models; unset means <home>/cache/models."
    )


class Chunking(Section):
    """Cutting of documents."""

    tokens: int = Field(400, ge=32, le=8000, description="Target size of a chunk in estimated tokens.")
    overlap: int = Field(80, ge=0, description="Tokens of the previous chunk repeated at the start of the next one.")

    @model_validator(mode="after")
    def _overlap_below_half(self) -> Chunking:
        if self.overlap > self.tokens // 2:
            raise ValueError("overlap must be at most half of chunking.tokens")
        return self


class Mmr(Section):
    """Maximal marginal relevance: trade relevance for variety."""

    model_config = ConfigDict(populate_by_name=True)
    enabled: bool = Field(False, description="Choose results that differ, not only the best ones.")
    lambda_: Share = Field(0.7, alias="lambda", description="1 ranks by relevance alone, 0 by variety alone.")


class TemporalDecay(Section):
    """Lower scores for older notes and messages."""

    enabled: bool = Field(False, description="Lower the score of dated notes and of transcripts with age.")
    half_life_days: float = Field(30, gt=0, description="Days after which rank and score are halved.")


class MinMax(Section):
    """Weights of the min-max formula."""

    vector_weight: float = Field(0.4, ge=0, le=1, description="Weight of the vector side in min-max fusion.")
    text_weight: float = Field(0.6, ge=0, le=1, description="Weight of the keyword side in min-max fusion.")


class Hybrid(Section):
    """Fusion of the vector side and the keyword side."""

    enabled: bool = Field(True, description="Search keywords beside vectors.")
    fusion: Literal["minmax", "weighted"] = Field(
        "minmax", description="minmax: rank by normalised scores of both sides; weighted: the reference formula."
    )
    vector_weight: float = Field(0.7, ge=0, le=1, description="Weight of the vector score in the weighted formula.")
    text_weight: float = Field(0.3, ge=0, le=1, description="Weight of the keyword score in the weighted formula.")
    candidate_multiplier: int = Field(
        4, ge=1, le=20, description="Candidates fetched from each side, as a multiple of max_results."
    )
    minmax: MinMax = MinMax()
    mmr: Mmr = Mmr()
    temporal_decay: TemporalDecay = TemporalDecay()


class Query(Section):
    """Defaults of a search."""

    max_results: int = Field(6, ge=1, le=100, description="Results a search returns.")
    min_score: Share = Field(
        0.35, description="Results below this score are left out; exact keyword matches are always kept."
    )
    hybrid: Hybrid = Hybrid()


class SyncSessions(Section):
    """Kinds of transcripts that are synchronised, and the time for a growing one."""

    kinds: tuple[SessionKind, ...] = Field(
        ("chat", "subagent"),
        description="Kinds of sessions whose transcripts are indexed; a transcript without a known kind is a chat.",
    )
    delta_bytes: int = Field(100_000, ge=0, description="Appended bytes that make a transcript due.")
    delta_messages: int = Field(50, ge=0, description="Appended messages that make a transcript due.")
    quiet_seconds: float = Field(
        5, ge=0, description="Seconds without a write after which a transcript is synchronised anyway."
    )
    post_compaction_force: bool = Field(
        True, description="A compaction synchronises its transcript regardless of thresholds."
    )
    forget_deleted: bool = Field(False, description="Forget the memory of a transcript that vanished.")


class Sync(Section):
    """Times at which the index is compared with the files."""

    on_session_start: bool = Field(True, description="Compare files and index when a session starts.")
    on_search: bool = Field(True, description="Let a search speed up pending documents.")
    watch: bool = Field(True, description="Watch the files.")
    watch_debounce_ms: int = Field(
        1500, ge=0, le=600_000, description="Milliseconds a document must be quiet before it is queued."
    )
    interval_minutes: float = Field(
        15, ge=0, description="Minutes between two comparisons of files and index; 0 means never."
    )
    sessions: SyncSessions = SyncSessions()


class Limits(Section):
    """Upper bounds of an answer."""

    max_snippet_chars: int = Field(700, ge=40, description="Characters of one snippet.")
    max_injected_chars: int = Field(
        4000, ge=40, description="Characters of all snippets of one tool answer together, sources included."
    )
    timeout_ms: int = Field(15_000, ge=10, description="Milliseconds after which a search returns its results so far.")


class Redaction(Section):
    """Masking of secrets, before any other use of a text."""

    memory: bool = Field(True, description="Black out secrets in notes.")
    sessions: bool = Field(True, description="Black out secrets in transcripts.")
    patterns: tuple[str, ...] = Field(
        (), description="Further regular expressions (Python's) of secrets; if they have groups, only these are masked."
    )

    @field_validator("patterns")
    @classmethod
    def _compile(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in value:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None
        return value


class ScopeRule(Section):
    """One scope rule; every field given must match, the first matching rule wins.

    Upper and lower case are the same. `key_prefix` is compared with the key without `agent:<id>:`, or with the whole
    key if it begins with "agent:"; `raw_key_prefix` always with the whole key, as it came.
    """

    action: Literal["allow", "deny"]
    channel: str | None = None
    chat_type: Literal["direct", "group", "channel"] | None = None
    key_prefix: str | None = None
    raw_key_prefix: str | None = None

    @field_validator("chat_type", mode="before")
    @classmethod
    def _lower_case(cls, value: object) -> object:
        return value.strip().lower() if isinstance(value, str) else value


class Scope(Section):
    """Sessions that may search and read. A request without a session key is always allowed."""

    default: Literal["allow", "deny"] = Field("allow", description="Effect on a session that no rule matches.")
    rules: tuple[ScopeRule, ...] = Field(
        (), description="Rules on channel, chat_type, key_prefix and raw_key_prefix; the first match wins."
    )
    private_transcripts: Literal["owner", "direct", "all"] = Field(
        "owner",
        description="Sessions that see transcripts of other conversations, and notes made of them: owner, direct "
        "(every private chat) or all.",
    )


class Cache(Section):
    """The embedding cache, shared by all agents of a host."""

    enabled: bool = Field(True, description="Keep every embedding that a provider returned.")
    max_entries: int | None = Field(
        None, ge=1, description="Upper bound of cached embeddings, least recently used first; unset means unbounded."
    )


class StoreVector(Section):
    """The sqlite-vec extension, which writes vectors where it is there."""

    enabled: bool = Field(True, description="Keep vectors at all; off means keywords only.")
    extension_path: Path | None = Field(
        None, description="Path of the sqlite-vec library when the installed one should not be used."
    )


class StoreSettings(Section):
    """Place of the indexes."""

    url: str | None = Field(
        None, description="Not served yet (a fleet's PostgreSQL comes later): leave it unset for SQLite."
    )
    path: Path | None = Field(None, description="Folder of the indexes; unset means <home>/indexes.")
    vector: StoreVector = StoreVector()

    @field_validator("url")
    @classmethod
    def _is_served(cls, url: str | None) -> str | None:
        if url:
            raise ValueError(
                "only SQLite is served, without a URL (PostgreSQL comes later); remove the key, and set store.path if "
                "the indexes shall not be in <home>/indexes"
            )
        return url


class Auth(Section):
    """Access to the query service."""

    trust_loopback: bool = Field(False, description="With several agents, let every local process ask for any agent.")


class Broker(Section):
    """Server of the queue."""

    url: SecretStr | None = Field(
        None, description="Redis or Valkey URL; unset means a private Valkey under <home>/broker."
    )
    namespace: str | None = Field(
        None, pattern=r"^[A-Za-z0-9._-]{1,64}$", description="Prefix of all keys; unset means one made for this home."
    )


class Service(Section):
    """The query service."""

    host: str = Field("127.0.0.1", description="Address that the query service listens on.")
    port: int = Field(7373, ge=0, le=65535, description="Port that the query service listens on; 0 picks a free one.")


class Hooks(Section):
    """HTTP address for agents' hooks."""

    host: str = Field("127.0.0.1", description="Address that the producers listen on for hooks.")
    port: int | None = Field(
        None, ge=0, le=65535, description="Port for hooks; unset means none is opened, 0 picks a free one."
    )


class Workers(Section):
    """The worker pool of `up` and `work`."""

    host: str = Field("127.0.0.1", description="Address of a worker process's metrics and health.")
    port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="Port of `up`'s first worker process, the others use the next ones; unset means none is opened.",
    )
    processes: int = Field(1, ge=1, le=64, description="Worker processes that `up` starts.")
    threads: int = Field(2, ge=1, le=64, description="Jobs of one queue that a worker process runs at a time.")
    stalled_after_seconds: float = Field(
        120.0,
        gt=0,
        description="`/readyz` of workers and of `up` fails when work waits and none was finished for this time. Like "
        "`status` and `doctor`, it names any thread that is stuck at one step for this time.",
    )


class Up(Section):
    """Supervising process of `up`."""

    host: str = Field("127.0.0.1", description="Address of `up`'s health.")
    port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="Port for `/healthz` and `/readyz` of all that `up` runs; unset means none is opened.",
    )


class Tracing(Section):
    """Traces by OpenTelemetry."""

    enabled: bool = Field(
        False, description="Send traces, to where OpenTelemetry's own variables say; needs the extra otel."
    )


class Credentials(Section):
    """Provider keys from the environment. Never read from a file that recalld writes, never printed."""

    openai: SecretStr | None = None
    gemini: SecretStr | None = None
    voyage: SecretStr | None = None
    mistral: SecretStr | None = None
    ollama: SecretStr | None = None
    deepinfra: SecretStr | None = None


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
    include: tuple[str, ...] = Field(
        (), description="Globs of the notes and transcripts to index, by the paths that results show; none means all."
    )
    exclude: tuple[str, ...] = Field(
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
        names = ", ".join(agent.id for agent in self.agents) or "none"
        raise KeyError(f"no agent is called {agent_id!r} (known: {names})")
