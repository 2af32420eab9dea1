"""Client of a running recalld, over HTTP. Standard library only, so that an agent's runtime can carry it.

    from recalld.client import Client

    with Client(url="http://127.0.0.1:7373") as memory:
        for result in memory.search("which port did we give the gateway?")["results"]:
            print(result["path"], result["startLine"], result["snippet"])

`AsyncClient` has the same methods, to be awaited. Answers are the JSON objects of the HTTP interface, as dictionaries
with known keys. Errors: `recalld.client.errors`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .address import agents_with_tokens
from .client import AsyncClient, Client
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

if TYPE_CHECKING:
    from .answers import AgentStatus, GetAnswer, PendingState, SearchAnswer, SearchResult, Status

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


def __getattr__(name: str) -> object:
    # The types of answers: recalld's own commands import this package at every start, and use none of them.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import answers

    return getattr(answers, name)
