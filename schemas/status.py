"""What `recalld status` and `GET /v1/status` say."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from schemas.ports import EndpointStatus, OutdatedState, Pending, WatchingState
from schemas.search import ConditionState, Mode


class _Wire(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True)


class DiskState(_Wire):
    """Files on disk against files in the index.

    `files` is None when the disk was not looked at. `missing` are on disk and not in the index, `stale`
    differ in size, times or inode, `vanished` are in the index, not on disk, and to be forgotten. Transcripts that
    were written to a moment ago are `growing` instead; those whose memory stays although no configured folder holds
    them (any more) are `kept`. What could not be read is `left_out`, instead of missing or stale, when its dead letter
    was dropped, until its file changes.

    Files that the settings leave out are none of these: those that globs exclude (`excluded`, and `excluded_folders`
    that were not looked into), and transcripts by the kinds of their sessions (`other_sessions`).
    """

    files: int | None = None
    missing: int = 0
    stale: int = 0
    vanished: int = 0
    growing: int = 0
    kept: int = 0
    left_out: int = 0
    excluded: int = 0
    excluded_folders: int = 0
    other_sessions: dict[str, int] = {}


class BuildState(_Wire):
    """The generation under construction: what it holds, of how many documents, and how long it will take.

    `begun_at` and `last_change_at` are Unix times; `eta_seconds` is None when nobody can say.
    """

    generation: str
    files: int
    of_files: int
    chunks: int
    vectors_ready: int
    vectors_pending: int
    begun_at: float | None = None
    last_change_at: float | None = None
    eta_seconds: float | None = None


class SourceCount(_Wire):
    """Documents and chunks of one source: "memory" (notes) or "sessions" (transcripts)."""

    source: str
    files: int
    chunks: int


class IndexState(_Wire):
    """What the answering generation holds, and `build`, how far the one is that is to replace it."""

    files: int = 0
    chunks: int = 0
    source_counts: tuple[SourceCount, ...] = ()
    vectors_ready: int = 0
    vectors_pending: int = 0
    vectors_refused: int = 0
    generation: str | None = None
    building: str | None = None
    build: BuildState | None = None
    identity: str | None = None
    identity_matches: bool = True
    last_commit_at: float | None = None
    disk_bytes: int = 0


class QueueState(_Wire):
    """What waits. `reachable` is False when the broker does not answer; the numbers then mean nothing."""

    reachable: bool = True
    pending: int = 0
    running: int = 0
    oldest_seconds: float | None = None

    @classmethod
    def of(cls, pending: Pending | None, *, now: float) -> QueueState:
        """Return what waits at Unix time `now`; `pending` is None while the broker does not answer."""
        if pending is None:
            return cls(reachable=False)
        oldest = round(max(0.0, now - pending.oldest_at), 3) if pending.oldest_at is not None else None
        return cls(pending=pending.documents, running=pending.running, oldest_seconds=oldest)


class VectorState(_Wire):
    """Progress of the embeddings: chunks a second, seconds left (None: not known), advice when it will take long.

    `in_batch_jobs` counts texts that are in jobs of the provider's Batch API.
    """

    rate: float | None = None
    eta_seconds: float | None = None
    advice: str | None = None
    in_batch_jobs: int = 0


class ProcessState(_Wire):
    """A process that should be there.

    `role` is the command it runs: up, watch, work or serve, or "index" for workers of a command that ends by itself.
    `condition` is "well", or: "stuck" (a thread does not get on), "stopped" (by a signal), "silent" (nothing was heard
    of it for long), "gone" (it ended without a word); `code` is that as a condition. `stuck` names the threads that do
    not get on. `heard_at` is when it last said that it lives. `doing` says what
    its threads have been at for ten seconds and more, which need not be a problem. `version` is that of the recalld it
    runs; `outdated` says that it runs with settings that were changed since.
    """

    role: str
    host: str
    pid: int
    started_at: float
    heard_at: float
    condition: str
    code: str | None = None
    problem: str | None = None
    stuck: tuple[str, ...] = ()
    doing: tuple[str, ...] = ()
    version: str | None = None
    outdated: OutdatedState | None = None


class BrokerState(_Wire):
    """The server of the queue. `persistence` says what of it would survive a crash; `private`: it is recalld's own.

    `writable` is False when it takes nothing new: what changes is not queued then.
    """

    reachable: bool
    private: bool
    server: str | None = None
    persistence: str | None = None
    warning: str | None = None
    writable: bool = True


class DiskUse(_Wire):
    """Bytes: what recalld keeps, by what it is (indexes, cache, models, broker, log), and what is free there."""

    indexes: int = 0
    cache: int = 0
    models: int = 0
    broker: int = 0
    log: int = 0
    free: int | None = None


class Versions(_Wire):
    """Of what answers."""

    recalld: str
    python: str
    sqlite: str
    sqlite_vec: str | None = None
    broker: str | None = None


class DeepFindings(_Wire):
    """What `deep` counted: rows that belong to nothing, index files that nobody uses, and damaged ones set aside."""

    orphan_rows: int = 0
    unused_files: int = 0
    damaged_files: int = 0


class Availability(_Wire):
    """Whether a part works, and why not."""

    available: bool
    reason: str | None = None


class DeadLetter(_Wire):
    """One document that could not be indexed."""

    source: str
    path: str
    reason: str
    error_class: str
    attempts: int
    first_at: float
    last_at: float


class TroubleState(ConditionState):
    """A condition that is not over, with its words: `part` names what has the trouble, `message` what to do, too."""

    part: str
    message: str
    since: float


class Spent(_Wire):
    """What was sent to a provider: requests, those that failed, texts and tokens that came back; dollars if known."""

    requests: int = 0
    failed: int = 0
    inputs: int = 0
    tokens: int = 0
    dollars: float | None = None


class UsageState(_Wire):
    """What embedding with one provider and model cost, ever and today (UTC).

    A request that carried texts of several agents counts as one for each of them.
    """

    provider: str
    model: str
    total: Spent
    today: Spent


class AgentStatus(_Wire):
    """One agent. `ok` is True only if nothing is missing, stale, failed, in trouble or waiting for too long.

    `mode` and `degraded` are what a search says now. `advice` is what would make it better; nothing is wrong.
    """

    agent: str
    ok: bool
    workspace: str
    provider: str
    requested_provider: str
    model: str | None = None
    provider_reason: str | None = None
    endpoint: EndpointStatus | None = None
    usage: tuple[UsageState, ...] = ()
    disk: DiskState
    index: IndexState
    queue: QueueState
    vectors: VectorState
    vector_search: Availability
    text_search: Availability
    mode: Mode = "none"
    degraded: tuple[str, ...] = ()
    conditions: tuple[ConditionState, ...] = ()
    watch: str | None = None
    watching: WatchingState | None = None
    dead_letters: tuple[DeadLetter, ...] = ()
    notes: tuple[str, ...] = ()
    troubles: tuple[TroubleState, ...] = ()
    advice: tuple[TroubleState, ...] = ()
    integrity: tuple[str, ...] | None = None
    deep: DeepFindings | None = None


class CacheState(_Wire):
    """The embedding cache. `hits` and `misses` count, ever, texts that indexing found there or asked for."""

    enabled: bool
    entries: int = 0
    disk_bytes: int = 0
    hits: int = 0
    misses: int = 0


class Status(_Wire):
    """All agents that the caller may see. `usage` is what all agents cost together; only for who may see them all.

    `hooks`: where hooks may be sent by HTTP, followed by the program's name; None when nobody takes them.
    `processes` are those that should be there.
    """

    ok: bool
    version: str
    home: str
    agents: tuple[AgentStatus, ...]
    usage: tuple[UsageState, ...] = ()
    cache: CacheState
    processes: tuple[ProcessState, ...] = ()
    broker: BrokerState
    disk_use: DiskUse
    versions: Versions
    hooks: str | None = None
