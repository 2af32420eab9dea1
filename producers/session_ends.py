"""Ends of sessions in the file `home/session-ends`: slots of one size, whose space is reserved beforehand.

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

#: Number of slots at first, and largest number of slots.
RESERVED_SLOTS: Final = 256
MOST_SLOTS: Final = 2048

#: States of a session: it continues, its end waits for a note, its note is written.
OPEN: Final = "open"
ENDED: Final = "ended"
NOTED: Final = "noted"


class EndUnkept(OSError):
    """Failure to record the end of a session."""


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """End of the session of the transcript at `path`, at Unix time `at`.

    `last_digest`: digest of the last message in the session's note. `hook`: JSON of a hook that no producer has read
    yet. It stands for all fields but the time.
    """

    at: float
    agent: str = ""
    path: str = ""
    program: str = ""
    state: str = ENDED
    last_digest: str = ""
    hook: str = ""

    def replaces(self, record: SessionEnd) -> bool:
        """Return True for an earlier record of this end."""
        is_same = (self.agent, self.path, self.hook) == (record.agent, record.path, record.hook)
        return is_same and (self.at == record.at or self.state == record.state == OPEN)


class SessionEnds:
    """The file of a home. Safe to use from several threads and processes."""

    def __init__(self, home: str | os.PathLike[str]) -> None:
        self._file = Path(home, "session-ends")

    def reserve(self) -> None:
        """Reserve the space of the file. Raise OSError if there is no room."""
        with self._locked() as file:
            size = os.fstat(file).st_size
            # Zeros are written: some file systems promise space that they do not have.
            _write(file, bytes(max(0, RESERVED_SLOTS * SLOT_BYTES - size)), size)

    def all(self) -> list[SessionEnd]:
        """Return all ends, the earliest first."""
        with self._locked() as file:
            return sorted(_slots(file).values(), key=lambda end: end.at)

    def put(self, end: SessionEnd) -> None:
        """Record an end on the disk, in place of its earlier record. If need be, it replaces the oldest noted session.

        Raises:
            EndUnkept: no slot is free, or the file cannot be opened.
            ValueError: it is longer than a slot.
        """
        data = json.dumps(asdict(end)).encode().ljust(SLOT_BYTES, b"\0")
        if len(data) > SLOT_BYTES:
            raise ValueError("the names of the session's agent and transcript are too long")
        with self._locked() as file:
            slots, size = _slots(file), os.fstat(file).st_size // SLOT_BYTES
            earlier = [place for place, record in slots.items() if end.replaces(record)]
            free = [place for place in range(min(size + 1, MOST_SLOTS)) if place not in slots]
            noted = sorted((record.at, place) for place, record in slots.items() if record.state == NOTED)
            for place in (*earlier, *free, *(place for _, place in noted[:1])):
                with suppress(OSError):
                    return _write(file, data, place * SLOT_BYTES)
        raise EndUnkept(errno.ENOSPC, f"{self._file} has no free slot, and the disk no room for another")

    def drop(self, *ends: SessionEnd) -> None:
        """Free the slots of ends."""
        with self._locked() as file:
            for place, end in _slots(file).items():
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


def _slots(file: int) -> dict[int, SessionEnd]:
    """Return the ends in the file, by the places of their slots."""
    slots, data = {}, os.pread(file, MOST_SLOTS * SLOT_BYTES, 0)
    for start in range(0, len(data), SLOT_BYTES):
        # A slot is free, or a process was killed while it wrote.
        with suppress(ValueError, TypeError):
            slots[start // SLOT_BYTES] = SessionEnd(**json.loads(data[start : start + SLOT_BYTES].rstrip(b"\0")))
    return slots


def _write(file: int, data: bytes, offset: int) -> None:
    if os.pwrite(file, data, offset) < len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.fsync(file)
