"""List an agent's transcripts by name and stat. No file is opened, no link is followed."""

from __future__ import annotations

import os
from collections.abc import Sequence

from memory.document_roots import is_folder_name, is_utf8
from memory.scanning import Scan, printable, unlisted_problem
from memory.session_roots import COMPRESSED, SESSIONS_SOURCE, SessionRoot, is_transcript_name
from schemas.documents import DocumentKey, FileStat


def scan_sessions(roots: Sequence[SessionRoot]) -> Scan:
    """List the transcripts of all configured folders. Costs a stat for each and a listing for each folder."""
    documents: dict[DocumentKey, FileStat] = {}
    owners: list[tuple[SessionRoot, frozenset[DocumentKey]]] = []
    problems: list[str] = []
    unlisted: list[str] = []
    several = sum(not root.covered for root in roots) > 1
    for root in roots:
        if root.covered:
            continue
        if not os.path.isdir(root.folder):  # noqa: PTH112 - a plain string
            unlisted.append(root.folder)
            problems.append(_absent(root))
            continue
        found = _scan_folder(root, problems, unlisted)
        for first, keys in owners:
            twice = sorted(keys & found.keys())
            if twice:
                problems.append(_twice(first, root, twice))
                for key in twice:
                    del found[key]
        if several:
            owners.append((root, frozenset(found)))
        documents.update(found)
    return Scan(documents, not unlisted, tuple(dict.fromkeys(problems)), tuple(dict.fromkeys(unlisted)))


def _scan_folder(root: SessionRoot, problems: list[str], unlisted: list[str]) -> dict[DocumentKey, FileStat]:
    found: dict[DocumentKey, FileStat] = {}
    waiting = [(root.folder, f"{root.prefix}/")]
    while waiting:
        folder, start = waiting.pop()
        compressed: dict[DocumentKey, FileStat] = {}
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    name = entry.name
                    if is_transcript_name(name):
                        if entry.is_file(follow_symlinks=False):
                            try:
                                result = entry.stat(follow_symlinks=False)
                            except FileNotFoundError:
                                continue
                            stat = FileStat(result.st_size, result.st_mtime_ns, result.st_ino)
                            if name.endswith(COMPRESSED):
                                compressed[DocumentKey(SESSIONS_SOURCE, start + name[: -len(COMPRESSED)])] = stat
                            else:
                                found[DocumentKey(SESSIONS_SOURCE, start + name)] = stat
                            continue
                    elif not is_utf8(name):
                        if not name.startswith("."):
                            problems.append(f"{printable(entry.path)} is left out: its name is not UTF-8; rename it")
                        continue
                    if is_folder_name(name) and entry.is_dir(follow_symlinks=False):
                        waiting.append((entry.path, f"{start}{name}/"))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            unlisted.append(folder)
            problems.append(unlisted_problem(folder, error))
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
