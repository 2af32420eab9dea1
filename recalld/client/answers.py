"""Types of the service's answers: dictionaries with known keys, explained by /docs of the service.

Written by `make docs` from `schemas`. Keys of an `...Always` class are in every answer, the other ones only if known.
"""

from __future__ import annotations

from typing import Literal, TypedDict


class AlsoIn(TypedDict):
    count: int
    paths: list[str]


class SearchResultAlways(TypedDict):
    path: str
    startLine: int
    endLine: int
    score: float
    snippet: str
    source: str


class SearchResult(SearchResultAlways, total=False):
    vectorScore: float
    textScore: float
    snippetStartLine: int
    snippetEndLine: int
    citation: str
    alsoIn: AlsoIn


class ConditionStateAlways(TypedDict):
    code: str
    subject: str
    params: dict[str, str | int | float]


class ConditionState(ConditionStateAlways, total=False):
    since: float


class PendingStateAlways(TypedDict):
    documents: int
    vectors: int


class PendingState(PendingStateAlways, total=False):
    oldestSeconds: float


class CorpusOutcomeAlways(TypedDict):
    corpus: Literal["memory", "wiki"]
    outcome: Literal["ok", "unavailable", "not-registered"]


class CorpusOutcome(CorpusOutcomeAlways, total=False):
    error: str


class SearchAnswerAlways(TypedDict):
    results: list[SearchResult]
    mode: Literal["hybrid", "vector", "keyword", "none"]
    fallback: bool
    citations: bool
    degraded: list[str]
    conditions: list[ConditionState]
    pending: PendingState
    tookMs: float


class SearchAnswer(SearchAnswerAlways, total=False):
    provider: str
    model: str
    fallbackReason: str
    corpora: list[CorpusOutcome]
    stale: bool
    disabled: bool
    unavailable: bool
    error: str
    warning: str
    action: str


GetAnswerAlways = TypedDict(
    "GetAnswerAlways",
    {
        "path": str,
        "status": Literal["ok", "not_found", "error"],
        "text": str,
        "from": int,
        "lines": int,
        "totalLines": int,
        "truncated": bool,
    },
)


class GetAnswer(GetAnswerAlways, total=False):
    nextFrom: int
    corpora: list[CorpusOutcome]
    disabled: bool
    unavailable: bool
    error: str
    warning: str
    action: str


class EndpointStatusAlways(TypedDict):
    condition: Literal["ok", "waiting", "cooling down", "failing", "stopped"]


class EndpointStatus(EndpointStatusAlways, total=False):
    until: float
    reason: str
    since: float


class SpentAlways(TypedDict):
    requests: int
    failed: int
    inputs: int
    tokens: int


class Spent(SpentAlways, total=False):
    dollars: float


class UsageState(TypedDict):
    provider: str
    model: str
    total: Spent
    today: Spent


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
    files: int


class SourceCount(TypedDict):
    source: str
    files: int
    chunks: int


class BuildStateAlways(TypedDict):
    generation: str
    files: int
    ofFiles: int
    chunks: int
    vectorsReady: int
    vectorsPending: int


class BuildState(BuildStateAlways, total=False):
    begunAt: float
    lastChangeAt: float
    etaSeconds: float


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
    oldestSeconds: float


class VectorStateAlways(TypedDict):
    inBatchJobs: int


class VectorState(VectorStateAlways, total=False):
    rate: float
    etaSeconds: float
    advice: str


class AvailabilityAlways(TypedDict):
    available: bool


class Availability(AvailabilityAlways, total=False):
    reason: str


class WatchingStateAlways(TypedDict):
    mode: str
    overflows: int


class WatchingState(WatchingStateAlways, total=False):
    reason: str
    lastEventAt: float
    lastComparedAt: float


class DeadLetter(TypedDict):
    source: str
    path: str
    reason: str
    errorClass: str
    attempts: int
    firstAt: float
    lastAt: float


class TroubleState(TypedDict):
    code: str
    subject: str
    since: float
    params: dict[str, str | int | float]
    part: str
    message: str


class DeepFindings(TypedDict):
    orphanRows: int
    unusedFiles: int
    damagedFiles: int


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
    conditions: list[ConditionState]
    deadLetters: list[DeadLetter]
    notes: list[str]
    troubles: list[TroubleState]
    advice: list[TroubleState]


class AgentStatus(AgentStatusAlways, total=False):
    model: str
    providerReason: str
    endpoint: EndpointStatus
    watch: str
    watching: WatchingState
    integrity: list[str]
    deep: DeepFindings


class CacheState(TypedDict):
    enabled: bool
    entries: int
    diskBytes: int
    hits: int
    misses: int


class OutdatedState(TypedDict):
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
    stuck: list[str]
    doing: list[str]


class ProcessState(ProcessStateAlways, total=False):
    code: str
    problem: str
    version: str
    outdated: OutdatedState


class BrokerStateAlways(TypedDict):
    reachable: bool
    private: bool
    writable: bool


class BrokerState(BrokerStateAlways, total=False):
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
    free: int


class VersionsAlways(TypedDict):
    recalld: str
    python: str
    sqlite: str


class Versions(VersionsAlways, total=False):
    sqliteVec: str
    broker: str


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
    hooks: str
