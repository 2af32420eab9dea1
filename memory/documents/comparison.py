"""Comparison of the files on disk with the index: counts, deletions, documents that a user left out.

`compare` compares an agent's files with one generation, for status (`memory.status.index`), for jobs
(`memory.index.completion.lacking_documents`) and for `producers.reconciler`. That module's `compare_agent` puts the
comparisons with the answering generation and the one under construction together, and its `reconcile` compares and
enqueues. Commands compare by `recalld.wiring.compare`, and index the documents in process or enqueue them.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from memory.documents.agent_files import AgentFiles
from memory.documents.scan import EXCLUDED, EXCLUDED_FOLDERS, KnownFiles, Scan, printable
from memory.store.reader import StoreReader
from schemas.conditions import Condition, ConditionCode
from schemas.documents import DocumentKey, FileStat
from schemas.errors import RecalldError
from schemas.settings import Sync
from schemas.status import DiskState

#: A transcript or note that never rests is enqueued after fewer quiet times (`producers.dispatcher`) and these spare
#: seconds.
_QUIET_TIMES, _NOTE_QUIET_TIMES = 5, 15
_SPARE_SECONDS = 5.0

#: Entry of `meta`: a JSON array of [source, path, state of the file], of the documents that a user left out.
NOTED = "left_out"

#: Conditions of the scan that a missing folder with notes in the index replaces.
_OF_MISSING = (ConditionCode.FOLDER_MISSING, ConditionCode.EXTRA_PATH_MISSING)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Differences between an agent's files and an index, by stat.

    `scan` holds the documents that are not as `known`. Of the `absent`, known to the index and not found,
    the index must forget the `gone` ones. Those that a user `left_out` are not to be indexed. `missing_notes`: missing
    folder -> number of its notes in the index.
    """

    scan: Scan
    known: KnownFiles
    absent: Sequence[DocumentKey] = ()
    gone: Sequence[DocumentKey] = ()
    left_out: Collection[DocumentKey] = ()
    missing_notes: dict[str, int] = field(default_factory=dict)

    def disk_state(
        self, files: AgentFiles, *, sync: Sync, now: float, watched: bool, held_back: bool = False
    ) -> DiskState:
        """Count the differences.

        `now` is Unix time: a transcript that was written to a moment ago is growing, not stale, if it is `watched`. A
        note that was changed or deleted a moment ago is settling: for some seconds, and longer while producers hold
        back changes. A deletion is as old as the last change of its folder.
        """
        moving_seconds = _QUIET_TIMES * sync.sessions.quiet_seconds + _SPARE_SECONDS
        settling_seconds = _NOTE_QUIET_TIMES * sync.watch_debounce_ms / 1000 * held_back + _SPARE_SECONDS
        folder_changed_at = cache(_changed_at)
        settling = sum(
            watched and abs(now - folder_changed_at(files.path_of(key).parent)) < settling_seconds for key in self.gone
        )
        vanished = len(self.gone) - settling
        missing = stale = growing = out = 0
        for key, stat in self.scan.documents.items():
            if key in self.left_out:
                out += 1
            elif watched and key.is_transcript and abs(now - stat.mtime_ns / 1e9) < moving_seconds:
                growing += 1
            elif watched and not key.is_transcript and _age_seconds(stat, now) < settling_seconds:
                settling += 1
            elif key not in self.known:
                missing += 1
            else:
                stale += 1
        kinds = dict(sorted(self.scan.left_out.items()))
        return DiskState(
            files=self.scan.count,
            missing=missing,
            stale=stale,
            vanished=vanished,
            growing=growing,
            settling=settling,
            left_out=out,
            excluded=kinds.pop(EXCLUDED, 0),
            excluded_folders=kinds.pop(EXCLUDED_FOLDERS, 0),
            other_sessions=kinds,
            kept=len({key for key in self.absent if key.is_transcript}.difference(self.gone)),
        )


def _age_seconds(stat: FileStat, now: float) -> float:
    """Return the seconds between Unix time `now` and the last change; a file that was moved keeps its write time."""
    return min(abs(now - ns / 1e9) for ns in (stat.mtime_ns, stat.ctime_ns))


