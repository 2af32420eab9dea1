"""Answers without a running service: this process reads the index itself, by keywords only.

Loading a model or a provider's SDK for one query would take seconds; a running service has loaded it.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from recalld.local.fallback import Absence
from recalld.settings import keyword_snapshot
from recalld.settings.load import settings_key

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memory.search.tools import SearchableMemory
    from recalld.invocation import Invocation

#: Remedies for the absence of search by meaning.
_REMEDIES = {
    Absence.NOT_RUNNING: "`recalld up` adds search by meaning",
    Absence.NO_ANSWER: "`recalld doctor` looks for the reason",
    Absence.STOPPED: "`recalld status` says how it goes on",
    Absence.OUTDATED: "the restarted one adds search by meaning",
    Absence.UNPROVEN: "the restarted service adds search by meaning",
}


def keywords_only(absence: Absence) -> str:
    """Return the remark beside an answer that this process found."""
    return f"{absence}, so this is keywords only; {_REMEDIES[absence]}"


def search(
    invocation: Invocation, request: dict[str, Any], *, absence: Absence = Absence.NOT_RUNNING
) -> dict[str, Any]:
    """Search. Return the answer as the service would give it, with a remark on missing results.

    Raises:
        UserError: the settings are wrong, or no agent is known.
    """
    key = settings_key(config=invocation.config, home=invocation.home_path)
    answer = None
    by_meaning = True
    # Only the manager knows scope rules, which a session key needs, and corpora.
    is_plain = request.get("session_key") is None and request.get("corpus") is None
    if key is not None and is_plain and request["query"].strip():
        agent = keyword_snapshot.recall(invocation.home_path, key, agent=invocation.agent)
        if agent is not None:
            from recalld.local.keywords import search_keywords

            by_meaning = agent.by_meaning
            answer = search_keywords(agent, request)
    if answer is None:
        by_meaning = invocation.the_agent().provider != "none"
        answer = search_with_manager(invocation, request)
        if key is not None:
            keyword_snapshot.keep(invocation.settings, key)
    if by_meaning and not answer.get("unavailable") and _may_ask(invocation, request):
        answer["degraded"] = [keywords_only(absence), *answer["degraded"]]
    return answer


def _may_ask(invocation: Invocation, request: dict[str, Any]) -> bool:
    """Return True if the session is in scope. Other sessions do not even learn that there is a memory."""
    session_key = request.get("session_key")
    if session_key is None:
        return True
    from memory.search.scope import allows, session_of

    agent = invocation.the_agent()
    return allows(agent.scope, session_of(session_key), agent=agent.id)


def search_with_manager(invocation: Invocation, request: dict[str, Any]) -> dict[str, Any]:
    """Return the answer of the whole search manager, by keywords. Raise like `search`."""
    from schemas.search import SearchRequest

    with _by_keywords(invocation) as memory:
        answer = memory.search(SearchRequest.model_validate(request))
    return answer.model_dump(mode="json", by_alias=True, exclude_none=True)


def get(invocation: Invocation, request: dict[str, Any]) -> dict[str, Any]:
    """Read lines of a memory file. Return the answer as the service would give it. Raise like `search`."""
    from schemas.search import GetRequest

    with _by_keywords(invocation) as memory:
        answer = memory.read_file(GetRequest.model_validate(request))
    return answer.model_dump(mode="json", by_alias=True, exclude_none=True)


@contextmanager
def _by_keywords(invocation: Invocation) -> Iterator[SearchableMemory]:
    from memory.search.manager import UnavailableMemory, get_search_manager
    from recalld.logs import configure_logs

    configure_logs(level=40)

    asked = invocation.the_agent()
    agent = asked.model_copy(update={"provider": "none", "fallback": "none"})
    settings = invocation.settings.model_copy(update={"agents": (agent,)})
    manager, reason = get_search_manager(settings, agent.id)
    if manager is None:
        yield UnavailableMemory(agent, reason or "there is no such memory")
        return
    try:
        yield manager
    finally:
        manager.close()


def status(invocation: Invocation, *, deep: bool) -> dict[str, Any]:
    """Return the status of the asked agent, or of all, with the queue's. Raise like `search`."""
    from memory.search.circuit_breaker import GuardedPendingReader
    from memory.status.summary import build_status
    from recalld.wiring import open_broker
    from workers.queue.connection import IMPATIENT_SECONDS

    settings = invocation.settings.model_copy(update={"agents": invocation.agents()})
    with open_broker(settings, answer_seconds=IMPATIENT_SECONDS) as broker:
        answer = build_status(settings, GuardedPendingReader(broker.board), deep=deep)
    return answer.model_dump(mode="json", by_alias=True, exclude_none=True)
