"""What a command that says that an index is up to date looks at last: whether the files are in it."""

from __future__ import annotations

from collections.abc import Mapping

from memory.documents.agent_files import AgentFiles
from memory.documents.ignored_documents import left_out
from memory.store.reader import StoreReader
from schemas.documents import DocumentKey, FileStat
from schemas.settings import AgentSettings, Settings


def missing_sentence(
    settings: Settings, agent: AgentSettings, reader: StoreReader | None, *, before: float
) -> str | None:
    """Say that files are missing in the index although nothing is queued; None when none is.

    An empty queue is no proof: somebody else may have taken from it. Files that changed after Unix time `before` are
    left to the next look, and those that failed have their dead letters, or were left out.
    """
    files = AgentFiles.of(settings, agent)
    on_disk = files.scan().documents
    known = {file.key for file in reader.files()} if reader is not None else set()
    failed = {letter.key for letter in reader.dead_letters()} if reader is not None else set()
    out = left_out(reader, files) if reader is not None else set()
    missing = _missing(on_disk, known | failed | out, before=before)
    if not missing:
        return None
    return (
        f"{len(missing):,} {'file is' if len(missing) == 1 else 'files are'} missing in this index ({missing[0].path}"
        f"{', ...' if len(missing) > 1 else ''}) though nothing is queued for "
        f"{'it' if len(missing) == 1 else 'them'}: run this command again; if that does not help, see whether workers "
        "of another home take from the same queue"
    )


def _missing(on_disk: Mapping[DocumentKey, FileStat], known: set[DocumentKey], *, before: float) -> list[DocumentKey]:
    # The write time of a file may be any; the change time is the system's.
    return [
        key for key, stat in on_disk.items() if key not in known and (stat.ctime_ns or stat.mtime_ns) / 1e9 < before
    ]
