"""Tables of the settings file on the context of a conversation: injection, flush, pruning, session notes, bootstrap."""

from __future__ import annotations

from datetime import tzinfo
from typing import Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import Field, SecretStr, field_validator

from schemas.context import OwnPrompt
from schemas.settings.section import Section, Share


class Injection(Section):
    """Related memories that a prompt gets by itself."""

    enabled: bool = Field(False, description="Add related memories to prompts, through the hooks.")
    timeout_ms: int = Field(150, ge=10, description="Milliseconds after which the search for a prompt is given up.")
    max_results: int = Field(3, ge=1, le=20, description="Passages that one prompt gets.")
    min_score: float = Field(
        0.5, ge=0, le=1, description="Least confidence in a passage: above a half it is more likely to fit than not."
    )
    max_chars: int = Field(2_000, ge=40, description="Characters of all passages of one prompt.")
    standing_max_chars: int = Field(2_000, ge=0, description="Characters of all standing instructions of a session.")
    daily_notes: bool = Field(False, description="Begin private sessions with today's and yesterday's note.")
    daily_note_max_chars: int = Field(
        2_000, ge=200, description="Characters of each of the two notes; the end of a longer one is given."
    )


class Bootstrap(Section):
    """Files of the workspace that a session begins with."""

    max_chars: int = Field(20_000, ge=64, description="Characters of one file.")
    total_max_chars: int = Field(60_000, ge=64, description="Characters of all files.")
    user_max_chars: int = Field(4_000, ge=64, description="Characters of USER.md.")


class Flush(Section):
    """Turn of the model that saves important facts before the context is compacted."""

    enabled: bool = Field(True, description="Plan flushes.")
    reserve_tokens: int = Field(
        20_000, ge=0, description="Tokens of the window kept for the answer; at most a quarter of the window counts."
    )
    soft_threshold_tokens: int = Field(4_000, ge=0, description="Tokens before the compaction at which a flush is due.")
    transcript_bytes: int | None = Field(
        2_000_000, ge=1, description="Bytes of the transcript from which on a flush is due in any case; unset: never."
    )
    model: str | None = Field(None, description="Model of the flush; unset means the model of the conversation.")
    prompt: OwnPrompt | None = Field(
        None,
        description="Your own prompt of the turn, at most 10,000 characters; unset means recalld's. YYYY-MM-DD becomes "
        "the day.",
    )
    system_prompt: OwnPrompt | None = Field(None, description="Your own system prompt of the turn, in the same way.")


class SoftTrim(Section):
    """Shortening of long tool results to their beginning and end."""

    max_chars: int = Field(4000, ge=1, description="Characters from which on a result is shortened.")
    head_chars: int = Field(1500, ge=0, description="Characters of its beginning that stay.")
    tail_chars: int = Field(1500, ge=0, description="Characters of its end that stay.")


class HardClear(Section):
    """Removal of the oldest tool results."""

    enabled: bool = Field(True, description="Clear the oldest results when shortening is not enough.")
    placeholder: str = Field("[Old tool result content cleared]", description="Text in place of a cleared result.")


class PrunedTools(Section):
    """Tools whose results may be pruned, by globs in any case; deny wins."""

    allow: tuple[str, ...] = Field((), description="Only the results of these tools are pruned; empty means all.")
    deny: tuple[str, ...] = Field((), description="Results of these tools are never pruned.")


class Pruning(Section):
    """Pruning of old tool results before a model call."""

    mode: Literal["off", "cache-ttl"] = Field("off", description="cache-ttl: prune once the prompt cache is cold.")
    ttl_minutes: float = Field(5, ge=0, description="Minutes for which the provider's prompt cache stays warm.")
    keep_last_assistants: int = Field(3, ge=0, description="Last turns of the model whose results stay.")
    soft_trim_ratio: Share = Field(0.3, description="Share of the window from which on results are shortened.")
    hard_clear_ratio: Share = Field(0.5, description="Share of the window down to which results are cleared.")
    min_prunable_tool_chars: int = Field(
        50_000, ge=0, description="Least characters of prunable results; with fewer, none is cleared."
    )
    soft_trim: SoftTrim = SoftTrim()
    hard_clear: HardClear = HardClear()
    tools: PrunedTools = PrunedTools()


class Slug(Section):
    """Chat model, compatible with OpenAI's, that names a session's note."""

    base_url: str | None = Field(None, description="Endpoint of the chat model; unset means no name.")
    model: str | None = Field(None, description="Name of the chat model.")
    api_key: SecretStr | None = Field(None, description="Key for the endpoint.")
    timeout_seconds: float = Field(15, gt=0, description="Seconds after which the note gets no name.")


class SessionNotes(Section):
    """Note of the last messages when a session ends."""

    enabled: bool = Field(False, description="Write memory/<day>-<time>.md when a session ends or begins anew.")
    messages: int = Field(15, ge=1, le=200, description="Last messages of user and assistant in a note.")
    slug: Slug = Slug()


class Context(Section):
    """Life cycle of memory around a conversation."""

    timezone: str | None = Field(
        None, description="Time zone of the user, such as Europe/Berlin; unset means this machine's."
    )
    flush: Flush = Flush()
    pruning: Pruning = Pruning()
    session_notes: SessionNotes = SessionNotes()
    injection: Injection = Injection()
    bootstrap: Bootstrap = Bootstrap()

    @field_validator("timezone")
    @classmethod
    def _is_known(cls, name: str | None) -> str | None:
        try:
            return ZoneInfo(name).key if name is not None else None
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError(f"{name!r} is no time zone, such as Europe/Berlin") from None

    @property
    def zone(self) -> tzinfo | None:
        """Time zone of the user, None for this machine's."""
        return ZoneInfo(self.timezone) if self.timezone else None
