"""Model Context Protocol over standard input and output, for the memory of one home."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import unquote, urlsplit

import anyio
from mcp.server.context import ServerRequestContext
from mcp.server.session import ServerSession
from mcp.server.stdio import stdio_server
from mcp.shared._stream_protocols import ReadStream, WriteStream
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp_types import (
    JSONRPCError,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    ListRootsRequest,
    ListRootsResult,
)

from memory.search.searchable import SearchableMemory, unavailable
from memory.search.tool_definitions import OWNERS_TOOLS, TOOLS, call_tool
from memory.service.mcp_server import build_server
from recalld.hooks.entry import file_beginning
from recalld.invocation import Invocation
from recalld.local import answers
from recalld.logs import configure_logs
from recalld.settings.places import absolute
from schemas.errors import RecalldError, UserError
from schemas.search import GetAnswer, GetRequest, SearchAnswer, SearchRequest
from schemas.settings import AgentSettings, Limits

Context: TypeAlias = ServerRequestContext[Any]

#: Said once by a process that answers by itself.
_NO_SERVICE = (
    "no service is running, so changed notes are not indexed and every program loads the model itself; "
    "`recalld service install` runs it for good"
)


#: Seconds that a program gets to name its folders (`roots/list`).
ROOTS_SECONDS = 2.0


def serve_stdio(invocation: Invocation, *, session_key: str | None, all_agents: bool) -> None:
    """Answer all requests until standard input ends.

    Settings are read at the first call: the calling model learns of a mistake in them, and the program still starts.
    `session_key` names the calling session; it is stronger than the key of a call. With `all_agents`, calls search the
    memory of all agents; otherwise the place of the program chooses among several (`agent_at`).

    Raises:
        UserError: there is no standard input or output.
        BrokenPipeError: the client went away without waiting for the answers.
    """
    if sys.stdin is None or sys.stdout is None:
        raise UserError("`recalld mcp` speaks on its standard input and output, and one of them is closed")
    configure_logs(level=logging.WARNING)
    # Reading standard input blocks a thread that only its end would free; an interrupt is to end the process at once.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    client_is_gone = False
    try:
        with contextlib.ExitStack() as opened:
            asyncio.run(_serve(LocalMemories(invocation, opened, all_agents=all_agents), session_key))
    except* BrokenPipeError:
        client_is_gone = True
        # The library's writer still holds what has no reader, and Python 3.14 says so when it takes it apart.
        sys.unraisablehook = lambda _: None
    if client_is_gone:
        raise BrokenPipeError


async def _serve(memories: LocalMemories, session_key: str | None) -> None:
    tools = OWNERS_TOOLS if memories.all_agents else TOOLS

    async def answer(name: str, arguments: Mapping[str, Any], key: str | None, context: Context) -> dict[str, Any]:
        memory = await _memory_at_place(memories, context.session)
        return await call_tool(memory, name, arguments, session_key=session_key or key, tools=tools)

    server = build_server(answer, definitions=tools)
    async with stdio_server() as streams, until_all_answered(*streams) as (incoming, outgoing):
        # Standard output belongs to the protocol: nothing may be printed there by mistake.
        with contextlib.redirect_stdout(sys.stderr):
            await server.run(incoming, outgoing, server.create_initialization_options())


# The agent of a call


async def _memory_at_place(memories: LocalMemories, session: ServerSession) -> SearchableMemory:
    """Return the memory for a call: the agent that the command names, else the only one, else the agent of the place.

    The settings are read anew for each call, so that an agent that joins them changes no other agent's connection.
    """
    invocation = memories.invocation
    if invocation.agent is not None or memories.all_agents:
        return HomeMemory(invocation, memories)
    invocation = replace(invocation)
    try:
        agents = invocation.settings.agents
    except RecalldError:
        return HomeMemory(invocation, memories)  # the answer has the reason
    if len(agents) > 1:
        folders = await _folders_of(session)
        client = session.client_params
        program = client.client_info.name if client is not None else ""
        agent = next(filter(None, (agent_at(folder, agents, program=program) for folder in folders)), None)
        if agent is None:
            places, names = (", ".join(map(str, folders)), ", ".join(agent.id for agent in agents))
            problem = (
                f"no agent has its workspace around {places}, so nothing was searched; the agents are {names}: "
                "start `recalld mcp --agent ID` for one of them, or `recalld mcp --all-agents` for all"
            )
            return HomeMemory(invocation, memories, problem=UserError(invocation.to_type(problem)))
        invocation.agent = agent
    return HomeMemory(invocation, memories)


async def _folders_of(session: ServerSession) -> list[Path]:
    """Return the folders that the program has open, if it names them, else the current folder.

    A program that has folders open may have been started in any other.
    """
    capabilities = session.client_capabilities
    if session.can_send_request and capabilities is not None and capabilities.roots is not None:
        with contextlib.suppress(MCPError, ValueError):
            listed = await session.send_request(ListRootsRequest(), ListRootsResult, ROOTS_SECONDS)
            if listed.roots:
                return [Path(unquote(urlsplit(str(root.uri)).path)) for root in listed.roots]
    return [Path.cwd()]


def agent_at(folder: Path, agents: Sequence[AgentSettings], *, program: str = "") -> str | None:
    """Return the agent of a folder: its workspace, or the project of its transcripts, is the innermost around it.

    A linked worktree of git counts as the repository. Of several agents of one project, the agent with the transcripts
    of the `program` is taken, else the first.
    """
    by_place: dict[str, list[AgentSettings]] = {}
    for agent in agents:
        for name in {os.path.realpath(agent.workspace), *_projects(agent)}:
            by_place.setdefault(name, []).append(agent)
    folder = folder.resolve()
    repository = _in_repository(folder)
    home = Path(absolute("~")).resolve()
    for place in (folder, *folder.parents, *((repository, *repository.parents) if repository is not None else ())):
        if place in (home, *home.parents) and place != folder:
            continue  # the user's own folder is around everything, unknown clones included
        of_place = by_place.get(str(place)) or by_place.get(re.sub("[^A-Za-z0-9]", "-", str(place)))
        if of_place:
            hidden_folder = f"{os.sep}.{re.split('[^a-z]', program.lower())[0]}{os.sep}"
            of_program = (agent for agent in of_place if any(hidden_folder in path for path in agent.sessions))
            return next(of_program, of_place[0]).id
    return None


def _projects(agent: AgentSettings) -> Iterator[str]:
    """Yield the names under which Claude Code and Qwen Code keep the agent's transcripts: `.../projects/<name>`.

    A name is the path of the project's folder with dashes in place of everything but letters and digits.
    """
    for sessions in agent.sessions:
        before, _, after = sessions.partition(f"{os.sep}projects{os.sep}")
        if before and after:
            yield after.partition(os.sep)[0]


def _in_repository(folder: Path) -> Path | None:
    """Return the same folder in the repository of a linked worktree of git; None in every other folder.

    Only a worktree that the repository itself lists counts: a file `.git` may come from a stranger.
    """
    top = next((place for place in (folder, *folder.parents) if (place / ".git").exists()), None)
    if top is None or not (top / ".git").is_file():
        return None
    try:
        entry = (top / file_beginning(str(top / ".git")).removeprefix("gitdir:").strip()).resolve()
        git, listed = entry.parents[1], entry / file_beginning(str(entry / "gitdir")).strip()
    except (OSError, ValueError, IndexError):
        return None
    if (git.name, entry.parent.name, listed.resolve()) != (".git", "worktrees", top / ".git"):
        return None
    return git.parent / folder.relative_to(top)


class LocalMemories:
    """Memories that this process opens while no service runs, each once. Thread-safe."""

    def __init__(self, invocation: Invocation, opened: contextlib.ExitStack, *, all_agents: bool) -> None:
        self.invocation = invocation
        self.all_agents = all_agents
        self._opened = opened
        self._by_agent: dict[str | None, SearchableMemory] = {}
        self._lock = threading.Lock()

    def is_first(self) -> bool:
        """Return True before the first memory is opened."""
        return not self._by_agent

    def memory(self, invocation: Invocation) -> SearchableMemory:
        """Return the memory of this call's agent."""
        with self._lock:
            if invocation.agent not in self._by_agent:
                memory = answers.local_memory(invocation, all_agents=self.all_agents)
                self._by_agent[invocation.agent] = self._opened.enter_context(memory)
            return self._by_agent[invocation.agent]


