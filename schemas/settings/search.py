"""Tables of the settings file on searches: ranking, limits of an answer, scope, and the backend QMD."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field, SecretStr, field_validator

from schemas.settings.section import Section, Share


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


class Rerank(Section):
    """Reranker behind an HTTP API."""

    base_url: str | None = Field(None, pattern="^https?://", description="Endpoint, as https://api.jina.ai/v1.")
    model: str | None = Field(None, description="Model that reranks.")
    api_key: SecretStr | None = Field(None, description="Key for the endpoint.")
    candidates: int = Field(40, ge=1, le=200, description="Best passages of a search, which the model orders.")
    timeout_ms: int = Field(800, ge=10, description="Milliseconds after which the order stays as it is.")


class Query(Section):
    """Defaults of a search."""

    max_results: int = Field(6, ge=1, le=100, description="Results a search returns.")
    min_score: Share = Field(
        0.35, description="Results below this score are left out; exact keyword matches are always kept."
    )
    sentences: Literal["auto", "off"] = Field(
        "auto", description="auto: a local model also embeds the sentences of the newest 20,000 chunks; off: of none."
    )
    hybrid: Hybrid = Hybrid()
    rerank: Rerank = Rerank()


class Limits(Section):
    """Upper bounds of an answer, and of one message in memory."""

    max_snippet_chars: int = Field(700, ge=40, description="Characters of one snippet.")
    max_injected_chars: int = Field(
        4000, ge=40, description="Characters of all snippets of one tool answer together, sources included."
    )
    timeout_ms: int = Field(15_000, ge=10, description="Milliseconds after which a search returns its results so far.")
    max_message_chars: int = Field(
        400_000,
        ge=1000,
        description="Characters of one transcript message that are indexed, half its beginning and half its end.",
    )


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


class QmdLimits(Section):
    """Upper bounds of an answer by QMD."""

    max_results: int = Field(6, ge=1, le=100, description="Results a search returns.")
    max_snippet_chars: int = Field(700, ge=40, description="Characters of one snippet.")
    max_injected_chars: int = Field(4000, ge=40, description="Characters of all snippets, sources included.")
    timeout_ms: int = Field(4000, ge=10, description="Milliseconds after which a search is ended.")


class QmdUpdate(Section):
    """Updates of QMD's index."""

    on_boot: bool = Field(True, description="Update at the start; nothing waits for it.")
    interval_minutes: float = Field(5, gt=0, description="Minutes between two updates.")
    debounce_seconds: float = Field(15, ge=0, description="Least seconds between two updates.")
    embed_interval_minutes: float = Field(60, gt=0, description="Minutes between two embeddings of new passages.")
    command_timeout_seconds: float = Field(30, gt=0, description="Seconds after which a command is ended.")
    timeout_seconds: float = Field(120, gt=0, description="Seconds after which an update is ended.")
    embed_timeout_seconds: float = Field(120, gt=0, description="Seconds after which an embedding is ended.")


class QmdSessions(Section):
    """Transcripts in QMD's index."""

    enabled: bool = Field(True, description="Export transcripts, without secrets, for QMD.")
    retention_days: int | None = Field(None, ge=1, description="Days for which a transcript is kept there.")


class Qmd(Section):
    """Backend QMD (`backend = "qmd"`)."""

    command: str = Field("qmd", description="The command, by its name or path.")
    search_mode: Literal["search", "vsearch", "query"] = Field(
        "search", description="search: keywords; vsearch: vectors; query: both, expanded and reranked by models."
    )
    limits: QmdLimits = QmdLimits()
    update: QmdUpdate = QmdUpdate()
    sessions: QmdSessions = QmdSessions()
    #: Mistake in the section: QMD is not used, and the section has its defaults. No setting.
    problem: str | None = Field(None, exclude=True)
