"""Conditions: facts about recalld that a person should know. `memory.status.condition_texts` has their sentences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

#: Value that a condition's sentence shows.
Param = str | int | float


class ConditionCode(StrEnum):
    """Stable names of conditions. They are part of `--json`, HTTP answers, logs and metrics."""

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: object) -> Any:
        """Accept any text in an answer: a later version of the service may have more codes."""
        from pydantic_core.core_schema import str_schema

        return str_schema()

    # Vectors
    VECTORS_UNAVAILABLE = "vectors_unavailable"
    VECTORS_WAIT = "vectors_wait"
    VECTORS_STUCK = "vectors_stuck"
    VECTORS_UNATTENDED = "vectors_unattended"
    VECTORS_HELD = "vectors_held"
    BACKFILL_HALTED = "backfill_halted"
    VECTORS_UNWRITABLE = "vectors_unwritable"
    BUDGET_SPENT = "budget_spent"
    PROVIDER_MISSING = "provider_missing"
    PROVIDER_REFUSES = "provider_refuses"
    PROVIDER_FAILS = "provider_fails"
    PROVIDER_SILENT = "provider_silent"
    PROVIDER_WAITS = "provider_waits"
    PROVIDER_UNREACHABLE = "provider_unreachable"
    PROVIDER_USELESS = "provider_useless"
    DIMENSIONS_CHANGED = "dimensions_changed"
    FALLBACK_UNUSABLE = "fallback_unusable"
    GPU_MISSING = "gpu_missing"

    # Batch jobs
    BATCH_API_MISSING = "batch_api_missing"
    BATCH_NEEDS_CACHE = "batch_needs_cache"
    BATCH_SUSPENDED = "batch_suspended"
    BATCH_JOB_UNREACHABLE = "batch_job_unreachable"

    # The index
    INDEX_UNREADABLE = "index_unreadable"
    INDEX_SET_ASIDE = "index_set_aside"
    INDEX_OUTDATED = "index_outdated"
    INDEX_INCONSISTENT = "index_inconsistent"
    INDEXING_STILL = "indexing_still"
    WORKERS_DIFFER = "workers_differ"
    WORKERS_OUT_OF_MEMORY = "workers_out_of_memory"
    DOCUMENTS_WAIT = "documents_wait"
    DOCUMENTS_UNQUEUED = "documents_unqueued"
    DOCUMENTS_UNSENT = "documents_unsent"
    DOCUMENTS_FAILED = "documents_failed"
    BUILD_ABANDONED = "build_abandoned"
    BUILD_STUCK = "build_stuck"
    KEYWORDS_UNAVAILABLE = "keywords_unavailable"
    NO_SPACE = "no_space"
    STORE_FULL = "store_full"
    JOB_FAILED = "job_failed"
    SETTINGS_OLDER = "settings_older"
    HOUSEKEEPING_FAILED = "housekeeping_failed"
    MAINTENANCE_FAILED = "maintenance_failed"
    OTHER_HOME = "other_home"
    MESSAGES_ALIKE = "messages_alike"

    # Another backend
    BACKEND_FAILS = "backend_fails"

    # Files and events
    NO_DOCUMENTS = "no_documents"
    NOTES_NOT_TAKEN = "notes_not_taken"
    FILE_NAME_NOT_UTF8 = "file_name_not_utf8"
    FILE_IS_LINK = "file_is_link"
    FILE_NOT_REGULAR = "file_not_regular"
    PATH_TOO_LONG = "path_too_long"
    TOO_MANY_DOCUMENTS = "too_many_documents"
    FOLDER_UNLISTABLE = "folder_unlistable"
    FOLDER_MISSING = "folder_missing"
    FOLDER_EMPTIED = "folder_emptied"
    EXTRA_PATH_INVALID = "extra_path_invalid"
    EXTRA_PATH_MISSING = "extra_path_missing"
    SESSIONS_FOLDER_MISSING = "sessions_folder_missing"
    SESSIONS_UNREADABLE = "sessions_unreadable"
    TRANSCRIPTS_NAMED_TWICE = "transcripts_named_twice"
    IMPORTS_UNREADABLE = "imports_unreadable"
    MORE_FILES = "more_files"
    PROJECT_MARK_UNREADABLE = "project_mark_unreadable"
    SCRIPTS_UNREAD = "scripts_unread"
    FILES_NOT_COMPARED = "files_not_compared"
    EVENT_PATHS_REFUSED = "event_paths_refused"
    WATCH_MOVED = "watch_moved"
    WATCH_OVERFLOWED = "watch_overflowed"
    WATCH_POLLS = "watch_polls"
    WATCH_STATE_UNWRITABLE = "watch_state_unwritable"
    SPOOL_UNREADABLE = "spool_unreadable"
    SPOOL_FILES_SET_ASIDE = "spool_files_set_aside"
    HOOKS_UNWRITTEN = "hooks_unwritten"
    HOOKS_ENDED = "hooks_ended"
    SESSION_NOTES_WAIT = "session_notes_wait"
    SESSION_ENDS_UNKEPT = "session_ends_unkept"

    # Processes and the broker
    CHANGES_KEPT = "changes_kept"
    DOOR_REFUSES = "door_refuses"
    SETTINGS_CHANGED = "settings_changed"
    SETTINGS_INVALID = "settings_invalid"
    FOLDER_OPEN_TO_OTHERS = "folder_open_to_others"
    VERSION_DIFFERS = "version_differs"
    PROCESS_GONE = "process_gone"
    PROCESS_STOPPED = "process_stopped"
    PROCESS_SILENT = "process_silent"
    PROCESS_STUCK = "process_stuck"
    PROCESS_MISSING = "process_missing"
    BROKER_READ_ONLY = "broker_read_only"

    # One search
    OTHER_MODEL = "other_model"
    QUERY_NOT_EMBEDDED = "query_not_embedded"
    KEYWORDS_ONLY = "keywords_only"
    VECTORS_ONLY = "vectors_only"
    SEARCH_LATE = "search_late"
    SEARCH_LATE_KEYWORDS = "search_late_keywords"
    INDEX_MISSING = "index_missing"
    QUEUE_UNREACHABLE = "queue_unreachable"
    CHANGES_UNSEEN = "changes_unseen"
    QUERY_CUT = "query_cut"
    AGENT_NOT_SEARCHED = "agent_not_searched"
    NOT_RERANKED = "not_reranked"


#: Conditions for which no vectors join the index.
HOLD_UP_VECTORS = frozenset(
    {
        ConditionCode.VECTORS_UNWRITABLE,
        ConditionCode.BUDGET_SPENT,
        ConditionCode.PROVIDER_MISSING,
        ConditionCode.PROVIDER_REFUSES,
        ConditionCode.PROVIDER_FAILS,
        ConditionCode.PROVIDER_USELESS,
        ConditionCode.DIMENSIONS_CHANGED,
        ConditionCode.BATCH_SUSPENDED,
    }
)

#: Conditions of a provider, which is their subject: one vector that joins the index ends them.
OF_PROVIDER = (
    ConditionCode.PROVIDER_REFUSES,
    ConditionCode.PROVIDER_FAILS,
    ConditionCode.PROVIDER_USELESS,
    ConditionCode.DIMENSIONS_CHANGED,
    ConditionCode.FALLBACK_UNUSABLE,
)

#: Conditions that explain why vectors wait: then their waiting is no condition of its own.
EXPLAIN_VECTORS = HOLD_UP_VECTORS | {
    ConditionCode.VECTORS_UNAVAILABLE,
    ConditionCode.PROVIDER_SILENT,
    ConditionCode.FALLBACK_UNUSABLE,
    ConditionCode.INDEX_UNREADABLE,
}

#: Conditions that a comparison of files and index finds anew each time.
OF_FILES = (
    ConditionCode.FILE_NAME_NOT_UTF8,
    ConditionCode.FILE_IS_LINK,
    ConditionCode.FILE_NOT_REGULAR,
    ConditionCode.PATH_TOO_LONG,
    ConditionCode.TOO_MANY_DOCUMENTS,
    ConditionCode.FOLDER_UNLISTABLE,
    ConditionCode.FOLDER_MISSING,
    ConditionCode.FOLDER_EMPTIED,
    ConditionCode.EXTRA_PATH_INVALID,
    ConditionCode.EXTRA_PATH_MISSING,
    ConditionCode.SESSIONS_FOLDER_MISSING,
    ConditionCode.SESSIONS_UNREADABLE,
    ConditionCode.TRANSCRIPTS_NAMED_TWICE,
    ConditionCode.IMPORTS_UNREADABLE,
    ConditionCode.MORE_FILES,
)


class StopReason(StrEnum):
    """Reason for which a batch job was asked to stop, as its ledger keeps it. `RESUMED`: its texts go on since then."""

    CANCELLED = "cancelled"
    OTHER_VECTORS = "other_vectors"
    SWITCHED_OFF = "switched_off"
    AGENT_GONE = "agent_gone"
    TOO_LONG = "too_long"
    RESUMED = "resumed"


@dataclass(frozen=True, slots=True)
class Condition:
    """One fact: `code` holds for `subject` (an agent, a file, an endpoint) since the Unix time `since`.

    `params` are the values that its sentence shows. No code reads the sentence.
    """

    code: ConditionCode
    subject: str = ""
    since: float | None = None
    params: Mapping[str, Param] = field(default_factory=dict, hash=False)

    def body(self) -> dict[str, Any]:
        """Return the condition for JSON."""
        return {"code": self.code.value, "subject": self.subject, "since": self.since, "params": dict(self.params)}

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Condition:
        """Return the condition that `body()` gave.

        Raises:
            KeyError, ValueError: it is of another version.
        """
        return cls(ConditionCode(body["code"]), str(body["subject"]), body["since"], body["params"])
