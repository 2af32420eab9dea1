"""Honest status of all agents, and of what they share: processes, broker, cache, disk.

One agent's: `memory.status.agent`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from memory.documents.agent_files import AgentFiles
from memory.index.generations import Generations
from memory.index.provider_fallback import provider_of
from memory.index.readers import SharedReader
from memory.status.agent import agent_status, trouble_of
from memory.status.home import HomeSizes, broker_state, home_sizes, spending, versions
from memory.status.index import StatusSources
from memory.status.local_processes import frozen_pid
from memory.status.processes import known_processes, not_watched, outdated_conditions, process_conditions
from memory.status.run_files import read_hooks_state
from schemas.conditions import Condition, ConditionCode
from schemas.ports import PendingReader
from schemas.settings import AgentSettings, Settings
from schemas.status import AgentStatus, BrokerState, Status, TroubleState
from schemas.version import recalld_version


def build_status(settings: Settings, pending: PendingReader, *, deep: bool = False) -> Status:
    """Return the status of all agents in `settings`, for a process that looks once and ends.

    Nothing needs to run for it to be ok: a queue that does not answer is shown, and no trouble by itself.
    """
    # First: what cannot be read of a broker that takes nothing new would make it look as if it were away.
    broker = broker_state(settings, pending)
    agents = tuple(_look_once(settings, agent, pending, deep=deep) for agent in settings.agents if agent.enabled)
    return whole_status(settings, agents, pending, sizes=home_sizes(settings, pending), broker=broker)


def whole_status(
    settings: Settings,
    agents: tuple[AgentStatus, ...],
    pending: PendingReader,
    *,
    sizes: HomeSizes,
    broker: BrokerState | None = None,
) -> Status:
    """Join the agents' statuses and what they share: a process that is not well makes none of them ok."""
    everybody = len(agents) == len(settings.agents) > 1
    broker = broker or broker_state(settings, pending)
    processes = known_processes(pending)
    now = time.time()
    shared = [*process_conditions(processes), *outdated_conditions(processes, version=recalld_version(), now=now)]
    if not broker.writable:
        shared.append(read_only_broker(broker.warning))
    elif not broker.reachable and broker.private and (pid := frozen_pid(settings.home)) is not None:
        shared.append(Condition(ConditionCode.PROCESS_STOPPED, "broker", params={"pid": pid}))
    if shared:
        unwell = [trouble_of(one, now=now) for one in shared]
        agents = tuple(_with(agent, unwell, watched=not_watched(processes) is None) for agent in agents)
    return Status(
        ok=all(agent.ok for agent in agents),
        version=recalld_version(),
        home=str(settings.home),
        agents=agents,
        usage=spending(pending, "*", settings) if everybody else (),
        cache=sizes.cache,
        processes=tuple(processes),
        broker=broker,
        disk_use=sizes.disk_use,
        versions=versions(broker),
        hooks=read_hooks_state(settings.home),
    )


def read_only_broker(reason: str | None) -> Condition:
    """Return that the broker takes nothing new."""
    return Condition(ConditionCode.BROKER_READ_ONLY, params={"reason": reason or "the broker takes nothing new"})


def _with(agent: AgentStatus, unwell: Sequence[TroubleState], *, watched: bool) -> AgentStatus:
    watch = agent.watch
    if watch is not None and not watched:
        watch = f"{watch}, but the process that watches is not well"
    return agent.model_copy(update={"ok": False, "troubles": (*agent.troubles, *unwell), "watch": watch})


def _look_once(settings: Settings, agent: AgentSettings, pending: PendingReader, *, deep: bool) -> AgentStatus:
    generations = Generations.of(settings, agent.id)
    choice = provider_of(settings, agent)
    reader = SharedReader(generations)
    try:
        sources = StatusSources(
            files=AgentFiles.of(settings, agent),
            generations=generations,
            lease=reader.lease,
            pending=pending,
            queue_expected=False,
            choice=choice,
        )
        return agent_status(settings, agent, sources, deep=deep)
    finally:
        reader.close()
        if choice.provider is not None:
            choice.provider.close()
