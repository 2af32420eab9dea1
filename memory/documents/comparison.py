"""Comparison of the files on disk with the index: counts, deletions, documents that a user left out."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from memory.documents.agent_files import AgentFiles
from memory.documents.note_folders import folder_above, missing_folders, read_record
from memory.documents.roots import Root, archived_path, document_name, is_transcript_name, join
from memory.documents.scan import EXCLUDED, EXCLUDED_FOLDERS, KnownFiles, Scan, printable
from memory.store.sqlite.reader import StoreReader
from schemas.conditions import Condition, ConditionCode
from schemas.documents import SESSIONS_SOURCE, DocumentKey, FileStat
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
class Difference:
    """Difference between an agent's files and an index, by stat.

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

    def hides(self, files: AgentFiles, key: DocumentKey) -> bool:
        """Return True if the scan could not look where the document may be."""
        places = files.places(key) if not self.scan.complete else ()
        return any(self.scan.hides(Path(root.path, *parts)) for root, parts in places)

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


def difference(
    files: AgentFiles, reader: StoreReader | None, *, known: KnownFiles | None = None, imported: bool = False
) -> Difference:
    """Compare an agent's files with an index; without a `reader`, with an empty one.

    The files are looked at after the index: a document that is indexed meanwhile counts as up to date. `known` are the
    files of the reader, if they were read already. `imported`: the imported folders are scanned, too.
    """
    if reader is None:
        known = KnownFiles()
        return Difference(files.scan(imported=imported, but=known), known)
    known = known if known is not None else KnownFiles(reader.files())
    out = left_out(reader, files)
    scan = files.scan(imported=imported, but=known)
    absent = known.absent(reader.files()) if known.absentees else []
    now = time.time()
    missing = missing_of(files, now=now) if absent else {}
    notes = Counter(folder for key in absent if (folder := _folder_of(files, missing, key)) is not None)
    scan = _with_missing(scan, {folder: (missing[folder], count) for folder, count in notes.items()}, now=now)
    found = Difference(scan, known, absent, left_out=out, missing_notes=notes)
    excluded = files.left_out(key for key in absent if key.is_transcript)
    # Only an archive or the settings make an index forget a transcript: `forgets` looks at the disk for each.
    archived = {archived_path(key.path) for key in scan.documents if key.is_transcript} | scan.archived
    may_go = (key for key in absent if not key.is_transcript or files.forget_deleted or key.path in archived)
    gone = [
        key
        for key in may_go
        if key not in excluded
        and not found.hides(files, key)
        and (not key.is_transcript or forgets(files, key, reader))
    ]
    return replace(found, gone=[*gone, *excluded])


def forgets(files: AgentFiles, key: DocumentKey, reader: StoreReader | None = None) -> bool:
    """Return True if the index must forget an absent document. Without a `reader` of the index True may be wrong.

    A note, unless its folder is missing for less than a day. A transcript that the settings leave out, or ask to forget
    (`sync.sessions.forget_deleted`), or of which the index has an archive, whole and with all that it has of the
    transcript; without a `reader` any archive will do. An imported transcript stays.
    """
    if not key.is_transcript:
        now = time.time()
        missing = missing_of(files, now=now)
        folder = _folder_of(files, missing, key)
        return missing[folder] <= now if folder is not None else files.root_is_there(key)
    if files.left_out([key]):
        return True
    places = files.places(key)
    if not places or any(root.imported for root, _ in places) or not files.root_is_there(key):
        return False
    if files.forget_deleted:
        return True
    return bool(_archives(files, key)) if reader is None else is_archived(files, key, reader, reader)


def is_archived(files: AgentFiles, key: DocumentKey, reader: StoreReader, earlier: StoreReader) -> bool:
    """Return True if the index has an archive of a session, whole and with all that an `earlier` index has of it."""
    return any(_stands_for(files, archive, key, reader, earlier) for archive in _archives(files, key))


def _stands_for(
    files: AgentFiles, archive: DocumentKey, key: DocumentKey, reader: StoreReader, earlier: StoreReader
) -> bool:
    """Return True if the index has an archive as it is on the disk, no dead letter of it, and the whole session."""
    known = reader.file(archive)
    try:
        stat = files.stat(archive)
    except RecalldError:
        return False
    if known is None or stat is None or not known.stat.agrees_with(stat):
        return False
    return all(letter.key != archive for letter in reader.dead_letters()) and _holds_all(reader, archive, earlier, key)


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
        found = files.path_of(key).lstat()
    except (OSError, ValueError):
        return None
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]


def missing_of(files: AgentFiles, *, now: float) -> dict[str, float]:
    """Return the missing folders of an agent's notes, and the Unix time until which the notes of each stay."""
    return missing_folders(files.note_folders(), read_record(files.folders), now=now)


def _folder_of(files: AgentFiles, missing: Mapping[str, float], key: DocumentKey) -> str | None:
    """Return the missing folder that holds a note."""
    places = files.places(key) if missing and not key.is_transcript else ()
    return next((folder_above(join(root.path, *parts), missing) for root, parts in places), None)


def _with_missing(scan: Scan, missing: Mapping[str, tuple[float, int]], *, now: float) -> Scan:
    """Return a scan that hides the notes of missing folders, each with its time and notes, until their time comes."""
    if not missing:
        return scan
    kept = {folder: place for folder, place in missing.items() if place[0] > now}
    conditions = (
        Condition(ConditionCode.FOLDER_EMPTIED, printable(folder), params={"notes": notes, "until": until})
        for folder, (until, notes) in kept.items()
    )
    named = {printable(folder) for folder in kept}
    others = (one for one in scan.problems if one.code not in _OF_MISSING or one.subject not in named)
    unlisted = dict.fromkeys((*(folder for folder in scan.unlisted if folder not in missing), *kept))
    return replace(scan, problems=(*others, *conditions), unlisted=tuple(unlisted))


def _archives(files: AgentFiles, key: DocumentKey) -> list[DocumentKey]:
    """Return the archives of a session, which lie in its folder; an imported one has none."""
    places = files.places(key)
    if any(root.imported for root, _ in places):
        return []
    return [archive for root, parts in places for archive in _archives_below(root, parts)]


def _archives_below(root: Root, parts: tuple[str, ...]) -> list[DocumentKey]:
    start = parts[-1] + "."
    folder = parts[:-1]
    try:
        with os.scandir(join(root.folder, *folder)) as entries:
            names = {
                document_name(entry.name)
                for entry in entries
                if entry.name.startswith(start)
                and is_transcript_name(entry.name)
                and archived_path(document_name(entry.name)) == parts[-1]
                and entry.is_file(follow_symlinks=False)
            }
    except OSError:
        return []
    return [DocumentKey(SESSIONS_SOURCE, join(root.prefix, *folder, name)) for name in sorted(names)]


def _holds_all(reader: StoreReader, archive: DocumentKey, earlier: StoreReader, key: DocumentKey) -> bool:
    """Return True if the index has each text that an `earlier` one has of a transcript in another one, too."""
    held = reader.chunks_of(archive)
    hashes = {chunk.text_hash for chunk in held}
    lacking = [chunk for chunk in earlier.chunks_of(key) if chunk.text_hash not in hashes]
    if len(lacking) != 1:
        return not lacking
    # The last chunk of a transcript alone grows: it may have gone on before it was archived.
    [last] = lacking
    text = earlier.chunk_rows([last.id])[last.id].text
    rows = reader.chunk_rows([chunk.id for chunk in held if chunk.ordinal == last.ordinal])
    return any(row.text.startswith(text) for row in rows.values())
