"""Whether a new generation fits on the disk beside the one that answers."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from memory.store.errors import NoRoom

#: How much larger than the present generation the new one may become: other chunks, wider vectors.
GROWTH = 1.5

#: Bytes on top of it: its write-ahead log, and what everything else goes on writing meanwhile.
RESERVE_BYTES = 64 * 1024 * 1024

_COMPANIONS = ("", "-wal")


def free_bytes(folder: Path) -> int | None:
    """Bytes that this user may still write there; None when the system does not say."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def require_room(current: Path, *, free: Callable[[Path], int | None] = free_bytes) -> None:
    """See to it that a generation that replaces the file `current` fits beside it.

    Raises:
        NoRoom: it does not, as far as one can tell.
    """
    left = free(current.parent)
    needed = int(sum(_size(current.with_name(current.name + end)) for end in _COMPANIONS) * GROWTH) + RESERVE_BYTES
    if left is not None and left < needed:
        raise NoRoom(
            f"a new index beside the present one needs about {_megabytes(needed)}, and {_megabytes(left)} are free in "
            f"{current.parent}; free some and it is built (the present one answers meanwhile)"
        )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _megabytes(amount: int) -> str:
    return f"{amount / 1_000_000:,.0f} MB"