def _changed_at(folder: Path) -> float:
    """Return the Unix time of the last change of a folder, or of the nearest folder above that is there."""
    for path in (folder, *folder.parents):
        with suppress(OSError):
            return path.stat().st_mtime
    return 0.0


def compare(
    files: AgentFiles, reader: StoreReader | None, *, known: KnownFiles | None = None, imported: bool = False
) -> Comparison:
    """Compare an agent's files with an index; without a `reader`, with an empty one.

    The files are looked at after the index: a document that is indexed meanwhile counts as up to date. `known` are the
    files of the reader, if they were read already. `imported`: the imported folders are scanned, too.
    """
    if reader is None:
        known = KnownFiles()
        return Comparison(files.scan(imported=imported, but=known), known)
    known = known if known is not None else KnownFiles(reader.files())
    out = left_out(reader, files)
    scan = files.scan(imported=imported, but=known)
    absent = known.absent(reader.files()) if known.absentees else []
    now = time.time()
    missing = files.notes.missing_folders(now=now) if absent else {}
    folders = (files.notes.missing_folder_of(key, missing) for key in absent)
    notes = Counter(folder for folder in folders if folder is not None)
    scan = _with_missing(scan, {folder: (missing[folder], count) for folder, count in notes.items()}, now=now)
    by_source = {source: [key for key in absent if files.source_of(key) is source] for source in files.sources}
    gone = [key for source, keys in by_source.items() for key in sorted(source.forgets(keys, reader, scan))]
    return Comparison(scan, known, absent, gone, out, notes)


def forgets(files: AgentFiles, key: DocumentKey, reader: StoreReader | None = None) -> bool:
    """Return True if the index must forget an absent document. Without a `reader` of the index True may be wrong.

    Its source decides: see `Notes`, `Sessions` and `Imports`.
    """
    return bool(files.source_of(key).forgets([key], reader, None))


def left_out(reader: StoreReader, files: AgentFiles) -> set[DocumentKey]:
    """Return the documents that a user left out, and whose files have not changed since.

    They could not be read, and the user dropped their dead letters (`recalld dead drop`). A new index, made
    with other settings, may be able to read them: it has no note of them.
    """
    return {key for key, state in noted(reader).items() if state == file_state(files, key)}


def noted(reader: StoreReader) -> dict[DocumentKey, list[int]]:
    """Return all documents that a user left out, with the state of their files at that time."""
    raw = reader.meta(NOTED)
    return {DocumentKey(source, path): state for source, path, state in json.loads(raw)} if raw else {}


def file_state(files: AgentFiles, key: DocumentKey) -> list[int] | None:
    """Return size, times of the last write and of the last change of any kind (ns), and inode; None without a file.

    They differ when the file is written, replaced, or becomes readable.
    """
    try:
        result = files.path_of(key).lstat()
    except (OSError, ValueError):
        with suppress(RecalldError):
            if (stat := files.stat(key)) is not None:  # rows of a database
                return [stat.size, stat.mtime_ns, stat.ctime_ns, stat.inode]
        return None
    return [result.st_size, result.st_mtime_ns, result.st_ctime_ns, result.st_ino]


def _with_missing(scan: Scan, missing: Mapping[str, tuple[float, int]], *, now: float) -> Scan:
    """Return a scan that hides the notes of missing folders, each with its time and notes, until their time comes."""
    if not missing:
        return scan
    hidden = {folder: place for folder, place in missing.items() if place[0] > now}
    conditions = (
        Condition(ConditionCode.FOLDER_EMPTIED, printable(folder), params={"notes": notes, "until": until})
        for folder, (until, notes) in hidden.items()
    )
    subjects = {printable(folder) for folder in hidden}
    problems = (entry for entry in scan.problems if entry.code not in _OF_MISSING or entry.subject not in subjects)
    unlisted = dict.fromkeys((*(folder for folder in scan.unlisted if folder not in missing), *hidden))
    return replace(scan, problems=(*problems, *conditions), unlisted=tuple(unlisted))
