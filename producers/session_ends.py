"""Ends of sessions in the file `home/session-ends`: slots of one size, whose space is taken before it is needed.

A slot holds the JSON of one `SessionEnd` with zeros behind it; other content is a free slot. The processes of a home
take turns by a lock of the file. A full disk refuses no end as long as a slot is free.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

#: Bytes of a slot.
SLOT_BYTES: Final = 4096

#: Slots that are made at once, and slots at most.
RESERVED_SLOTS: Final = 256
MOST_SLOTS: Final = 2048

#: States of a session: it goes on, its end waits for a note, a note of it was written.
OPEN: Final = "open"
ENDED: Final = "ended"
NOTED: Final = "noted"


class EndUnkept(OSError):
    """Raised when the end of a session cannot be kept."""


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """End of the session of the transcript at `path`, at Unix time `at`.

    `last`: digest of the last message in the session's note. `hook`: JSON of a hook that no producer has read yet; it
    stands for all but the time.
    """

    at: float
    agent: str = ""
    path: str = ""
    program: str = ""
    state: str = ENDED
    last: str = ""
    hook: str = ""

    def replaces(self, other: SessionEnd) -> bool:
        """Return True if the other one is an earlier record of this end."""
        same = (self.agent, self.path, self.hook) == (other.agent, other.path, other.hook)
        return same and (self.at == other.at or self.state == other.state == OPEN)


class SessionEnds:
    """The file of a home. Safe to use from several threads and processes."""

    def __init__(self, home: str | os.PathLike[str]) -> None:
        self._file = Path(home, "session-ends")

    def reserve(self) -> None:
        """Take the space of the file. Raise OSError if there is no room."""
        with self._locked() as file:
            size = os.fstat(file).st_size
            # Zeros are written: some file systems promise space that they do not have.
            _write(file, bytes(max(0, RESERVED_SLOTS * SLOT_BYTES - size)), size)

    def all(self) -> list[SessionEnd]:
        """Return all ends, the earliest first."""
        with self._locked() as file:
            return sorted(filter(None, _slots(file)), key=lambda end: end.at)

    def put(self, end: SessionEnd) -> None:
        """Keep an end, on the disk, in place of its earlier record. The oldest noted session gives way if need be.

        Raises:
            EndUnkept: no slot takes it, or the file cannot be opened.
            ValueError: it is longer than a slot.
        """
        data = json.dumps(asdict(end)).encode().ljust(SLOT_BYTES, b"\0")
        if len(data) > SLOT_BYTES:
            raise ValueError("the names of the session's agent and transcript are too long")
        with self._locked() as file:
            for place in _places(_slots(file), end):
                with suppress(OSError):
                    return _write(file, data, place * SLOT_BYTES)
        raise EndUnkept(errno.ENOSPC, f"{self._file} has no free slot, and the disk no room for another")

    def drop(self, *ends: SessionEnd) -> None:
        """Free the slots of ends."""
        with self._locked() as file:
            for place, end in enumerate(_slots(file)):
                if end in ends:
                    _write(file, bytes(SLOT_BYTES), place * SLOT_BYTES)

    @contextmanager
    def _locked(self) -> Iterator[int]:
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise EndUnkept(error.errno, f"{self._file}: {error.strerror}") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
        finally:
            os.close(file)


def _slots(file: int) -> list[SessionEnd | None]:
    data = os.pread(file, MOST_SLOTS * SLOT_BYTES, 0)
    return [_parse(data[start : start + SLOT_BYTES]) for start in range(0, len(data), SLOT_BYTES)]


def _parse(slot: bytes) -> SessionEnd | None:
    try:
        return SessionEnd(**json.loads(slot.rstrip(b"\0"))) if slot[:1] != b"\0" else None
    except (ValueError, TypeError):
        return None  # a process was killed while it wrote


def _places(slots: list[SessionEnd | None], end: SessionEnd) -> Iterator[int]:
    """Yield the places that may take an end, the best first."""
    yield from (place for place, other in enumerate(slots) if other is not None and end.replaces(other))
    yield from (place for place, other in enumerate(slots) if other is None)
    if len(slots) < MOST_SLOTS:
        yield len(slots)
    noted = [(other.at, place) for place, other in enumerate(slots) if other is not None and other.state == NOTED]
    yield from (place for _, place in sorted(noted)[:1])


def _write(file: int, data: bytes, offset: int) -> None:
    if os.pwrite(file, data, offset) < len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.fsync(file)
