"""Types of the service's answers: dictionaries with known keys, explained by /docs of the service.

Written by `make docs` from `schemas`. Keys that are not required are in an answer only if they are known.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal, TypedDict

if sys.version_info >= (3, 11):
    from typing import NotRequired
elif TYPE_CHECKING:
    from typing_extensions import NotRequired


class AlsoIn(TypedDict):
    count: int
    paths: list[str]


class SearchResult(TypedDict):
    agent: NotRequired[str]
    path: str
    startLine: int
    endLine: int
    score: float
    vectorScore: NotRequired[float]
    textScore: NotRequired[float]
    rerankScore: NotRequired[float]
    snippet: str
    snippetStartLine: NotRequired[int]
    snippetEndLine: NotRequired[int]
    source: str
    citation: NotRequired[str]
    alsoIn: NotRequired[AlsoIn]
    title: NotRequired[str]
    resume: NotRequired[str]


class Condition(TypedDict):
    code: str
    subject: str
    since: NotRequired[float]
    params: dict[str, str | int | float]


class PendingState(TypedDict):
    documents: int
    oldestSeconds: NotRequired[float]
    vectors: int


class CorpusOutcome(TypedDict):
    corpus: Literal["memory", "wiki"]
    outcome: Literal["ok", "unavailable", "not-registered"]
    error: NotRequired[str]


class SearchAnswer(TypedDict):
    results: list[SearchResult]
    provider: NotRequired[str]
    model: NotRequired[str]
    mode: Literal["hybrid", "vector", "keyword", "none"]
    fallback: bool
    fallbackReason: NotRequired[str]
    citations: bool
    degraded: list[str]
    conditions: list[Condition]
    pending: PendingState
    tookMs: float
    corpora: NotRequired[list[CorpusOutcome]]
    stale: NotRequired[bool]
    disabled: NotRequired[bool]
    unavailable: NotRequired[bool]
    error: NotRequired[str]
    warning: NotRequired[str]
    action: NotRequired[str]


GetAnswer = TypedDict(
    "GetAnswer",
    {
        "agent": "NotRequired[str]",
        "path": str,
        "status": Literal["ok", "not_found", "error"],
        "text": str,
        "from": int,
        "lines": int,
        "totalLines": int,
        "truncated": bool,
        "nextFrom": "NotRequired[int]",
        "corpora": "NotRequired[list[CorpusOutcome]]",
        "disabled": "NotRequired[bool]",
        "unavailable": "NotRequired[bool]",
        "error": "NotRequired[str]",
        "warning": "NotRequired[str]",
        "action": "NotRequired[str]",
    },
)


class EndpointStatus(TypedDict):
    condition: Literal["ok", "waiting", "cooling down", "failing", "stopped"]
    until: NotRequired[float]
    reason: NotRequired[str]
    since: NotRequired[float]


class Spent(TypedDict):
    requests: int
    failed: int
    inputs: int
    tokens: int
    dollars: NotRequired[float]


class UsageState(TypedDict):
    provider: str
    model: str
    total: Spent
    today: Spent


class DiskState(TypedDict):
    files: NotRequired[int]
    missing: int
    stale: int
    vanished: int
    growing: int
    settling: int
    kept: int
    leftOut: int
    excluded: int
    excludedFolders: int
    otherSessions: dict[str, int]


class SourceCount(TypedDict):
    source: str
    files: int
    chunks: int


class BuildState(TypedDict):
    generation: str
    files: int
    ofFiles: int
    chunks: int
    vectorsReady: int
    vectorsPending: int
    vectorsHeld: int
    begunAt: NotRequired[float]
    lastChangeAt: NotRequired[float]
    etaSeconds: NotRequired[float]


class IndexState(TypedDict):
    files: int
    chunks: int
    vectorsReady: int
    vectorsPending: int
    vectorsRefused: int
    vectorsHeld: int
    lastCommitAt: NotRequired[float]
    diskBytes: int
    deletedOnDisk: int
    deletedSince: NotRequired[float]
    unread: int
    unreadScripts: dict[str, int]
    sourceCounts: list[SourceCount]
    generation: NotRequired[str]
    building: NotRequired[str]
    build: NotRequired[BuildState]
    identity: NotRequired[str]
    identityMatches: bool
    sentTo: NotRequired[str]


class QueueState(TypedDict):
    reachable: bool
    pending: int
    running: int
    oldestSeconds: NotRequired[float]


class VectorState(TypedDict):
    rate: NotRequired[float]
    etaSeconds: NotRequired[float]
    advice: NotRequired[str]
    inBatchJobs: int
    sentencesReady: int
    sentencesWanted: int


class Availability(TypedDict):
    available: bool
    reason: NotRequired[str]


class WatchingState(TypedDict):
    mode: str
    reason: NotRequired[str]
    overflows: int
    lastEventAt: NotRequired[float]
    lastComparedAt: NotRequired[float]


class DeadLetter(TypedDict):
    source: str
    path: str
    reason: str
    errorClass: str
    attempts: int
    firstAt: float
    lastAt: float


class BackendStatus(TypedDict):
    backend: str
    fallbackFrom: NotRequired[str]
    problem: NotRequired[str]
    provider: NotRequired[str]
    model: NotRequired[str]
    files: NotRequired[int]
    chunks: NotRequired[int]
    vectors: NotRequired[Availability]
    searchMode: NotRequired[str]
    updatedAt: NotRequired[float]


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


class Probes(TypedDict):
    embedding: Availability
    vectors: Availability


class AgentStatus(TypedDict):
    agent: str
    ok: bool
    workspace: str
    provider: str
    requestedProvider: str
    model: NotRequired[str]
    providerReason: NotRequired[str]
    endpoint: NotRequired[EndpointStatus]
    usage: list[UsageState]
    disk: DiskState
    index: IndexState
    queue: QueueState
    vectors: VectorState
    vectorSearch: Availability
    textSearch: Availability
    mode: Literal["hybrid", "vector", "keyword", "none"]
    degraded: list[str]
    conditions: list[Condition]
    watch: NotRequired[str]
    watching: NotRequired[WatchingState]
    deadLetters: list[DeadLetter]
    notes: list[str]
    backend: NotRequired[BackendStatus]
    troubles: list[TroubleState]
    advice: list[TroubleState]
    integrity: NotRequired[list[str]]
    deep: NotRequired[DeepFindings]
    probes: NotRequired[Probes]


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


class ProcessState(TypedDict):
    role: str
    host: str
    pid: int
    startedAt: float
    heardAt: float
    condition: str
    code: NotRequired[str]
    problem: NotRequired[str]
    stuck: list[str]
    doing: list[str]
    version: NotRequired[str]
    outdated: NotRequired[OutdatedState]


class BrokerState(TypedDict):
    reachable: bool
    private: bool
    server: NotRequired[str]
    persistence: NotRequired[str]
    warning: NotRequired[str]
    writable: bool


class DiskUse(TypedDict):
    indexes: int
    cache: int
    models: int
    broker: int
    log: int
    free: NotRequired[int]


class Versions(TypedDict):
    recalld: str
    python: str
    sqlite: str
    sqliteVec: NotRequired[str]
    broker: NotRequired[str]


class FleetState(TypedDict):
    agents: int
    documents: int
    chunks: int
    pending: NotRequired[int]
    vectorsPending: int
    vectorsRefused: int
    deadLetters: int
    troubled: list[str]
    moreTroubled: int
    spentTenants: list[str]
    troubles: list[TroubleState]


class Status(TypedDict):
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
    hooks: NotRequired[str]
    fleet: NotRequired[FleetState]


class PromptBlock(TypedDict):
    kind: str
    source: str
    characters: int
    tokens: int


class PromptAnswer(TypedDict):
    text: str
    blocks: list[PromptBlock]
    disabled: NotRequired[bool]
    tookMs: float


class BootstrapFile(TypedDict):
    path: str
    characters: int
    shown: int
    tokens: int
    truncated: bool
    problem: NotRequired[str]
    text: NotRequired[str]


class ToolCost(TypedDict):
    name: str
    characters: int
    tokens: int


class IndexedDocument(TypedDict):
    path: str
    source: str
    bytes: int
    chunks: int
    tokens: int


class ContextReport(TypedDict):
    files: list[BootstrapFile]
    standing: list[PromptBlock]
    dailyNotes: list[PromptBlock]
    tools: list[ToolCost]
    indexed: list[IndexedDocument]
    error: NotRequired[str]


class FlushAnswer(TypedDict):
    due: bool
    skip: NotRequired[str]
    systemPrompt: NotRequired[str]
    prompt: NotRequired[str]
    path: NotRequired[str]
    silentToken: NotRequired[str]
    model: NotRequired[str]
    cycle: NotRequired[int]


class PruneAnswer(TypedDict):
    messages: list[dict[str, Any]]
    touchedAt: NotRequired[float]
    decisions: dict[str, Literal["trim", "clear"]]
    charactersBefore: int
    charactersAfter: int