class HomeMemory(SearchableMemory):
    """Memory of one agent or of all, through the running service, else straight from the index. An error is an answer.

    Every call looks for the service: it may start or end meanwhile.
    """

    def __init__(self, invocation: Invocation, memories: LocalMemories, *, problem: UserError | None = None) -> None:
        self._invocation = invocation
        self._memories = memories
        self._problem = problem

    @property
    def limits(self) -> Limits:
        """Return the agent's limits, the home's for all agents, or the defaults if the settings are wrong."""
        try:
            all_agents = self._memories.all_agents
            return self._invocation.settings.limits if all_agents else self._invocation.the_agent().limits
        except RecalldError:
            return Limits()

    async def searched(self, request: SearchRequest) -> SearchAnswer:
        """Return the answer that `recalld search --json` prints.

        The first one to the owner's private session without a service says how to run it.
        """
        is_first = self._memories.is_first()
        options = request.model_dump(exclude={"query", "agent"}, exclude_none=True)
        options["all_agents"] = self._memories.all_agents
        try:
            invocation = self._of_request(request)
            memory = lambda: contextlib.nullcontext(self._memories.memory(invocation))  # noqa: E731
            answer = await asyncio.to_thread(answers.search, invocation, request.query, memory=memory, **options)
        except RecalldError as error:
            return SearchAnswer(**unavailable(str(error)))
        searched = SearchAnswer.model_validate(answer)
        is_for_owner = request.session_key is None and not searched.degraded and searched.warning is None
        if is_first and not self._memories.is_first() and is_for_owner:
            searched = searched.model_copy(update={"warning": invocation.to_type(_NO_SERVICE)})
        return searched

    def read_file(self, request: GetRequest) -> GetAnswer:
        """Return the answer that `recalld get --json` prints."""
        options: dict[str, Any] = {"lines": request.lines, "corpus": request.corpus, "session_key": request.session_key}
        options["all_agents"] = self._memories.all_agents
        try:
            answer = answers.get(self._of_request(request), request.path, start_line=request.from_, **options)
        except RecalldError as error:
            return GetAnswer(path=request.path, status="error", **unavailable(str(error)))
        return GetAnswer.model_validate(answer)

    def _of_request(self, request: SearchRequest | GetRequest) -> Invocation:
        """Return the invocation with the agent that a request to all agents names. Raise the problem of the place."""
        if self._problem is not None:
            raise self._problem
        return replace(self._invocation, agent=request.agent) if request.agent is not None else self._invocation


