"""Staleness of settings: a process compares the settings that it runs with to those that it would read now.

Each process compares for itself: only it knows its flags and its environment. A comment, or a value that a flag
overrides, is no change.
"""

from __future__ import annotations

import time
from pathlib import Path

from recalld.invocation import Invocation
from recalld.settings.load import files_of_variables, find_config
from schemas.errors import UserError
from schemas.status import OutdatedState


class SettingsAge:
    """Comparison of settings, made before they are first read. A call looks at a few files' times only."""

    def __init__(self, invocation: Invocation) -> None:
        self._invocation = invocation
        self._seen = self._look()
        self._read_at = time.time()
        self._settings = invocation.settings
        self._outdated: OutdatedState | None = None

    def __call__(self) -> OutdatedState | None:
        """Return the change that this process does not know, None while there is none. Never raises."""
        seen = self._look()
        if seen != self._seen:
            self._seen = seen
            self._outdated = self._compare()
        return self._outdated

    def _compare(self) -> OutdatedState | None:
        file, changed_at = self._newest()
        try:
            if self._invocation.read_again().settings == self._settings:
                return None
        except UserError:
            return OutdatedState(file, changed_at, self._read_at, invalid=True)
        return OutdatedState(file, changed_at, self._read_at)

    def _look(self) -> object:
        """Return a value that differs when one of the files was written, came or went."""
        return [(file, _stat(file)) for file in self._files()]

    def _files(self) -> list[Path]:
        home = self._invocation.home_path
        try:
            config = find_config(self._invocation.config, home=home)
        except UserError:
            config = None  # it was named and is gone
        named = [] if config is None else [config]
        return [*named, home / "agents.json", *files_of_variables()]

    def _newest(self) -> tuple[str, float]:
        written = [(stat[0], str(file)) for file in self._files() if (stat := _stat(file)) is not None]
        at, file = max(written, default=(time.time(), "a file that is gone"))
        return file, at


def _stat(file: Path) -> tuple[float, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime, found.st_size
