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


class DiskState(DiskStateAlways, total=False):
    """Files on disk against files in the index."""

    files: int


class IndexStateAlways(TypedDict):
    files: int
    chunks: int
    vectorsReady: int
    vectorsPending: int
    vectorsRefused: int
    identityMatches: bool
    diskBytes: int


class IndexState(IndexStateAlways, total=False):
    """What the answering index holds. `lastCommitAt` is a Unix time."""

    generation: str
    building: str
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


class TroubleState(TypedDict):
    """A problem that is not over."""

    part: str
    message: str
    since: float


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
    condition: Literal["ok", "cooling down", "not answering", "stopped"]


class EndpointStatus(EndpointStatusAlways, total=False):
    """Whether requests to the provider's endpoint may leave."""

    until: float
    reason: str


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
    deadLetters: list[DeadLetter]
    notes: list[str]
    troubles: list[TroubleState]


class AgentStatus(AgentStatusAlways, total=False):
    """One agent. `ok` only if nothing is missing, stale, failed, in trouble or waiting for too long."""

    model: str
    providerReason: str
    endpoint: EndpointStatus
    watch: str
    integrity: list[str]


class CacheState(TypedDict):
    """The embedding cache."""

    enabled: bool
    entries: int
    diskBytes: int


class StatusAlways(TypedDict):
    ok: bool
    version: str
    home: str
    agents: list[AgentStatus]
    usage: list[UsageState]
    cache: CacheState


class Status(StatusAlways, total=False):
    """All agents that the token may see."""

    hooks: str
