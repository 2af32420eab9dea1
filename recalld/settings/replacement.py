"""Replacement of a settings file, as a whole or not at all, with a copy of its former content."""

from __future__ import annotations

import os
import time
from pathlib import Path

from memory.http.whole_files import write_whole


def replace_file(file: Path, content: bytes, *, before: bytes | None) -> Path | None:
    """Write a file atomically. Keep `before`, its former content, in a copy beside it; return the copy's path.

    A new file is readable by its owner only, because settings may hold keys. Otherwise file and copy have the
    permissions that the file had.

    Raises:
        OSError: nothing was changed.
    """
    if before is None:
        write_whole(file, content)
        return None
    mode, copy = file.stat().st_mode & 0o777, _free_name(file)
    write_whole(copy, before, mode=mode)
    write_whole(file, content, mode=mode)
    return copy


def kept_in(copy: Path | None) -> str:
    """Return the end of a sentence about a replaced file, with the name of its copy; empty for a new file."""
    return f"; what was there before is in {copy.name} beside it" if copy is not None else ""


def _free_name(file: Path) -> Path:
    name = f"{file.name}.before-recalld-{time.strftime('%Y%m%d-%H%M%S')}"
    copies = (file.with_name(name + suffix) for suffix in ("", *(f"-{number}" for number in range(2, 1000))))
    return next(copy for copy in copies if not os.path.lexists(copy))
