"""Spool of hooks, of commands' usage, and of events without a broker: one file each, read by the producers.

Writers rename a hidden file, so that readers never see half of a file. The reader moves unreadable files to
`home/spool/damaged`, beside a text with the reason. An agent's program waits for the top-level imports of this module
(`recalld.hooks.entry`).
"""

from __future__ import annotations

import errno
import json
import os
import stat
import time

from producers.hook_events import Hook

TYPE_CHECKING = False  # `typing` is not imported
if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

    from schemas.ports import Event, SpooledUsage

SPOOL = "spool"
DAMAGED = "damaged"

#: Largest number of bytes of a file: writers leave no larger one.
MAX_BYTES = 4 * 1024 * 1024

#: Seconds after which a hidden file belongs to a writer that died.
ABANDONED_SECONDS = 3600.0

#: Bytes of a name that leave room for an ending.
_LONGEST_NAME = 240

_EXHAUSTED = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM))


def write_event(home: Path, event: Event) -> None:
    """Leave one event for the next `drain`.

    Raises:
        OSError: it could not be written.
    """
    _write(os.fspath(home), {"kind": event.kind, "agent": event.agent, "paths": event.paths})


def write_usage(home: Path, spooled: SpooledUsage) -> None:
    """Leave the usage of one request for the next `drain`.

    Raises:
        OSError: it could not be written.
    """
    from dataclasses import asdict

    _write(os.fspath(home), {"usage": {**asdict(spooled), "day": spooled.day.isoformat()}})


def write_hook(home: str, hook: Hook) -> None:
    """Leave one hook for the next `drain`. On a full disk the end of a session takes a slot of `SessionEnds`.

    Raises:
        OSError: it could not be written.
    """
    try:
        _write(home, {"hook": hook._asdict()})
    except OSError:
        if hook.kind != "ended" and (hook.program, hook.kind) != ("codex", "session-start"):
            raise
        from producers.session_ends import SessionEnd, SessionEnds

        SessionEnds(home).put(SessionEnd(hook.at or time.time(), hook=json.dumps(hook)))


def _write(home: str, content: dict[str, object]) -> None:
    """Write one file. Not synced: after a power failure, producers compare all files with the index anyway."""
    folder = os.path.join(home, SPOOL)
    os.makedirs(home, mode=0o700, exist_ok=True)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    # The name sorts by time; the random part keeps writers of the same nanosecond apart.
    name = f"{time.time_ns():020d}-{os.urandom(6).hex()}.json"
    hidden = os.path.join(folder, f".{name}")
    descriptor = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(content, file)
        os.rename(hidden, os.path.join(folder, name))
    except BaseException:
        if os.path.exists(hidden):
            os.unlink(hidden)
        raise


def drain(home: Path, deliver: Callable[[Event | Hook | SpooledUsage], None]) -> tuple[str, ...]:
    """Deliver all spooled files, oldest first, and remove each one after its delivery.

    Return one sentence for each file that was set aside. After an exception of `deliver`, which passes through, its
    file and the later ones stay. After `EndUnkept` only its file stays. A crash may cause a second delivery.
    """
    from contextlib import suppress

    from producers.session_ends import EndUnkept

    set_aside: list[str] = []
    for path in _waiting(home / SPOOL):
        try:
            event = _read(path)
        except FileNotFoundError:
            continue  # another process drains, too
        except (ValueError, OSError) as error:
            if isinstance(error, OSError) and error.errno in _EXHAUSTED:
                raise  # says nothing of this file
            set_aside.append(_set_aside(path, getattr(error, "strerror", None) or str(error)))
        else:
            with suppress(EndUnkept):
                deliver(event)
                path.unlink(missing_ok=True)
    return tuple(set_aside)


def _waiting(folder: Path) -> list[Path]:
    try:
        paths = sorted(folder.iterdir())
    except FileNotFoundError:
        return []
    for path in paths:
        if path.name.startswith("."):
            try:
                if time.time() - path.lstat().st_mtime > ABANDONED_SECONDS:
                    path.unlink()
            except FileNotFoundError:
                pass  # its writer is done
    return [path for path in paths if path.name != DAMAGED and not path.name.startswith(".")]


def _read(path: Path) -> Event | Hook | SpooledUsage:
    """Return the content of a file. Raise ValueError with the reason if it has none."""
    # O_NONBLOCK: opening a named pipe must not wait for its writer.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is not a regular file")
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES} bytes")
    try:
        raw = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {error}") from None
    return _parse(raw)


def _parse(raw: Any) -> Event | Hook | SpooledUsage:
    from schemas.ports import Event

    if isinstance(raw, dict) and "usage" in raw:
        return _usage_of(raw["usage"])
    hook = raw.get("hook") if isinstance(raw, dict) else None
    entry = raw if hook is None else hook
    if not isinstance(entry, dict):
        raise ValueError("it does not hold a JSON object")  # noqa: TRY004 - content of a file
    texts: dict[str, Any] = {name: entry.get(name) for name in ("kind", "agent", "session", "meant", "program")}
    needed = ("kind", "agent") if hook is None else ("kind",)
    present = [text for name, text in texts.items() if text is not None or name in needed]
    paths, at = entry.get("paths", []), entry.get("at")
    if not isinstance(paths, list) or not all(isinstance(text, str) for text in (*present, *paths)):
        raise ValueError("its kind, agent, session and paths must be texts")
    if hook is None:
        return Event(texts["kind"], texts["agent"], tuple(paths))
    return Hook(paths=tuple(paths), at=at if isinstance(at, float) else None, **texts)


def _usage_of(raw: Any) -> SpooledUsage:
    from datetime import date

    from schemas.ports import SpooledUsage, Usage

    try:
        agents = {str(agent): Usage(**share) for agent, share in raw["agents"].items()}
        day = date.fromisoformat(raw["day"])
        return SpooledUsage(Usage(**raw["usage"]), agents, queries=bool(raw["queries"]), day=day)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"it does not hold a usage: {error}") from None


def _set_aside(path: Path, reason: str) -> str:
    from memory.documents.scan import printable

    folder = path.parent / DAMAGED
    folder.mkdir(mode=0o700, exist_ok=True)
    try:
        path.rename(folder / path.name)
    except FileNotFoundError:
        pass  # another process drains, too
    sentence = f"the spool file {printable(path.name)} was set aside: {reason}"
    # A name may be as long as names can be.
    name = os.fsdecode(os.fsencode(path.name)[:_LONGEST_NAME])
    (folder / f"{name}.reason").write_text(sentence + "\n", encoding="utf-8")
    return sentence
