"""Answers about one home, from its running service, else from this process, which embeds the query itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias

from memory.status.run_files import is_stopped
from recalld.client import (
    Client,
    InvalidSettings,
    RequestRefused,
    ServiceTimedOut,
    ServiceUnavailable,
    ServiceUnproven,
    agents_with_tokens,
)
from recalld.client.address import running_service
from recalld.invocation import Invocation
from recalld.settings.load import agent_problem
from schemas.errors import UserError

if TYPE_CHECKING:
    from pydantic import BaseModel

    from memory.search.manager import SearchManager
    from memory.search.searchable import SearchableMemory
    from schemas.settings import AgentSettings, Settings
    from schemas.status import Status

#: A JSON object, as the service answers it.
Answer = Mapping[str, Any]

OpenMemory: TypeAlias = "Callable[[], AbstractContextManager[SearchableMemory]]"

#: Seconds in which a model of the user's own must load. The bundled one takes less, unless the machine is very busy.
USER_MODEL_SECONDS, BUNDLED_MODEL_SECONDS = 2.0, 10.0


class Absence(Enum):
    """Reason why this process finds the answer itself."""

    NOT_RUNNING = "no service is running"
    NOT_ASKED = "this process asks the index itself"
    NO_ANSWER = "the service did not answer in time (`recalld doctor` looks for the reason)"
    STOPPED = "the service's process is stopped (`recalld status` says how it goes on)"
    UNPROVEN = "another program answers where the service of this home did (restart `recalld up`)"


#: Reasons of which an answer tells: a service of this home runs.
_FAULTS = frozenset({Absence.NO_ANSWER, Absence.STOPPED, Absence.UNPROVEN})


def search(
    invocation: Invocation,
    query: str,
    *,
    memory: OpenMemory | None = None,
    all_agents: bool = False,
    **request: Any,
) -> Answer:
    """Search. `request` has the further arguments of `Client.search`. `memory` takes the place of `local_memory`.

    With `all_agents`, a call that names none of several agents searches the memory of all. Otherwise it is refused.

    Raises:
        UserError: the service refused, the settings are wrong, or no agent is known.
    """

    def in_this_process(absence: Absence) -> Answer:
        from memory.search.scope import allows, session_of
        from schemas.search import SearchRequest

        # No note that is being indexed is waited for here, only the model.
        search_request = SearchRequest.model_validate({"query": query, **request, "wait_ms": None})
        with memory() if memory is not None else local_memory(invocation, all_agents=all_agents) as opened:
            answer = _json(opened.search(search_request))
        session = session_of(search_request.session_key)
        agents = _agents(invocation, all_agents=all_agents)
        # A session out of scope does not even learn that there is a memory.
        agents = [agent for agent in agents if allows(agent.scope, session, agent=agent.id)]
        backends = {agent.backend: None for agent in agents if agent.backend != "builtin"}
        remarks = [f"{absence.value}, so recalld's own index answers in place of {backend}" for backend in backends]
        if agents and not remarks and absence in _FAULTS and not answer.get("unavailable"):
            remarks = [absence.value]
        answer["degraded"] = [*remarks, *answer["degraded"]]
        return answer

    def by_service(client: Client) -> Answer:
        return client.search(query, agent=invocation.agent, **request)

    return _ask(invocation, by_service, in_this_process, as_owner=all_agents)


def get(
    invocation: Invocation, path: str, *, start_line: int | None = None, all_agents: bool = False, **request: Any
) -> Answer:
    """Read lines of a memory file. `request` has the further arguments of `Client.get`.

    With `all_agents`, a call that names none of several agents reads from the only agent that has the file. Raise like
    `search`.
    """

    def in_this_process(_: Absence) -> Answer:
        from schemas.search import GetRequest

        get_request = GetRequest.model_validate({"path": path, "from": start_line, **request})
        with local_memory(invocation, all_agents=all_agents) as memory:
            return _json(memory.read_file(get_request))

    arguments = {"agent": invocation.agent, "start_line": start_line, **request}
    return _ask(invocation, lambda client: client.get(path, **arguments), in_this_process, as_owner=all_agents)


def status(invocation: Invocation, *, deep: bool, on_absence: Callable[[str], None]) -> Answer:
    """Return the status of the agent of this call, or of all agents, with the queue's. Raise like `search`."""

    def in_this_process(absence: Absence) -> Answer:
        from memory.backends.registry import with_absent_backends
        from memory.status.home import build_status, fleet_state
        from recalld.wiring import open_broker
        from workers.queue.connection import IMPATIENT_SECONDS

        if absence is not Absence.NOT_ASKED:
            on_absence(absence.value)
        settings, fleet = invocation.settings, None
        with open_broker(settings, answer_seconds=IMPATIENT_SECONDS, reads_only=True) as broker:
            if invocation.fleet is not None and not invocation.names_agent:
                fleet = fleet_state(invocation.fleet, broker.health)
            agents = invocation.agents(lambda _: fleet.troubled if fleet is not None else ())
            settings = settings.model_copy(update={"agents": agents})
            answer = build_status(settings, broker.health, deep=deep, fleet=fleet)
        if deep:
            answer = _probed(settings, answer)
        return _json(with_absent_backends(settings, answer))

    return _ask(invocation, lambda client: client.status(agent=invocation.agent, deep=deep), in_this_process)


