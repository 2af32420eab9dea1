"""Reading of the ledger of batch jobs by processes that never write it."""

from __future__ import annotations

import time
from pathlib import Path

from memory.store.sqlite_file import read_durable

#: `PRAGMA user_version` of the file.
VERSION = 1

OPEN_STATES = "('submitting', 'running', 'stopping')"

COUNT_TEXTS = f"""
SELECT count(*) FROM texts WHERE job IN (
    SELECT id FROM jobs WHERE agent = ? AND max(made_at, looked_at, tried_at) >= ? AND state IN {OPEN_STATES}
)
"""  # noqa: S608 - constants


def ledger_path(home: Path) -> Path:
    """Return the path of a home's ledger."""
    return home / "cache" / "batch_jobs.sqlite"


def texts_in_jobs(home: Path, agent: str, *, looked_within_seconds: float) -> int:
    """Return the number of an agent's texts in jobs that were made, or looked at, in the last so many seconds.

    A ledger that cannot be read right now counts as empty.
    """
    bindings = (agent, time.time() - looked_within_seconds)
    return read_durable(ledger_path(home), VERSION, lambda file: int(next(file.execute(COUNT_TEXTS, bindings))[0]), 0)
