"""How the files on disk and the index compare, in numbers."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from memory.documents.agent_files import Scan
from memory.documents.known_files import KnownFiles
from memory.documents.session_roots import SESSIONS_SOURCE
from memory.documents.walk import EXCLUDED, EXCLUDED_FOLDERS
from schemas.documents import DocumentKey
from schemas.settings_sections import SyncSessions
from schemas.status import DiskState

#: A transcript that never rests is handed over after fewer quiet times (`producers.tailing`), and this longer nobody
#: wonders.
_QUIET_TIMES = 5
_SPARE_SECONDS = 5.0


def compare(
    scan: Scan,
    known: KnownFiles,
    absent: Sequence[DocumentKey],
    forgotten: Collection[DocumentKey],
    *,
    sessions: SyncSessions,
    now: float,
    watched: bool,
    left_out: Collection[DocumentKey] = (),
) -> DiskState:
    """Count what differs: `scan` holds what is not as it is `known`, `absent` names what is known and not there.

    Those transcripts of it that are `forgotten` are to leave the index.

    `now` is Unix time: a transcript that was written to a moment ago is growing, not stale, if it is `watched`. Those
    that a person `left_out` are neither missing nor stale.
    """
    moving_seconds = _QUIET_TIMES * sessions.quiet_seconds + _SPARE_SECONDS
    missing = stale = growing = out = 0
    for key, stat in scan.documents.items():
        if key in left_out:
            out += 1
        elif watched and key.source == SESSIONS_SOURCE and abs(now - stat.mtime_ns / 1e9) < moving_seconds:
            growing += 1
        elif key not in known:
            missing += 1
        else:
            stale += 1
    transcripts = sum(key.source == SESSIONS_SOURCE for key in absent)
    # Below a folder that could not be listed nothing is known to be gone.
    notes_gone = len(absent) - transcripts if scan.complete else 0
    return DiskState(
        files=scan.count,
        missing=missing,
        stale=stale,
        vanished=notes_gone + len(forgotten),
        growing=growing,
        left_out=out,
        excluded=scan.left_out.get(EXCLUDED, 0),
        excluded_folders=scan.left_out.get(EXCLUDED_FOLDERS, 0),
        other_sessions={
            kind: count for kind, count in sorted(scan.left_out.items()) if kind not in (EXCLUDED, EXCLUDED_FOLDERS)
        },
        kept=transcripts - len(forgotten),
    )
