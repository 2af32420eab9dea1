"""How much one client may take of a service that listens: time, bytes and connections."""

from __future__ import annotations

import resource
from dataclasses import dataclass

#: Connections at most, where the system's limit of open files allows so many.
_MOST_CONNECTIONS = 512

#: Part of the open files that connections may take; the rest is for indexes, which are what they ask for.
_PART_OF_OPEN_FILES = 4


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a client gets; one that takes more is told so, where it listens at all, and sent away.

    Attributes:
        connections: held at a time. Whoever comes then takes the place of the client that has been waited for longest;
            where all are being answered, it is refused.
        head_seconds: from the first byte of a request to the end of its headers, and for saying nothing at all.
        body_seconds: from there to the end of the body.
        answer_seconds: for taking `answer_bytes` of an answer.
        leaving_seconds: for a client that was refused to read why.
        leaving_bytes: that it may still send until then; they are thrown away.
        head_bytes: of a request line and its headers together.
        headers: how many.
        body_bytes: of a body as it comes, with what it is wrapped into; after them the connection is cut off. What a
            request may hold is said, in words, by whoever reads it (`security.MAX_BODY_BYTES`).
        bodies_bytes: of the bodies that are still coming, on all connections together; where there are more, the one
            that has been waited for longest is refused. Small ones do not count, of which a connection may have one.
        waiting_requests: read at a time of those sent without waiting for the answers to those before.
    """

    connections: int = _MOST_CONNECTIONS
    head_seconds: float = 10.0
    body_seconds: float = 30.0
    answer_seconds: float = 15.0
    answer_bytes: int = 64 * 1024
    leaving_seconds: float = 2.0
    leaving_bytes: int = 64 * 1024 * 1024
    head_bytes: int = 64 * 1024
    headers: int = 100
    body_bytes: int = 16 * 1024 * 1024
    bodies_bytes: int = 64 * 1024 * 1024
    waiting_requests: int = 16


def bounds_here() -> Bounds:
    """The bounds for this process, whose open files are limited."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    allowed = _MOST_CONNECTIONS if limit == resource.RLIM_INFINITY else limit // _PART_OF_OPEN_FILES
    return Bounds(connections=min(_MOST_CONNECTIONS, allowed))
