"""Events that found no broker: one small file each under `home/spool`, delivered later.

A file is written under a hidden name, synced and renamed, so that a reader sees it whole or not at all. What
cannot be read as an event is moved to `home/spool/damaged` beside a text that says why.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from memory.scan_problems import printable
from schemas.ports import Event

SPOOL = "spool"
DAMAGED = "damaged"

#: No event is larger; whatever is, was not written by us.
MAX_BYTES = 4 * 1024 * 1024

#: A hidden file that was not renamed for so long belongs to a writer that died.
ABANDONED_SECONDS = 3600.0


#: Bytes of a name that leave room for an ending.
_LONGEST_NAME = 240

_EXHAUSTED = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM))


@dataclass(frozen=True, slots=True)
class DrainReport:
    """How many events were delivered, and one sentence for each file that was set aside."""

    delivered: int
    set_aside: tuple[str, ...] = ()


class _NotAnEventError(ValueError):
    """The file is no event; the message says why."""


def write_event(home: Path, event: Event) -> Path:
    """Leave one event for the next `drain`. Durable when this returns.

    Raises:
        OSError: it could not be written.
    """
    folder = home / SPOOL
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # The name sorts by time; the random part keeps writers of the same nanosecond apart.
    path = folder / f"{time.time_ns():020d}-{uuid.uuid4().hex[:12]}.json"
    hidden = folder / f".{path.name}"
    descriptor = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump({"kind": event.kind, "agent": event.agent, "paths": event.paths}, file)
            file.flush()
            os.fsync(file.fileno())
        hidden.rename(path)
    except BaseException:
        hidden.unlink(missing_ok=True)
        raise
    return path


def drain(home: Path, deliver: Callable[[Event], None]) -> DrainReport:
    """Hand over all spooled events, oldest first, and remove each once it is delivered.

    What `deliver` raises is passed on; its event and the later ones stay. An event may be delivered again after
    a crash.
    """
    delivered = 0
    set_aside: list[str] = []
    for path in _waiting(home / SPOOL):
        try:
            event = _read(path)
        except FileNotFoundError:
            continue  # somebody else drains, too
        except _NotAnEventError as error:
            set_aside.append(_set_aside(path, str(error)))
            continue
        except OSError as error:
            if error.errno in _EXHAUSTED:
                raise  # says nothing of this file
            set_aside.append(_set_aside(path, error.strerror or str(error)))
            continue
        deliver(event)
        path.unlink(missing_ok=True)
        delivered += 1
    return DrainReport(delivered, tuple(set_aside))


def _waiting(folder: Path) -> list[Path]:
    try:
        paths = sorted(folder.iterdir())
    except FileNotFoundError:
        return []
    for path in paths:
        if path.name.startswith("."):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - path.lstat().st_mtime > ABANDONED_SECONDS:
                    path.unlink()
    return [path for path in paths if path.name != DAMAGED and not path.name.startswith(".")]


def _read(path: Path) -> Event:
    # O_NONBLOCK: opening a named pipe must not wait for its writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise _NotAnEventError("it is not a regular file")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(MAX_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(data) > MAX_BYTES:
        raise _NotAnEventError(f"it is larger than {MAX_BYTES} bytes")
    try:
        return _parse(json.loads(data))
    except RecursionError:
        raise _NotAnEventError("its JSON is nested too deeply") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise _NotAnEventError(f"it is not JSON: {error}") from None
    except ValueError as error:
        raise _NotAnEventError(str(error)) from None


def _parse(raw: object) -> Event:
    if not isinstance(raw, dict):
        raise _NotAnEventError("it does not hold a JSON object")
    kind, agent, paths = raw.get("kind"), raw.get("agent"), raw.get("paths", [])
    if not isinstance(kind, str) or not isinstance(agent, str):
        raise _NotAnEventError("kind and agent must be texts")
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise _NotAnEventError("paths must be a list of texts")
    return Event(kind, agent, tuple(paths))


def _set_aside(path: Path, reason: str) -> str:
    folder = path.parent / DAMAGED
    folder.mkdir(mode=0o700, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        path.rename(folder / path.name)
    sentence = f"the spool file {printable(path.name)} was set aside: {reason}"
    # A name may be as long as names can be.
    name = os.fsdecode(os.fsencode(path.name)[:_LONGEST_NAME])
    (folder / f"{name}.reason").write_text(sentence + "\n", encoding="utf-8")
    return sentence
