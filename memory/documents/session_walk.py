"""List an agent's transcripts by name and stat. No file is opened, no link is followed."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Sequence

from memory.documents import scan_problems
from memory.documents.roots import is_folder_name
from memory.documents.scan_problems import ScanProblems, printable
from memory.documents.session_roots import COMPRESSED, SESSIONS_SOURCE, SessionRoot, document_name, is_transcript_name
from memory.documents.session_stores import Sieve
from memory.documents.walk import EXCLUDED_FOLDERS, Scan, file_stat, tell_odd_entry
from schemas.documents import DocumentKey, FileStat


def scan_sessions(roots: Sequence[SessionRoot], sieve: Sieve) -> Scan:
    """List the transcripts of all configured folders that the sieve lets through. Costs a stat for each and a listing
    for each folder."""
    documents: dict[DocumentKey, FileStat] = {}
    owners: list[tuple[SessionRoot, frozenset[DocumentKey]]] = []
    problems = ScanProblems()
    unlisted: list[str] = []
    left_out: Counter[str] = Counter()
    several = sum(not root.covered for root in roots) > 1
    for root in roots:
        if root.covered:
            continue
        if not os.path.isdir(root.folder):  # noqa: PTH112 - a plain string
            unlisted.append(root.folder)
            problems.add(_absent(root))
            continue
        found = _scan_folder(root, problems, unlisted, sieve, left_out)
        for first, keys in owners:
            twice = sorted(keys & found.keys())
            if twice:
                problems.add(_twice(first, root, twice))
                for key in twice:
                    del found[key]
        if several:
            owners.append((root, frozenset(found)))
        documents.update(found)
    unlisted = list(dict.fromkeys(unlisted))
    return Scan(documents, not unlisted, problems.sentences(), tuple(unlisted), left_out=left_out)


def _scan_folder(
    root: SessionRoot, problems: ScanProblems, unlisted: list[str], sieve: Sieve, left_out: Counter[str]
) -> dict[DocumentKey, FileStat]:
    found: dict[DocumentKey, FileStat] = {}
    if sieve.closes(root, root.prefix):
        left_out[EXCLUDED_FOLDERS] += 1
        return found
    waiting = [(root.folder, f"{root.prefix}/")]
    while waiting:
        folder, start = waiting.pop()
        if len(found) > scan_problems.MAX_DOCUMENTS:
            unlisted.append(root.folder)
            problems.too_many(folder, scan_problems.MAX_DOCUMENTS)
            break
        compressed: dict[DocumentKey, FileStat] = {}
        parts = tuple(start[len(root.prefix) : -1].split("/")[1:])
        limited = sieve.limits(root, parts)
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    name = entry.name
                    if is_transcript_name(name) and entry.is_file(follow_symlinks=False):
                        reason = sieve.reason(root, (*parts, document_name(name))) if limited else None
                        if reason is not None:
                            left_out[reason] += 1
                            continue
                        try:
                            result = entry.stat(follow_symlinks=False)
                        except FileNotFoundError:
                            continue
                        except OSError as error:
                            if error.errno != errno.ENAMETOOLONG:
                                raise
                            problems.too_long(entry.path)
                            continue
                        stat = file_stat(result)
                        if name.endswith(COMPRESSED):
                            compressed[DocumentKey(SESSIONS_SOURCE, start + name[: -len(COMPRESSED)])] = stat
                        else:
                            found[DocumentKey(SESSIONS_SOURCE, start + name)] = stat
                        continue
                    if is_folder_name(name) and entry.is_dir(follow_symlinks=False):
                        if sieve.closes(root, start + name):
                            left_out[EXCLUDED_FOLDERS] += 1
                        else:
                            waiting.append((entry.path, f"{start}{name}/"))
                        continue
                    tell_odd_entry(problems, entry, root.real, is_document=is_transcript_name(name))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            unlisted.append(folder)
            problems.unlistable(folder, error)
        for key, stat in compressed.items():
            found.setdefault(key, stat)
    return found


def _absent(root: SessionRoot) -> str:
    return (
        f"the sessions folder {printable(root.folder)} is not there: create it, correct it, or take it out of "
        "the agent's sessions"
    )


def _twice(first: SessionRoot, second: SessionRoot, keys: Sequence[DocumentKey]) -> str:
    names = "a transcript" if len(keys) == 1 else f"{len(keys)} transcripts"
    example = keys[0].path.removeprefix(f"{SESSIONS_SOURCE}/")
    return (
        f"{names} below {printable(second.folder)} ({example}) have the same name as below {printable(first.folder)} "
        "and are left out: rename them, or name the folder above both in the agent's sessions"
    )
