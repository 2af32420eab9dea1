"""A hook's JSON from standard input, within limits: of bytes, and of time when nobody writes."""

from __future__ import annotations

import json
import os
import select
import time

from producers.hook_payloads import MAX_PAYLOAD_BYTES, HookUnreadable

#: Seconds that the program which calls us gets to write its hook.
WAIT_SECONDS = 1.0

_PIECE = 1 << 16


def read_input(descriptor: int = 0, *, wait_seconds: float = WAIT_SECONDS) -> bytes:
    """Read until the end, until a whole JSON text is there and nothing follows, or until the time is over.

    Raises:
        HookUnreadable: it is a terminal, or nothing came.
    """
    data = bytearray()
    deadline = time.monotonic() + wait_seconds
    try:
        if os.isatty(descriptor):
            raise HookUnreadable("a hook's JSON is read from standard input, which is a terminal here")
        while len(data) <= MAX_PAYLOAD_BYTES:
            if not _ready(descriptor, 0.0) and (_is_whole(data) or not _ready(descriptor, deadline - time.monotonic())):
                break
            piece = os.read(descriptor, _PIECE)
            if not piece:
                break
            data += piece
    except OSError as error:
        raise HookUnreadable(f"standard input cannot be read ({error.strerror})") from None
    if not data.strip():
        raise HookUnreadable("nothing came on standard input, where the hook's JSON is expected")
    return bytes(data)


def _ready(descriptor: int, seconds: float) -> bool:
    return bool(select.select([descriptor], [], [], max(seconds, 0.0))[0])


def _is_whole(data: bytearray) -> bool:
    """Whether the writer is done, though it keeps its end open."""
    if not data.rstrip().endswith(b"}"):
        return False
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True
