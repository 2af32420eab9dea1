"""Tables of the settings file on the way of files into the index: synchronisation, redaction, chunking."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, field_validator, model_validator

from schemas.settings.section import Section

#: Kinds of sessions. A file that several sessions share has the kind of the first.
SessionKind = Literal["chat", "subagent", "cron", "heartbeat", "hook", "dreaming", "system"]
Source = Literal["memory", "sessions"]


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


class Chunking(Section):
    """Cutting of documents."""

    tokens: int = Field(400, ge=32, le=8000, description="Target size of a chunk in estimated tokens.")
    overlap: int = Field(80, ge=0, description="Tokens of the previous chunk repeated at the start of the next one.")

    @model_validator(mode="after")
    def _overlap_below_half(self) -> Chunking:
        if self.overlap > self.tokens // 2:
            raise ValueError("overlap must be at most half of chunking.tokens")
        return self
