"""Ask a running recalld over HTTP. Standard library only, so that an agent's runtime can carry it.

    from recalld.client import Client

    with Client(url="http://127.0.0.1:7373") as memory:
        for result in memory.search("which port did we give the gateway?")["results"]:
            print(result["path"], result["startLine"], result["snippet"])

`AsyncClient` has the same methods, to be awaited. Answers are the JSON objects of the HTTP interface, as dictionaries
with known keys. What is raised: `recalld.client.errors`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import (
    AccessRefused,
    ClientError,
    InvalidSettings,
    RequestRefused,
    ServiceFailed,
    ServiceTimedOut,
    ServiceUnavailable,
    ServiceUnproven,
)
from .home import agents_with_tokens
from .sync_client import Client

if TYPE_CHECKING:
    from .answers import GetAnswer, PendingState, SearchAnswer, SearchResult
    from .async_client import AsyncClient
    from .status_answers import AgentStatus, Status

__all__ = [
    "AccessRefused",
    "AgentStatus",
    "AsyncClient",
    "Client",
    "ClientError",
    "GetAnswer",
    "InvalidSettings",
    "PendingState",
    "RequestRefused",
    "SearchAnswer",
    "SearchResult",
    "ServiceFailed",
    "ServiceTimedOut",
    "ServiceUnavailable",
    "ServiceUnproven",
    "Status",
    "agents_with_tokens",
]

# recalld's own commands import this package at every start, and use none of these.
_LATER = {
    "AgentStatus": "status_answers",
    "AsyncClient": "async_client",
    "GetAnswer": "answers",
    "PendingState": "answers",
    "SearchAnswer": "answers",
    "SearchResult": "answers",
    "Status": "status_answers",
}


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_LATER[name]}", __name__), name)
