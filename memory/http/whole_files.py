"""Files that are written as a whole: neither a reader nor a start after a crash finds a part of one."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_whole(file: Path, content: bytes, *, mode: int = 0o600, synced: bool = True) -> None:
    """Replace a file, or make it with its folder. The file gets exactly the permissions `mode`.

    If this process is killed, the file has its former content or the new one. A `synced` file also survives a loss of
    power so, and its new content is on the disk when this returns. Any other file may be empty then. A crash may leave
    the draft beside the file: a hidden file that no process reads.

    Raises:
        OSError: the file has its former content, or is whole and perhaps not on the disk yet.
    """
    with _draft(file, content, mode=mode, synced=synced) as draft:
        draft.replace(file)
        if synced:
            sync_folder(file.parent)


def create_whole(file: Path, content: bytes, *, mode: int = 0o600) -> bool:
    """Make a file, with its folder, unless there is one. Return True if it was made; of several processes, by one.

    If this process is killed, or the power lost, the file is whole or not there.

    Raises:
        OSError: the file is not there, or is whole and perhaps not on the disk yet.
    """
    with _draft(file, content, mode=mode, synced=True) as draft:
        try:
            file.hardlink_to(draft)  # unlike a rename, it fails if the name is taken
        except FileExistsError:
            return False
        sync_folder(file.parent)
        return True


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk. Raise OSError if that fails."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def move_folder_aside(path: Path) -> None:
    """Rename a folder that stands where a file belongs; a link to one is no folder. Raise OSError if that fails."""
    if path.is_dir() and not path.is_symlink():
        path.rename(path.with_name(f"{path.name}.damaged-{time.time_ns()}"))


@contextmanager
def _draft(file: Path, content: bytes, *, mode: int, synced: bool) -> Iterator[Path]:
    """Write the content under another name, which is free again at the end of the block."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "wb") as out:
            os.fchmod(descriptor, mode)
            out.write(content)
            if synced:
                out.flush()
                os.fsync(descriptor)
        yield draft
    finally:
        draft.unlink(missing_ok=True)
