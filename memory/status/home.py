"""Status of all agents of a home, and of their shared parts: processes, broker, cache, disk, versions.

One agent's: `memory.status.agent`.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING

import apsw

from memory.documents.agent_files import AgentFiles
from memory.embedding.cache_reader import EmbeddingCacheReader, cache_path, cache_tenant
from memory.http.private_folders import open_to_others
from memory.index.generations import Generations
from memory.index.readers import SharedReader
from memory.status.agent import PENDING_TOO_LONG_SECONDS, agent_status, in_words, spending, with_conditions
from memory.status.index import Lease, StatusSources
from memory.status.processes import known_processes, not_watched, shared_conditions, with_problem
from memory.status.run_files import frozen_pid, read_hooks_state, remote_conditions
from memory.store.options import StoreOptions
from memory.store.sqlite.reader import SqliteReader
from memory.store.sqlite_file import bytes_of
from schemas.agents import Scope, tenant_of
from schemas.conditions import Condition, ConditionCode
from schemas.errors import RecalldError
from schemas.metrics import EMBEDDING_CACHE
from schemas.ports import PendingReader
from schemas.settings import AgentSettings, Settings
from schemas.status import AgentStatus, BrokerState, CacheState, DiskUse, FleetState, Status, Versions
from schemas.version import recalld_version

if TYPE_CHECKING:
    from memory.store.postgres.directory import AccessToken, FleetDirectory

#: Troubled agents of a fleet that an answer names.
MOST_TROUBLED = 50


def fleet_state(directory: FleetDirectory, pending: PendingReader, token: AccessToken | None = None) -> FleetState:
    """Return the sums over all agents of a fleet, or of those that a token opens: one statement a tenant.

    Raises the errors of the store.
    """
    now, names = time.time(), token.agents if token is not None else None
    budgets = directory.budgets(token.tenant if token is not None else None)
    sums = {tenant: directory.sums(tenant, names) for tenant in budgets}

    def is_visible(agent_id: str) -> bool:
        scope = Scope.of(agent_id)
        return scope.tenant in budgets and (names is None or scope.agent in names)

    backlog = pending.backlog()
    visible_backlog = {agent: of_agent for agent, of_agent in (backlog or {}).items() if is_visible(agent)}
    ages = {agent: of_agent.oldest_seconds(now) or 0.0 for agent, of_agent in visible_backlog.items()}
    late = [agent for agent, seconds in ages.items() if seconds > PENDING_TOO_LONG_SECONDS]
    failed = [Scope(tenant, agent).agent_id for tenant in sums for agent in sums[tenant].dead_letters]
    troubled = sorted({*filter(is_visible, pending.troubled()), *late, *failed})
    today = datetime.now(UTC).date()
    spent = [
        tenant
        for tenant, budget in budgets.items()
        if budget is not None
        and sum(usage.tokens for usage in pending.usage(tenant_of(f"{tenant}/"), day=today)) >= budget
    ]
    names_of_sums = ("agents", "documents", "chunks", "vectors_pending", "vectors_refused")
    return FleetState(
        **{name: sum(getattr(of_tenant, name) for of_tenant in sums.values()) for name in names_of_sums},
        pending=sum(of_agent.documents for of_agent in visible_backlog.values()) if backlog is not None else None,
        dead_letters=sum(sum(of_tenant.dead_letters.values()) for of_tenant in sums.values()),
        troubled=tuple(troubled[:MOST_TROUBLED]),
        more_troubled=max(0, len(troubled) - MOST_TROUBLED),
        spent_tenants=tuple(spent),
    )


def build_status(
    settings: Settings, pending: PendingReader, *, deep: bool = False, fleet: FleetState | None = None
) -> Status:
    """Return the status of all agents in `settings`, for a process that looks once and ends.

    Nothing needs to run for it to be ok: a queue that does not answer is shown, and no trouble by itself.
    """
    # First: after a failed read, a broker that takes nothing new looks as if it were away.
    broker = broker_state(settings, pending)
    agents = tuple(_look_once(settings, agent, pending, deep=deep) for agent in settings.agents if agent.enabled)
    return whole_status(settings, agents, pending, sizes=home_sizes(settings, pending), broker=broker, fleet=fleet)


def whole_status(
    settings: Settings,
    agents: tuple[AgentStatus, ...],
    pending: PendingReader,
    *,
    sizes: HomeSizes,
    broker: BrokerState | None = None,
    fleet: FleetState | None = None,
) -> Status:
    """Join the agents' statuses and the shared parts. A process that is not well makes no agent ok.

    `fleet` has the sums over agents that are not among `agents`.
    """
    sees_all = len(agents) == len(settings.agents) > 1
    broker = broker or broker_state(settings, pending)
    processes = known_processes(pending)
    now = time.time()
    shared = list(shared_conditions(processes, now=now))
    if (refusal := broker.refusal) is not None:
        shared.append(read_only_broker(refusal))
    elif not broker.reachable and broker.private and (pid := frozen_pid(settings.home)) is not None:
        shared.append(Condition(ConditionCode.PROCESS_STOPPED, "broker", params={"pid": pid}))
    unwatched = "" if not_watched(processes) is None else ", but the process that watches is not well"
    exposure = open_to_others(settings.home, within=settings.home.parent)
    advice = in_words([exposure] if exposure is not None else [], now=now)
    agents = tuple(
        with_conditions(agent, shared, now=now).model_copy(
            update={"advice": (*agent.advice, *advice), "watch": agent.watch and agent.watch + unwatched}
        )
        for agent in agents
    )
    if fleet is not None:
        of_all = pending.conditions("")  # of no single agent
        fleet = fleet.model_copy(update={"troubles": in_words([*shared, *of_all], now=now)})
    is_fleet_ok = fleet is None or not (fleet.troubled or fleet.spent_tenants or fleet.troubles)
    return Status(
        ok=is_fleet_ok and all(agent.ok for agent in agents),
        version=recalld_version(),
        home=str(settings.home),
        agents=agents,
        usage=spending(pending, "*", settings, home=settings.home) if sees_all else (),
        cache=sizes.cache,
        processes=tuple(map(with_problem, processes)),
        broker=broker,
        disk_use=sizes.disk_use,
        versions=versions(broker),
        hooks=read_hooks_state(settings.home),
        fleet=fleet,
    )


def read_only_broker(refusal: str) -> Condition:
    """Return the condition of a broker that takes nothing new."""
    return Condition(ConditionCode.BROKER_READ_ONLY, params={"reason": refusal})


def _look_once(settings: Settings, agent: AgentSettings, pending: PendingReader, *, deep: bool) -> AgentStatus:
    generations = Generations.of(settings, agent.id)
    sent_to, lease = _sent(settings, agent, generations)
    with closing(SharedReader(generations)) as reader:
        sources = StatusSources(
            files=AgentFiles.of(settings, agent),
            generations=generations,
            lease=lease or reader.lease,
            pending=pending,
            queue_expected=False,
            sent_to=sent_to,
        )
        status = agent_status(settings, agent, sources, deep=deep)
    present = {(trouble.code, trouble.subject) for trouble in status.troubles}
    reported = [each for each in remote_conditions(settings.home, agent.id) if (each.code, each.subject) not in present]
    return with_conditions(status, reported, now=time.time())


def _sent(settings: Settings, agent: AgentSettings, generations: Generations) -> tuple[str | None, Lease | None]:
    """Return a fleet's address, and the opening of the ledger of `producers.remote.queue`; None with an index.

    Of several ledgers, the newest is in use.
    """
    with suppress(OSError, RecalldError):
        if settings.store.url is not None or generations.current() is not None:
            return None, None
        changes = {file.stat().st_mtime: file for file in (settings.home / "sent").glob(f"*/{agent.id}.sqlite*")}
        if changes:
            path, options = changes[max(changes)].with_name(f"{agent.id}.sqlite"), StoreOptions(vector_enabled=False)
            with closing(SqliteReader(path, options)) as ledger:
                address = json.loads(ledger.meta("fingerprint") or "")[0]
            return address, lambda: closing(SqliteReader(path, options))
        if settings.fleet.url is not None:
            return settings.fleet.url, None
    return None, None


@dataclass(frozen=True, slots=True)
class HomeSizes:
    """Sizes in a home. Looking them up costs more with every agent, so a service does it in the background."""

    cache: CacheState
    disk_use: DiskUse


def home_sizes(settings: Settings, pending: PendingReader) -> HomeSizes:
    """Open the embedding cache and walk the home."""
    home = settings.home
    models = tree_bytes(home / "cache" / "models")
    try:
        free: int | None = shutil.disk_usage(next(path for path in (home, *home.parents) if path.exists())).free
    except OSError:
        free = None
    disk_use = DiskUse(
        indexes=tree_bytes(settings.indexes_path),
        cache=tree_bytes(home / "cache") - models,
        models=models,
        broker=tree_bytes(home / "broker"),
        log=tree_bytes(home / "log"),
        free=free,
    )
    return HomeSizes(_cache_state(settings, pending), disk_use)


def _cache_state(settings: Settings, pending: PendingReader) -> CacheState:
    """Return the size of the embedding cache, opened only when it is there, and its hits."""
    path = cache_path(settings.home)
    if not settings.cache.enabled or (settings.store.url is None and not path.is_file()):
        return CacheState(enabled=settings.cache.enabled)
    tenants = {cache_tenant(settings, Scope.of(agent.id).tenant) for agent in settings.agents}
    fleet = pending.fleet()
    looks = fleet.counts.get(EMBEDDING_CACHE.name, {}) if fleet is not None else {}
    return CacheState(
        enabled=True,
        entries=sum(EmbeddingCacheReader.of(settings, tenant).entries() for tenant in tenants),
        disk_bytes=sum(map(bytes_of, (path, Path(f"{path}-wal")))),
        hits=looks.get(("hit",), 0),
        misses=looks.get(("miss",), 0),
    )


def broker_state(settings: Settings, pending: PendingReader) -> BrokerState:
    """Return the state of the queue's server."""
    return pending.broker().model_copy(update={"private": settings.broker.url is None})


@cache
def _sqlite_vec_version() -> str | None:
    return next((distribution.version for distribution in distributions(name="sqlite-vec")), None)


def versions(broker: BrokerState) -> Versions:
    """Return the versions of this process and the broker."""
    return Versions(
        recalld=recalld_version(),
        python=platform.python_version(),
        sqlite=apsw.sqlite_lib_version(),
        sqlite_vec=_sqlite_vec_version(),
        broker=broker.server,
    )


def tree_bytes(folder: Path) -> int:
    """Return the bytes of all files below a folder. Unreadable folders count nothing. Links are not followed."""
    total = 0
    waiting = [os.fspath(folder)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    elif entry.is_file(follow_symlinks=False):
                        total += entry.stat(follow_symlinks=False).st_size
        except OSError:
            continue
    return total
