"""Backup of a home while it runs, and its restoration: indexes, paid embeddings, batch jobs, records and settings.

A backup is a folder with the layout of a home. It holds no token and no key. Queue, logs and fetched models are not in
it: they are made again.
"""

from __future__ import annotations

import re
import shutil
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from memory.http.whole_files import write_whole
from memory.index.file_generations import FileGenerations
from memory.index.generations import CURRENT, NEXT
from memory.redaction import redact
from memory.store.options import StoreOptions
from memory.store.sqlite.writer import copy_whole
from recalld.settings.keys import agent_keys, dotted, top_level_keys
from recalld.settings.load import find_config, indexes_folder
from schemas.errors import UserError
from schemas.settings import Settings

#: Settings file, and the file that only a complete backup has, with its version.
_SETTINGS, _MANIFEST, _VERSION = "recalld.toml", "backup-version", b"1\n"

#: Records of a home: workspaces, imports and their pauses, consents, folders of notes, providers that were stopped.
_RECORDS = (
    "agents.json",
    "imports/*.json",
    "imports/*.halt",
    "consents/*.jsonl",
    "run/folders-*.json",
    "cache/stopped-*.json",
)

#: Databases beside the indexes. A text leaves its batch job after its vector is in the cache.
_DATABASES = ("cache/batch_jobs.sqlite", "cache/embeddings.sqlite")

#: Line of a settings file with a key, with headers, which may hold one, or with a password in a URL.
_SECRET = re.compile(r"[#\s\w.\"]*\b(api_key|headers)\b\"?\s*=|.*://[^/\s]*@")


def back_up(settings: Settings, config: Path | None, folder: Path) -> bool:
    """Write a backup of the home to an empty folder; return False if lines of the settings were left out."""
    if settings.store.url:
        raise UserError("this memory is in PostgreSQL: back it up with pg_dump, and restore it with pg_restore")
    if not settings.home.is_dir():
        raise UserError(f"there is no home {settings.home}; name the right one with --home")
    text = config.read_text("utf-8-sig") if config is not None else ""
    public = _without_secrets(text)
    with _filled(folder):
        _copy_home(settings.home, settings.indexes_path, folder, folder / "indexes")
        if config is not None:
            write_whole(folder / _SETTINGS, public.encode())
        write_whole(folder / _MANIFEST, _VERSION)
    return public == text


def restore(folder: Path, home: Path, config: str | None) -> None:
    """Make a home of a backup. The settings of `config`, or of the backup, say where its indexes come."""
    if not (manifest := folder / _MANIFEST).is_file() or manifest.read_bytes() != _VERSION:
        raise UserError(f"{folder} is no complete backup that this version of recalld reads; name another, or upgrade")
    with _filled(home):
        if (folder / _SETTINGS).is_file():
            write_whole(home / _SETTINGS, (folder / _SETTINGS).read_bytes())
        indexes = indexes_folder(home, find_config(config, home=home))
        with _filled(indexes):
            _copy_home(folder, folder / "indexes", home, indexes)


@contextmanager
def _filled(folder: Path) -> Iterator[None]:
    """Require an empty folder, made if needed, and empty it again after an error. Raise UserError for the system's."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(entry.name != "lost+found" for entry in folder.iterdir()):
            raise UserError(f"{folder} has content; name a new or an empty folder", exit_code=2)
        try:
            yield
        except BaseException:
            for entry in (entry for entry in folder.iterdir() if entry.name != "lost+found"):
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
            raise
    except OSError as error:
        raise UserError(f"{folder} cannot be written ({error.strerror}); nothing is left of the copy") from error


def _copy_home(home: Path, indexes: Path, target: Path, target_indexes: Path) -> None:
    for folder in sorted(indexes.iterdir()) if indexes.is_dir() else ():
        copies, generations = target_indexes / folder.name, FileGenerations(folder, StoreOptions())
        # A generation that is completed meanwhile is copied as one of the two.
        for pointer in (NEXT, CURRENT):
            if (name := generations.pointer(pointer)) is not None:
                copies.mkdir(mode=0o700, parents=True, exist_ok=True)
                copy_whole(folder / name, copies / name, is_alone=False)
                write_whole(copies / pointer, f"{name}\n".encode())
    for file in (file for pattern in _RECORDS for file in sorted(home.glob(pattern))):
        write_whole(target / file.relative_to(home), file.read_bytes())
    for database in (name for name in _DATABASES if (home / name).is_file()):
        (target / database).parent.mkdir(mode=0o700, exist_ok=True)
        copy_whole(home / database, target / database, is_alone=False)


def _without_secrets(text: str) -> str:
    """Return a settings file without its lines with secrets; raise UserError if that would damage it."""
    lines = text.splitlines(keepends=True)
    public = "".join(line for line in lines if "{" in line or not (_SECRET.match(line) or redact(line) != line))
    keys = {**agent_keys(), **top_level_keys()}
    with suppress(tomllib.TOMLDecodeError):
        tree = tomllib.loads(public)
        settings = (entry for table in (tree, *tree.get("agents", [])) for entry in dotted(table, keys).items())
        secrets = (name for name, value in settings if name in keys and keys[name].secret and "://" not in value)
        if not any(secrets) and redact(public) == public:
            return public
    raise UserError("a backup cannot leave out a key of the settings file; put it on a line of its own, without braces")
