"""Where the private broker of a home listens. Apart from the connection: looking needs no client of it."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from schemas.errors import UserError

#: A unix socket's path may hold 107 bytes on Linux and 103 on macOS.
_MAX_SOCKET_PATH = 100


def socket_path(home: Path) -> Path:
    """Where the private server of this home listens; a short path elsewhere when the home's is too long."""
    path = home / "broker" / "valkey.sock"
    if len(os.fsencode(path)) <= _MAX_SOCKET_PATH:
        return path
    digest = hashlib.blake2b(os.fsencode(home.absolute()), digest_size=8).hexdigest()
    folder = Path(tempfile.gettempdir()) / f"recalld-{os.getuid()}-{digest}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise UserError(f"{folder} belongs to somebody else; choose a shorter --home so that it is not needed")
    return folder / "valkey.sock"
