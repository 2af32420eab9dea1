"""Reading of the ledger of batch jobs by processes that never write it."""

from __future__ import annotations

import time
from pathlib import Path

from memory.embedding.table_reader import table_reader
from schemas.agents import Scope
from schemas.settings import Settings

#: `PRAGMA user_version` of the file.
VERSION = 1

OPEN_STATES = "('submitting', 'running', 'stopping')"

COUNT_TEXTS = f"""
SELECT count(*) FROM {{texts}} WHERE {{mine}} AND job IN (
    SELECT id FROM {{jobs}} WHERE {{mine}} AND agent = :agent AND state IN {OPEN_STATES}
    AND (made_at >= :since OR looked_at >= :since OR tried_at >= :since)
)
"""  # noqa: S608 - constants


def ledger_path(home: Path) -> Path:
    """Return the path of a home's ledger."""
    return home / "cache" / "batch_jobs.sqlite"


def has_ledger(settings: Settings) -> bool:
    """Return True if batch jobs may have been noted: in a home without the file, there were none."""
    return settings.store.url is not None or ledger_path(settings.home).exists()


def texts_in_jobs(settings: Settings, agent: str, *, looked_within_seconds: float) -> int:
    """Return the number of an agent's texts in jobs that were made, or looked at, in the last so many seconds.

    A ledger that cannot be read right now counts as empty.
    """
    read = table_reader(settings, Scope.of(agent).tenant, ledger_path(settings.home), VERSION)
    return sum(count for (count,) in read(COUNT_TEXTS, {"agent": agent, "since": time.time() - looked_within_seconds}))