#: Seconds that answers get after the input's end; more than `limits.timeout_ms` of a search by default.
LAST_ANSWERS_SECONDS = 20.0

#: Seconds between two looks at the requests without an answer, after the input's end.
_LOOK_SECONDS = 0.05

Messages = tuple[ReadStream[SessionMessage | Exception], WriteStream[SessionMessage]]


@asynccontextmanager
async def until_all_answered(
    incoming: ReadStream[SessionMessage | Exception], outgoing: WriteStream[SessionMessage]
) -> AsyncIterator[Messages]:
    """Wrap streams for a server that learns of the input's end when its last request is answered.

    The SDK's server drops its open requests when its input ends, as after `printf '...' | recalld mcp`.
    """
    to_server, for_server = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    from_server, to_client = anyio.create_memory_object_stream[SessionMessage](0)
    open_requests: set[object] = set()

    async def read() -> None:
        async with to_server, incoming:
            async for message in incoming:
                content = message.message if isinstance(message, SessionMessage) else None
                if isinstance(content, JSONRPCRequest):
                    open_requests.add(content.id)
                elif isinstance(content, JSONRPCNotification) and content.method == "notifications/cancelled":
                    cancelled = (content.params or {}).get("requestId")
                    open_requests.difference_update({cancelled} if isinstance(cancelled, str | int) else ())
                try:
                    await to_server.send(message)
                except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                    return  # the server has ended by itself
            with anyio.move_on_after(LAST_ANSWERS_SECONDS):
                while open_requests:
                    await anyio.sleep(_LOOK_SECONDS)

    async def write() -> None:
        async with to_client, outgoing:
            async for message in to_client:
                await outgoing.send(message)
                if isinstance(message.message, JSONRPCResponse | JSONRPCError):
                    open_requests.discard(message.message.id)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        tasks.start_soon(write)
        yield for_server, from_server
