"""Replacement of a settings file, as a whole or not at all, with a copy of its former content."""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path


def replace_file(file: Path, content: bytes, *, before: bytes | None) -> Path | None:
    """Write a file atomically. Keep `before`, its former content, in a copy beside it; return the copy's path.

    A new file is readable by its owner only, because settings may hold keys. Otherwise file and copy have the
    permissions that the file had.

    Raises:
        OSError: nothing was changed.
    """
    mode = file.stat().st_mode & 0o777 if before is not None else 0o600
    copy = None
    if before is not None:
        copy = _free_name(file)
        _write(copy, before, mode)
    write_file(file, content, mode=mode)
    return copy


def write_file(file: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Write a file as a whole or not at all. Raise OSError if nothing was changed."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        _write(draft, content, mode)
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)


def _free_name(file: Path) -> Path:
    name = f"{file.name}.before-recalld-{time.strftime('%Y%m%d-%H%M%S')}"
    copies = (file.with_name(name + suffix) for suffix in ("", *(f"-{number}" for number in range(2, 1000))))
    return next(copy for copy in copies if not os.path.lexists(copy))


def _write(file: Path, content: bytes, mode: int) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as out:
        os.fchmod(descriptor, mode)
        out.write(content)
        out.flush()
        os.fsync(descriptor)
