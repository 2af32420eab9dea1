"""Where an agent's status comes from."""

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
    """Where an agent's status comes from.

    `lease` opens the answering generation. `pending` is None when this process has no way to ask the
    queue; `queue_expected` makes a queue that does not answer a trouble (it is none when nothing is supposed to
    run); `choice` is what the settings ask for, `queries` what embeds queries now, the same where None;
    `provider_failure` is why that one is not asked at the moment.
    """

    files: AgentFiles
    generations: Generations
    lease: Lease
    pending: PendingReader | None
    queue_expected: bool
    choice: ProviderChoice
    queries: ProviderChoice | None = None
    provider_failure: str | None = None
