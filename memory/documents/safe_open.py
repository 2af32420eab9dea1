"""Open what lies below a configured folder, and nothing else.

Every component below the folder is opened relative to the one above it and never through a symbolic link, so
that neither a link nor one put in place at the last moment leads outside. The folder itself was configured by
its owner and may be reached through links.

    RecalldError
    +-- DocumentGone           not there (any more), or no longer a document of this agent
    Permanent
    +-- DocumentRefused        outside, a link, not a regular file, not Markdown, too large
    +-- DocumentUnreadable     permission denied, I/O error
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from schemas.errors import Permanent, RecalldError, Transient

# O_PATH (Linux) asks for no permission to list a folder, only for the one to pass through it.
_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY

# O_NONBLOCK: opening a pipe without a writer must not wait.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY

#: File systems stamp writes by the kernel's tick (at most 10 ms). A file written more recently could change once
#: more and keep its size and times, and the index would never notice; so it is read once it is older.
_TICK_SECONDS = 0.02

_ABSENT = frozenset((errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG))
_EXHAUSTED = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE, errno.EAGAIN))


class DocumentGone(RecalldError):
    """Document that is not there (any more), or is no longer a document of this agent."""


class DocumentRefused(Permanent):
    """Path of what is not, or must not be, a document: outside, a link, not a regular file, too large."""


class DocumentUnreadable(Permanent):
    """Document that the system does not let recalld read."""


@contextmanager
def opened_below(folder: str, parts: Sequence[str], *, name: str) -> Iterator[int]:
    """Yield a descriptor of the regular file `folder`/`parts`; closed afterwards.

    `name`: for messages.

    Raises:
        DocumentGone, DocumentRefused, DocumentUnreadable: see there.
        Transient: out of descriptors or memory.
    """
    with _translated(name):
        parent = _open_parent(folder, parts)
        try:
            try:
                descriptor = os.open(parts[-1], _FILE, dir_fd=parent)
            except OSError as error:
                # A socket cannot be opened at all.
                if error.errno == errno.ENXIO:
                    raise DocumentRefused(f"{name} is not a regular file") from error
                raise
        finally:
            os.close(parent)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise DocumentRefused(f"{name} is not a regular file")
        with _translated(name):
            yield descriptor
    finally:
        os.close(descriptor)


def stat_below(folder: str, parts: Sequence[str], *, name: str) -> os.stat_result | None:
    """Return the stat of the regular file `folder`/`parts`; None if there is none or the way leads through a link.

    Raises:
        DocumentUnreadable, Transient: the system does not say whether it is there.
    """
    try:
        with _translated(name):
            parent = _open_parent(folder, parts)
            try:
                result = os.stat(parts[-1], dir_fd=parent, follow_symlinks=False)
            finally:
                os.close(parent)
    except (DocumentGone, DocumentRefused):
        return None
    return result if stat.S_ISREG(result.st_mode) else None


def settled_stat(descriptor: int) -> os.stat_result:
    """Return the stat of an open file. A later write cannot leave it the same.

    May wait some milliseconds for a file that was written just now.
    """
    result = os.fstat(descriptor)
    age = time.time() - max(result.st_mtime_ns, result.st_ctime_ns) / 1e9
    if 0 <= age < _TICK_SECONDS:
        time.sleep(_TICK_SECONDS - age)
        result = os.fstat(descriptor)
    return result


def _open_parent(folder: str, parts: Sequence[str]) -> int:
    descriptor = os.open(folder, _FOLDER)
    try:
        for part in parts[:-1]:
            try:
                below = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=descriptor)
            except NotADirectoryError:
                # Systems say the same of a file and of a link that was not to be followed.
                if stat.S_ISLNK(os.stat(part, dir_fd=descriptor, follow_symlinks=False).st_mode):
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), part) from None
                raise
            os.close(descriptor)
            descriptor = below
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def _translated(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in _ABSENT:
            raise DocumentGone(f"{name} is not there") from error
        if error.errno in (errno.ELOOP, errno.EMLINK):
            raise DocumentRefused(f"{name} is, or lies behind, a symbolic link, which is never followed") from error
        if error.errno in _EXHAUSTED:
            raise Transient(f"{name} cannot be opened now: {reason}", retry_after=1.0) from error
        raise DocumentUnreadable(f"{name} cannot be read: {reason}; check its permissions") from error
