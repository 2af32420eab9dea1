"""Answer of `recalld status` and `GET /v1/status`: the one definition of every field."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pydantic import Field

from schemas.conditions import Condition, ConditionCode
from schemas.documents import DocumentKey
from schemas.search import Mode, Wire


class EndpointCondition(StrEnum):
    """Condition of an embedding endpoint.

    Waiting: requests leave, and one has been without an answer for long. Failing: the last requests got no usable
    answer, and are tried again. Stopped: the endpoint refused for good.
    """

    OK = "ok"
    WAITING = "waiting"
    COOLING_DOWN = "cooling down"
    FAILING = "failing"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class EndpointStatus:
    """State of a provider's endpoint, shared by all processes that use the account.

    Requests leave again at Unix time `until`; None means now. `reason` is the provider's refusal, or names the endpoint
    that does not answer. A request has been without an answer since Unix time `since`.
    """

    condition: EndpointCondition
    until: float | None = None
    reason: str | None = None
    since: float | None = None


@dataclass(frozen=True, slots=True)
class OutdatedState:
    """Settings that changed since a process read them.

    `file` is the settings file written last, at Unix time `changed_at`. The process read its settings at `read_at`.
    `invalid`: the settings are invalid now.
    """

    file: str
    changed_at: float
    read_at: float
    invalid: bool = False


@dataclass(frozen=True, slots=True)
class WatchingState:
    """State of watching an agent's files: `mode` is "events", "polling" or "off"; `reason` explains any but "events".

    `overflows` counts how often the system lost events; all files were compared then. `last_event_at` and
    `last_compared_at` (with the index) are Unix times.
    """

    mode: str
    reason: str | None = None
    overflows: int = 0
    last_event_at: float | None = None
    last_compared_at: float | None = None

    @property
    def sentence(self) -> str:
        """Return the state in words."""
        text = f"{self.mode}: {self.reason}" if self.reason else self.mode
        return f"{text} ({self.overflows} queue overflows)" if self.overflows else text


class DiskState(Wire):
    """Files on disk compared with files in the index.

    `files` is None when the disk was not looked at. `missing` files are on disk and not in the index. `stale` files
    differ in size, times or inode. `vanished` files are in the index, not on disk, and to be forgotten.
    `growing` transcripts were written to a moment ago: they are neither missing nor stale. `settling` notes were
    changed or deleted a moment ago: they are not missing, stale or vanished yet. `kept` transcripts stay in memory
    although no configured folder holds them. The user dropped the dead letters of `left_out` files: they are neither
    missing nor stale until they change.

    The settings leave out other files: globs exclude files (`excluded`) and whole folders (`excluded_folders`), and
    session kinds exclude transcripts (`other_sessions`, by kind).
    """

    files: int | None = None
    missing: int = 0
    stale: int = 0
    vanished: int = 0
    growing: int = 0
    settling: int = 0
    kept: int = 0
    left_out: int = 0
    excluded: int = 0
    excluded_folders: int = 0
    other_sessions: dict[str, int] = Field({})


class BuildState(Wire):
    """Progress of the generation under construction: it holds `files` of `of_files` documents.

    `begun_at` and `last_change_at` are Unix times. `eta_seconds` is None while there is no estimate.
    """

    generation: str
    files: int
    of_files: int
    chunks: int
    vectors_ready: int
    vectors_pending: int
    vectors_held: int = 0
    begun_at: float | None = None
    last_change_at: float | None = None
    eta_seconds: float | None = None


class SourceCount(Wire):
    """Documents and chunks of one source: "memory" (notes) or "sessions" (transcripts)."""

    source: str
    files: int
    chunks: int


class Counts(Wire):
    """Counts of a generation. `lastCommitAt` is Unix time, absent before the first commit.

    `vectorsHeld` chunks cost money and wait for consent. They do not count as pending.
    """

    files: int = 0
    chunks: int = 0
    vectors_ready: int = 0
    vectors_pending: int = 0
    vectors_refused: int = 0
    vectors_held: int = 0
    last_commit_at: float | None = None


class IndexCounts(Counts):
    """Counts of a generation, and its bytes on disk.

    `deletedOnDisk` counts deleted chunks whose words are not overwritten in its file yet, since Unix time
    `deletedSince`.
    """

    disk_bytes: int = 0
    deleted_on_disk: int = 0
    deleted_since: float | None = None


class IndexState(IndexCounts):
    """Contents of the answering generation, and progress of the next one (`build`).

    Of the `unread` ones among the files nothing is read: they are transcripts of no known format. `unreadScripts` are
    scripts that the model does not read, with the number of documents that keywords alone find because of each.
    `sentTo` is the address of the fleet to which this machine sends its documents; then `files` counts the sent ones.
    """

    unread: int = 0
    unread_scripts: dict[str, int] = Field({})
    source_counts: tuple[SourceCount, ...] = ()
    generation: str | None = None
    building: str | None = None
    build: BuildState | None = None
    identity: str | None = None
    identity_matches: bool = True
    sent_to: str | None = None


class QueueState(Wire):
    """Waiting and running work. The numbers mean nothing unless the broker is `reachable`."""

    reachable: bool = True
    pending: int = 0
    running: int = 0
    oldest_seconds: float | None = None


class VectorState(Wire):
    """Progress of the embeddings: chunks a second, seconds left (None: not known), advice before a long wait.

    `in_batch_jobs` counts texts that are in jobs of the provider's Batch API. A local model gives `sentences_wanted` of
    the newest chunks vectors of their sentences as well; `sentences_ready` have them.
    """

    rate: float | None = None
    eta_seconds: float | None = None
    advice: str | None = None
    in_batch_jobs: int = 0
    sentences_ready: int = 0
    sentences_wanted: int = 0


class ProcessState(Wire):
    """State of a process that should run.

    `role` is the command it runs: up, watch, work or serve, or "index" for workers of a command that ends by itself.
    `condition` is "well", "stuck" (a thread makes no progress), "stopped" (by a signal), "silent" (no heartbeat for
    long) or "gone" (it ended without taking its heartbeat back). `code` is the same as a condition.
    `heard_at` is the time of the last heartbeat. `stuck` names the threads without progress. `doing` names steps that
    have taken ten seconds and more, which need not be a problem. `version` is recalld's version in that process.
    `outdated` names settings that changed since the process read them.
    """

    role: str
    host: str
    pid: int
    started_at: float
    heard_at: float
    condition: str
    code: ConditionCode | None = None
    problem: str | None = None
    stuck: tuple[str, ...] = ()
    doing: tuple[str, ...] = ()
    version: str | None = None
    outdated: OutdatedState | None = None


class BrokerState(Wire):
    """State of the queue's server. `persistence` names the data that survives a crash. A `private` one is ours.

    `writable` is False while the server refuses writes: changes are not queued then.
    """

    reachable: bool
    private: bool
    server: str | None = None
    persistence: str | None = None
    warning: str | None = None
    writable: bool = True

    @property
    def refusal(self) -> str | None:
        """Return the reason why it takes nothing new; None if it does, or does not answer."""
        return None if self.writable else self.warning or "the broker takes nothing new"


class DiskUse(Wire):
    """Bytes that recalld keeps (indexes, cache, models, broker, log), and bytes that are free on that disk."""

    indexes: int = 0
    cache: int = 0
    models: int = 0
    broker: int = 0
    log: int = 0
    free: int | None = None


class Versions(Wire):
    """Versions of the answering process and its libraries."""

    recalld: str
    python: str
    sqlite: str
    sqlite_vec: str | None = None
    broker: str | None = None


class DeepFindings(Wire):
    """Counts of a deep look: rows without an owner, unused index files, and damaged index files set aside."""

    orphan_rows: int = 0
    unused_files: int = 0
    damaged_files: int = 0


class Availability(Wire):
    """Availability of one side of search, with the reason when it is off."""

    available: bool
    reason: str | None = None


class Probes(Wire):
    """Answers to a probe: a word was embedded as a query, and vectors can be searched."""

    embedding: Availability
    vectors: Availability


class DeadLetter(Wire):
    """Document that could not be indexed, or only in part, with the reason in words.

    `errorClass` is `memory.store.dead_letters.EMBEDDING_REFUSED` if only some of its vectors are missing.
    """

    source: str
    path: str
    reason: str
    error_class: str
    attempts: int
    first_at: float
    last_at: float

    @property
    def key(self) -> DocumentKey:
        """Return the key of the document."""
        return DocumentKey(self.source, self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class TroubleState(Condition):
    """A condition that still holds. `part` names the part with the trouble, `message` holds the remedy."""

    part: str
    message: str
    since: float


class Spent(Wire):
    """Requests to a provider, failed requests, embedded texts and tokens, and dollars where the price is known."""

    requests: int = 0
    failed: int = 0
    inputs: int = 0
    tokens: int = 0
    dollars: float | None = None


class UsageState(Wire):
    """Cost of embedding with one provider and model, in total and today (UTC).

    A request with texts of several agents counts once for each of them.
    """

    provider: str
    model: str
    total: Spent
    today: Spent


class BackendStatus(Wire):
    """State of the program that answers an agent's searches instead of recalld's own index, or of the fallback from it.

    `problem` is the reason of a fallback, or of the last update that failed. `files` and `chunks` are documents that
    the backend counts. `updated_at` is Unix time.
    """

    backend: str
    fallback_from: str | None = None
    problem: str | None = None
    provider: str | None = None
    model: str | None = None
    files: int | None = None
    chunks: int | None = None
    vectors: Availability | None = None
    search_mode: str | None = None
    updated_at: float | None = None


class AgentStatus(Wire):
    """State of one agent. `ok` is True only if there are no `troubles`.

    `mode`, `degraded` and `conditions` are those of a search made now; `conditions` are the codes of `degraded`.
    `troubles` still hold. Documents that failed, or have no job, are among them. `advice` names possible improvements
    of an agent that is well.
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
    conditions: tuple[Condition, ...] = ()
    watch: str | None = None
    watching: WatchingState | None = None
    dead_letters: tuple[DeadLetter, ...] = ()
    notes: tuple[str, ...] = ()
    backend: BackendStatus | None = None
    troubles: tuple[TroubleState, ...] = ()
    advice: tuple[TroubleState, ...] = ()
    integrity: tuple[str, ...] | None = None
    deep: DeepFindings | None = None
    probes: Probes | None = None


class CacheState(Wire):
    """State of the embedding cache. `hits` and `misses` count all look-ups by indexing so far."""

    enabled: bool
    entries: int = 0
    disk_bytes: int = 0
    hits: int = 0
    misses: int = 0


class FleetState(Wire):
    """Sums over all agents of a fleet that the caller may see.

    `pending` documents wait, None while the broker does not answer. Conditions are reported about the `troubled`
    agents, or they have dead letters, or documents wait for long; `moreTroubled` are not named. `spentTenants` have
    used their tokens of today. `troubles` are those of all agents.
    """

    agents: int
    documents: int
    chunks: int
    pending: int | None = None
    vectors_pending: int
    vectors_refused: int
    dead_letters: int
    troubled: tuple[str, ...] = ()
    more_troubled: int = 0
    spent_tenants: tuple[str, ...] = ()
    troubles: tuple[TroubleState, ...] = ()


class Status(Wire):
    """State of all agents that the caller may see. `usage`, of all agents together, is there for a caller who sees all.

    Of a fleet, `fleet` has the sums, and `agents` a part of the agents.

    `hooks` is the URL for hooks, without the program's name at its end; None while no process takes hooks.
    `processes` are those that should run.
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
    fleet: FleetState | None = None
