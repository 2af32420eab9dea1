"""The one way to an agent's memory, for every door: `get_search_manager`, which never raises."""

from __future__ import annotations

import structlog

from memory.search.builtin import BuiltinManager
from memory.search.manager import SearchManager
from memory.search.resources import SearchResources
from schemas.errors import RecalldError
from schemas.ports import EventInbox, PendingReader
from schemas.settings import Settings

__all__ = ["BuiltinManager", "SearchManager", "SearchResources", "get_search_manager"]

_log = structlog.get_logger(__name__)


def get_search_manager(
    settings: Settings,
    agent_id: str,
    *,
    resources: SearchResources | None = None,
    pending: PendingReader | None = None,
    inbox: EventInbox | None = None,
) -> tuple[SearchManager | None, str | None]:
    """Return an agent's manager, or None and one sentence that says why there is none.

    Args:
        settings: the whole tree.
        agent_id: whose memory.
        resources: threads and providers, shared by the managers of a process and closed by whoever made them;
            without them the manager makes its own and closes them with itself.
        pending: how to ask how far the index is behind; None when nothing can be asked.
        inbox: where `sync` leaves its request; None when nothing listens.
    """
    try:
        agent = settings.agent(agent_id)
    except KeyError as error:
        return None, str(error.args[0])
    if not agent.enabled:
        return None, f"the memory of agent {agent_id!r} is switched off (enabled = false)"
    try:
        return BuiltinManager(settings, agent, resources=resources, pending=pending, inbox=inbox), None
    except RecalldError as error:
        return None, str(error)
    except Exception as error:  # noqa: BLE001 - a door must not fall over one agent; the log keeps the reason
        _log.exception("search_manager_failed", agent=agent_id)
        return None, f"the memory of agent {agent_id!r} cannot be opened: {type(error).__name__}"