def _probed(settings: Settings, status: Status) -> Status:
    """Add the probes of the agents that this process can search."""
    from schemas.status import Probes

    probes = {}
    searched = tuple(settings.agent(agent.agent) for agent in status.agents if agent.index.sent_to is None)
    with _managers(settings.model_copy(update={"agents": searched})) as managers:
        for manager in (manager for manager, _ in managers if manager is not None):
            embedding, vectors = manager.probe_embedding_availability(), manager.probe_vector_availability()
            probes[manager.agent.id] = Probes(embedding=embedding, vectors=vectors)
    agents = (agent.model_copy(update={"probes": probes.get(agent.agent)}) for agent in status.agents)
    return status.model_copy(update={"agents": tuple(agents)})


def context(invocation: Invocation, **request: Any) -> Answer:
    """Report on a session's context. `request` has the arguments of `Client.context`. Raise like `search`."""

    def in_this_process(_: Absence) -> Answer:
        from memory.context.agent_context import AgentContext
        from memory.context.injection import InjectedSessions
        from memory.search.manager import SearchManager

        with local_memory(invocation) as memory:
            reading = memory.reading if isinstance(memory, SearchManager) else nullcontext
            agent = invocation.the_agent()
            context = AgentContext(invocation.settings, agent, memory, InjectedSessions(), reading=reading)
            return _json(context.report(**request))

    return _ask(invocation, lambda client: client.context(agent=invocation.agent, **request), in_this_process)


def _json(answer: BaseModel) -> dict[str, Any]:
    """Return an answer of this process as the service writes it."""
    return answer.model_dump(mode="json", by_alias=True, exclude_none=True)


def _ask(
    invocation: Invocation,
    service: Callable[[Client], Answer],
    in_this_process: Callable[[Absence], Answer],
    *,
    as_owner: bool = True,
) -> Answer:
    """Return the answer of the service, else of this process. Raise like `search`.

    `as_owner` shows the owner's token; without it a request that names none of several agents is refused.
    """
    if invocation.workspace is not None:
        return in_this_process(Absence.NOT_ASKED)
    running = running_service(invocation.home_path)
    is_clear = as_owner or invocation.agent is not None
    client = Client.at_home(invocation.home_path, agent=invocation.agent, as_owner=is_clear)
    absence = Absence.NOT_RUNNING
    if running is not None and is_stopped(running.pid):
        absence = Absence.STOPPED  # a stopped process does not answer
    elif client is not None:
        try:
            return service(client)
        except ServiceTimedOut:
            absence = Absence.NO_ANSWER
        except ServiceUnproven:
            absence = Absence.UNPROVEN
        except ServiceUnavailable:
            pass  # it starts, stops or is gone; the index is there
        except RequestRefused as error:
            # A fleet's service takes access tokens, of which this home has none.
            if error.status != 401 or invocation.fleet is None:
                raise _error_of(invocation, error) from None
            absence = Absence.NOT_ASKED
        except InvalidSettings as error:
            raise UserError(str(error), exit_code=2) from None
    return in_this_process(absence)


def _error_of(invocation: Invocation, error: RequestRefused) -> UserError:
    agent_ids = agents_with_tokens(invocation.home_path)
    problem = agent_problem(agent_ids, invocation.agent) if error.status in (400, 401, 404) and agent_ids else None
    return problem or UserError(str(error), exit_code=2 if error.status in (400, 404, 422) else 1)


def _agents(invocation: Invocation, *, all_agents: bool) -> Sequence[AgentSettings]:
    """Return the agents whose memory this process opens; with `all_agents`, several if the call names none."""
    from memory.search.owners_memory import enabled_agents

    if all_agents and not invocation.names_agent and invocation.settings.agents:
        return enabled_agents(invocation.settings)
    return [invocation.the_agent()]


@contextmanager
def local_memory(invocation: Invocation, *, all_agents: bool = False) -> Iterator[SearchableMemory]:
    """Open the agent's memory in this process; with `all_agents`, that of all if the call names none of several."""
    from memory.search.manager import UnavailableMemory
    from memory.search.owners_memory import OwnersMemory

    agents = _agents(invocation, all_agents=all_agents)
    settings = invocation.settings.model_copy(update={"agents": tuple(agents)})
    with _managers(settings) as managers:
        memories: dict[str, SearchableMemory] = {
            agent.id: manager or UnavailableMemory(agent, reason or "there is no such memory")
            for agent, (manager, reason) in zip(agents, managers, strict=True)
        }
        of_all = all_agents and not invocation.names_agent and len(invocation.settings.agents) > 1
        yield OwnersMemory(memories, settings) if of_all else memories[agents[0].id]


@contextmanager
def _managers(settings: Settings) -> Iterator[Sequence[tuple[SearchManager | None, str | None]]]:
    """Open the agents' managers; see `get_search_manager`."""
    from memory.search.manager import get_search_manager
    from memory.search.resources import SearchResources
    from recalld.logs import configure_logs
    from recalld.wiring import CommandRequests

    configure_logs(level=40)
    is_bundled = all(agent.local.model_path is None for agent in settings.agents)
    seconds = BUNDLED_MODEL_SECONDS if is_bundled else USER_MODEL_SECONDS
    resources = SearchResources(settings, coordinate=CommandRequests(settings), model_wait_seconds=seconds)
    with ExitStack() as opened:
        opened.enter_context(closing(resources))
        managers = [get_search_manager(settings, agent.id, resources=resources) for agent in settings.agents]
        for manager, _ in managers:
            if manager is not None:
                opened.enter_context(closing(manager))
        yield managers
