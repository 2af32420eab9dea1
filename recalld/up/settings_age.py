"""Staleness of settings: a process compares the settings that it runs with to those that it would read now.

Each process compares for itself: only it knows its flags and its environment. A comment, or a value that a flag
overrides, is no change.
"""

from __future__ import annotations

import time
from contextlib import suppress
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
            try:
                invalid, changed = False, self._invocation.read_again().settings != self._settings
            except UserError:
                invalid = changed = True
            written = [(stat[0], str(file)) for file, stat in seen.items() if stat is not None]
            at, file = max(written, default=(time.time(), "a file that is gone"))
            self._outdated = OutdatedState(file, at, self._read_at, invalid=invalid) if changed else None
        return self._outdated

    def _look(self) -> dict[Path, tuple[float, int] | None]:
        """Return time and size of each file that the settings come from, None for a file that is not there."""
        home = self._invocation.home_path
        files = [home / "agents.json", *files_of_variables()]
        # A file that was named and is gone is found by reading again.
        with suppress(UserError):
            files += filter(None, [find_config(self._invocation.config, home=home)])
        found: dict[Path, tuple[float, int] | None] = dict.fromkeys(files)
        for file in files:
            with suppress(OSError):
                found[file] = (stat := file.stat()).st_mtime, stat.st_size
        return found
