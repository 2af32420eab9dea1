"""Plan of a backfill: the transcripts below some paths, newest first, what the index lacks of them, and the cost.

Paths are listed without opening a file; only the named paths themselves may be links.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from memory.documents.agent_files import AgentFiles
from memory.documents.imports import ImportedFolder, imported_folders, imports_path, remember_import
from memory.documents.roots import COMPRESSED, document_name, is_transcript_name, is_utf8
from memory.documents.scan import ScanProblems, file_stat, printable, walk
from memory.embedding.selection import ProviderChoice
from memory.index.estimate import Estimate, estimate
from memory.index.provider_fallback import provider_of
from memory.index.transcript_slices import is_read_otherwise
from memory.status.condition_texts import text_of
from recalld.runs.estimate import open_cache, texts_in_jobs
from recalld.wiring import fingerprint_of, generations_of
from schemas.conditions import ConditionCode
from schemas.documents import DocumentKey, FileStat
from schemas.errors import Permanent, Transient
from schemas.settings import AgentSettings, Settings
from workers.batch_jobs import FEWEST_TEXTS

#: Conditions of a walk that a user must know of. A link or an odd name below a folder is no loss to a backfill.
_TOLD = {ConditionCode.FOLDER_UNLISTABLE, ConditionCode.PATH_TOO_LONG}


@dataclass(frozen=True, slots=True)
class FoundTranscript:
    """Transcript: the absolute path of its document (without `.zst`), and the stat of the file that is read."""

    path: str
    stat: FileStat


@dataclass(frozen=True, slots=True)
class Found:
    """Transcripts of a backfill, newest first.

    `folders`: those that hold them. `left_out`: number of transcripts that dates or the limit leave out. `problems`:
    one sentence each for the user.
    """

    transcripts: tuple[FoundTranscript, ...]
    folders: tuple[ImportedFolder, ...]
    left_out: int
    problems: tuple[str, ...]


def find_transcripts(
    paths: Sequence[Path],
    *,
    format: str | None = None,  # noqa: A002 - the name of the flag
    since: float | None = None,
    until: float | None = None,
    limit: int | None = None,
) -> Found:
    """List transcripts. `since` and `until` bound the time of the last write, in Unix seconds, `until` exclusively."""
    search = _Search(format)
    for path in paths:
        search.look_at(path)
    found = search.transcripts()
    wanted = [one for one in found if _lies_between(one, since, until)]
    wanted.sort(key=lambda one: (-one.stat.mtime_ns, one.path))
    chosen = wanted[:limit]
    return Found(
        tuple(chosen), tuple(search.folders()), len(found) - len(chosen), tuple(dict.fromkeys(search.problems))
    )


class _Search:
    """Search for transcripts. A plain file and its compressed twin are one transcript, and the plain one is read."""

    def __init__(self, format: str | None) -> None:  # noqa: A002 - the name of the flag
        self.problems: list[str] = []
        self._whole: dict[str, None] = {}
        self._named: dict[str, dict[str, None]] = {}
        self._format = format
        self._files: dict[str, FileStat] = {}

    def look_at(self, named: Path) -> None:
        """Add the folder with all below it, or the transcript, that a path names."""
        path = os.path.realpath(named)
        shown = printable(str(named))
        if not is_utf8(path):
            self.problems.append(f"{shown} is left out: its name is not UTF-8; rename it")
            return
        try:
            result = os.stat(path)  # noqa: PTH116 - a plain string
        except FileNotFoundError:
            self.problems.append(f"{shown} is not there")
        except OSError as error:
            self.problems.append(f"{shown} cannot be looked at: {error.strerror or error}; check its permissions")
        else:
            if stat.S_ISDIR(result.st_mode):
                self._whole[path] = None
                self._add_folder(path)
            elif not stat.S_ISREG(result.st_mode) or not is_transcript_name(os.path.basename(path)):  # noqa: PTH119
                self.problems.append(f"{shown} is no transcript: those are files named *.jsonl or *.jsonl.zst")
            else:
                folder, name = os.path.split(path)
                self._named.setdefault(folder, {})[name] = None
                self._files[path] = file_stat(result)

    def folders(self) -> list[ImportedFolder]:
        """Return the folders of the transcripts, each once."""
        named = {folder: tuple(names) for folder, names in self._named.items() if folder not in self._whole}
        return [
            *(ImportedFolder(folder, self._format, None) for folder in self._whole),
            *(ImportedFolder(folder, self._format, names) for folder, names in named.items()),
        ]

    def transcripts(self) -> list[FoundTranscript]:
        """Return each transcript once."""
        return [
            FoundTranscript(document_name(path), stat)
            for path, stat in self._files.items()
            if not (path.endswith(COMPRESSED) and document_name(path) in self._files)
        ]

    def _add_folder(self, top: str) -> None:
        problems = ScanProblems()
        found = walk(top, top.rstrip(os.sep) + os.sep, is_transcript_name, problems)
        self._files.update((path, file_stat(result)) for path, result in found)
        self.problems += [text_of(one) for one in problems.conditions() if {one.code, one.params.get("kind")} & _TOLD]


def _lies_between(one: FoundTranscript, since: float | None, until: float | None) -> bool:
    written = one.stat.mtime_ns / 1e9
    return (since is None or written >= since) and (until is None or written < until)


@dataclass(frozen=True, slots=True)
class BackfillPlan:
    """Plan of a backfill.

    `wanted` are the transcripts to index, newest first, as they are now; the index has the `unchanged` ones already.
    `others` are the agent's other documents: an index of the present settings that does not exist yet is built with
    them. `not_wanted` counts the transcripts that the settings leave out, as `Scan.left_out` does. `problems` are
    sentences for a person, on paths and on transcripts left out. The `estimate` is of wanted and others together.
    """

    agent: AgentSettings
    found: Found
    wanted: Mapping[DocumentKey, FileStat]
    others: tuple[DocumentKey, ...]
    unchanged: int
    problems: tuple[str, ...]
    not_wanted: Mapping[str, int]
    choice: ProviderChoice
    estimate: Estimate

    @property
    def documents(self) -> list[DocumentKey]:
        """Return the documents to queue, in order."""
        return [*self.wanted, *self.others]

    @property
    def size(self) -> int:
        """Return the bytes of the wanted transcripts on the disk."""
        return sum(stat.size for stat in self.wanted.values())


def plan_backfill(
    settings: Settings, agent: AgentSettings, found: Found, *, on_look: Callable[[int, int], None]
) -> BackfillPlan:
    """Compare the transcripts with the index and estimate the cost of the rest. Nothing is written.

    `on_look` is called before each document is read, with the numbers of documents read and of all.

    Raises:
        StoreUnreadable, StoreCorrupt, StoreBusy: the index or the cache cannot be read.
        UserError: the list of imports is damaged.
    """
    imported_folders(imports_path(settings.home, agent.id))  # workers ignore a damaged list
    files = AgentFiles.of(settings, agent, drafted=found.folders)
    stats, problems, not_wanted = _documents_of(files, found)
    wanted, others = _missing(settings, agent, files, stats)
    documents = [*wanted, *others]
    choice = provider_of(settings, agent)
    try:
        with open_cache(settings) as cache:
            cost = estimate(
                agent,
                _told(documents, on_look),
                files=files,
                generations=generations_of(settings, agent),
                choice=choice,
                cache=cache,
                bought=texts_in_jobs(settings),
                batch_from=FEWEST_TEXTS if settings.cache.enabled else None,
            )
    finally:
        if choice.provider is not None:
            choice.provider.close()
    return BackfillPlan(
        agent=agent,
        found=found,
        wanted=wanted,
        others=tuple(others),
        unchanged=len(stats) - len(wanted),
        problems=(*found.problems, *problems),
        not_wanted=not_wanted,
        choice=choice,
        estimate=cost,
    )


def remember_folders(settings: Settings, agent: AgentSettings, found: Found) -> None:
    """Keep the folders and their format, so that workers can read transcripts outside of the configured folders.

    Raises:
        UserError: the home folder cannot be written.
    """
    for folder in found.folders:
        remember_import(imports_path(settings.home, agent.id), folder)


def _documents_of(files: AgentFiles, found: Found) -> tuple[dict[DocumentKey, FileStat], list[str], Counter[str]]:
    """Return the transcripts' documents, sentences on those without one, and the counts that the settings leave out."""
    stats: dict[DocumentKey, FileStat] = {}
    problems: list[str] = []
    out: Counter[str] = Counter()
    for one in found.transcripts:
        key = files.key_of(one.path)
        if key is None and (reason := files.reason_of(one.path)) is not None:
            out[reason] += 1
            continue
        if key is None or key in stats:
            problems.append(f"{printable(one.path)} is left out: it cannot be told from another transcript; rename it")
            continue
        try:
            stat = files.stat(key) or one.stat
        except (Permanent, Transient):
            stat = one.stat  # reading it will say why
        if stat.inode != one.stat.inode:
            first = files.path_of(key)
            problems.append(f"{printable(one.path)} is left out: {first} has the same name ({key.path}); rename one")
            continue
        stats[key] = stat
    return stats, problems, out


