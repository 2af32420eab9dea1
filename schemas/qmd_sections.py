"""Settings of the backend QMD."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from schemas.sections import Section


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
    embed_interval_minutes: float = Field(60, gt=0, description="Minutes between two embeddings of what is new.")
    command_timeout_seconds: float = Field(30, gt=0, description="Seconds after which a command is ended.")
    timeout_seconds: float = Field(120, gt=0, description="Seconds after which an update is ended.")
    embed_timeout_seconds: float = Field(120, gt=0, description="Seconds after which an embedding is ended.")


class QmdSessions(Section):
    """Transcripts in QMD's index."""

    enabled: bool = Field(True, description="Export transcripts, without secrets, for QMD.")
    retention_days: int | None = Field(None, ge=1, description="Days for which a transcript is kept there.")


class Qmd(Section):
    """The backend QMD (`backend = "qmd"`)."""

    command: str = Field("qmd", description="The command, by its name or path.")
    search_mode: Literal["search", "vsearch", "query"] = Field(
        "search", description="search: keywords; vsearch: vectors; query: both, expanded and reranked by models."
    )
    limits: QmdLimits = QmdLimits()
    update: QmdUpdate = QmdUpdate()
    sessions: QmdSessions = QmdSessions()
