"""Sources of an agent's status."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from memory.documents.agent_files import AgentFiles
from memory.embedding.selection import ProviderChoice
from memory.index.generations import Generations
from memory.store.reader import StoreReader
from schemas.ports import PendingReader

Lease = Callable[[], AbstractContextManager[StoreReader | None]]


@dataclass(frozen=True, slots=True)
class StatusSources:
    """Sources of an agent's status.

    `lease` opens the answering generation. `pending` is None when this process cannot ask the queue. With
    `queue_expected`, a queue that does not answer is a trouble. `choice` is the provider of the settings, `queries` the
    provider that embeds queries now (None: the same one). `provider_failure` is the reason why queries skip it now.
    """

    files: AgentFiles
    generations: Generations
    lease: Lease
    pending: PendingReader | None
    queue_expected: bool
    choice: ProviderChoice
    queries: ProviderChoice | None = None
    provider_failure: str | None = None
