"""The answer of `status`, as dictionaries with known keys. What the parts mean: /docs of the service.

What stands in a `...Always` class is in every answer; the rest only where it is known.
"""

from __future__ import annotations

from typing import Literal, TypedDict


class DiskStateAlways(TypedDict):
    missing: int
    stale: int
    vanished: int
    growing: int
    kept: int
    leftOut: int
    excluded: int
    excludedFolders: int
    otherSessions: dict[str, int]


class DiskState(DiskStateAlways, total=False):
    """Files on disk against files in the index."""

    files: int


class BuildStateAlways(TypedDict):
    generation: str
    files: int
    ofFiles: int
    chunks: int
    vectorsReady: int
    vectorsPending: int


class BuildState(BuildStateAlways, total=False):
    """The index under construction, of how many documents, and when it will be done. `begunAt` is a Unix time."""

    begunAt: float
    lastChangeAt: float
    etaSeconds: float


class SourceCount(TypedDict):
    """Documents and chunks of one source: "memory" (notes) or "sessions" (transcripts)."""

    source: str
    files: int
    chunks: int


class IndexStateAlways(TypedDict):
    files: int
    chunks: int
    sourceCounts: list[SourceCount]
    vectorsReady: int
    vectorsPending: int
    vectorsRefused: int
    identityMatches: bool
    diskBytes: int


class IndexState(IndexStateAlways, total=False):
    """What the answering index holds. `lastCommitAt` is a Unix time."""

    generation: str
    building: str
    build: BuildState
    identity: str
    lastCommitAt: float


class QueueStateAlways(TypedDict):
    reachable: bool
    pending: int
    running: int


class QueueState(QueueStateAlways, total=False):
    """What waits."""

    oldestSeconds: float


class VectorStateAlways(TypedDict):
    inBatchJobs: int


class VectorState(VectorStateAlways, total=False):
    """Progress of the embeddings: chunks a second, seconds left."""

    rate: float
    etaSeconds: float
    advice: str


class WatchingStateAlways(TypedDict):
    mode: str
    overflows: int


class WatchingState(WatchingStateAlways, total=False):
    """How files are watched. Times are Unix times."""

    reason: str
    lastEventAt: float
    lastComparedAt: float


class OutdatedState(TypedDict):
    """A process runs with what it read of `file` at `readAt`, and that was changed at `changedAt` (Unix times)."""

    file: str
    changedAt: float
    readAt: float
    invalid: bool


class ProcessStateAlways(TypedDict):
    role: str
    host: str
    pid: int
    startedAt: float
    heardAt: float
    condition: str
    doing: list[str]


class ProcessState(ProcessStateAlways, total=False):
    """A process that should be there. `problem` is there when it is not well, `outdated` when its settings were changed
    since it read them. Times are Unix times."""

    problem: str
    version: str
    outdated: OutdatedState


class BrokerStateAlways(TypedDict):
    reachable: bool
    private: bool
    writable: bool


class BrokerState(BrokerStateAlways, total=False):
    """The server of the queue."""

    server: str
    persistence: str
    warning: str


class DiskUseAlways(TypedDict):
    indexes: int
    cache: int
    models: int
    broker: int
    log: int


class DiskUse(DiskUseAlways, total=False):
    """Bytes."""

    free: int


class VersionsAlways(TypedDict):
    recalld: str
    python: str
    sqlite: str


class Versions(VersionsAlways, total=False):
    """Of what answers."""

    sqliteVec: str
    broker: str


class DeepFindings(TypedDict):
    """What a deep look counted."""

    orphanRows: int
    unusedFiles: int
    damagedFiles: int


class AvailabilityAlways(TypedDict):
    available: bool


class Availability(AvailabilityAlways, total=False):
    """Whether a part works, and why not."""

    reason: str


class DeadLetter(TypedDict):
    """One document that could not be indexed. Times are Unix times."""

    source: str
    path: str
    reason: str
    errorClass: str
    attempts: int
    firstAt: float
    lastAt: float


class TroubleStateAlways(TypedDict):
    """A problem that is not over."""

    part: str
    message: str
    since: float


class TroubleState(TroubleStateAlways, total=False):
    """A problem that is not over. `code` is its stable name."""

    code: str


class SpentAlways(TypedDict):
    requests: int
    failed: int
    inputs: int
    tokens: int


class Spent(SpentAlways, total=False):
    """What was sent to a provider."""

    dollars: float


class UsageState(TypedDict):
    """What embedding with one provider and model cost, ever and today (UTC)."""

    provider: str
    model: str
    total: Spent
    today: Spent


class EndpointStatusAlways(TypedDict):
    condition: Literal["ok", "waiting", "cooling down", "failing", "stopped"]


class EndpointStatus(EndpointStatusAlways, total=False):
    """Whether requests to the provider's endpoint may leave."""

    until: float
    reason: str
    since: float


class AgentStatusAlways(TypedDict):
    agent: str
    ok: bool
    workspace: str
    provider: str
    requestedProvider: str
    usage: list[UsageState]
    disk: DiskState
    index: IndexState
    queue: QueueState
    vectors: VectorState
    vectorSearch: Availability
    textSearch: Availability
    mode: Literal["hybrid", "vector", "keyword", "none"]
    degraded: list[str]
    deadLetters: list[DeadLetter]
    notes: list[str]
    troubles: list[TroubleState]
    advice: list[TroubleState]


class AgentStatus(AgentStatusAlways, total=False):
    """One agent. `ok` only if nothing is missing, stale, failed, in trouble or waiting for too long."""

    model: str
    providerReason: str
    endpoint: EndpointStatus
    watch: str
    watching: WatchingState
    integrity: list[str]
    deep: DeepFindings


class CacheState(TypedDict):
    """The embedding cache."""

    enabled: bool
    entries: int
    diskBytes: int
    hits: int
    misses: int


class StatusAlways(TypedDict):
    ok: bool
    version: str
    home: str
    agents: list[AgentStatus]
    usage: list[UsageState]
    cache: CacheState
    processes: list[ProcessState]
    broker: BrokerState
    diskUse: DiskUse
    versions: Versions


class Status(StatusAlways, total=False):
    """All agents that the token may see."""

    hooks: str