def _missing(
    settings: Settings, agent: AgentSettings, files: AgentFiles, stats: Mapping[DocumentKey, FileStat]
) -> tuple[dict[DocumentKey, FileStat], list[DocumentKey]]:
    """Return the transcripts that the index lacks and, for a new index, the other documents that it needs."""
    generations = generations_of(settings, agent)
    target = generations.target_reader(fingerprint_of(settings, agent).digest)
    if target is not None:
        try:
            known = {file.key: file.stat for file in target.files()}
            return {
                key: stat
                for key, stat in stats.items()
                if key not in known
                or not known[key].agrees_with(stat)
                or is_read_otherwise(key, files=files, store=target)
            }, []
        finally:
            target.close()
    others = [key for key in files.scan().documents if key not in stats]
    answering = generations.open_reader()
    if answering is not None:
        try:
            before = {file.key for file in answering.files() if file.key.is_transcript}
        finally:
            answering.close()
        imported = files.scan(imported=True).documents if before else {}
        others += sorted(key for key in before.intersection(imported) if key not in stats and key not in others)
    return dict(stats), others


def _told(documents: Iterable[DocumentKey], on_look: Callable[[int, int], None]) -> Iterator[DocumentKey]:
    keys = list(documents)
    for number, key in enumerate(keys):
        on_look(number, len(keys))
        yield key
