"""State that all agents of a home share, for status: cache, broker, disk, cost, versions."""

from __future__ import annotations

import os
import platform
import shutil
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import apsw

from memory.embedding.cache import EmbeddingCache
from memory.embedding.providers.presets import price_of
from schemas.metrics import EMBEDDING_CACHE
from schemas.ports import PendingReader, Usage
from schemas.settings import MemorySettings, Settings
from schemas.status import BrokerState, CacheState, DiskUse, Spent, UsageState, Versions
from schemas.version import recalld_version


@dataclass(frozen=True, slots=True)
class HomeSizes:
    """Sizes in a home. Looking them up costs more with every agent, so a service does it in the background."""

    cache: CacheState
    disk_use: DiskUse


def home_sizes(settings: Settings, pending: PendingReader) -> HomeSizes:
    """Open the embedding cache and walk the home. Raises what `EmbeddingCache` raises."""
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
    path = settings.home / "cache" / "embeddings.sqlite"
    if not settings.cache.enabled or not path.is_file():
        return CacheState(enabled=settings.cache.enabled)
    fleet = pending.fleet()
    counts = fleet.counts if fleet is not None else ()
    looks = {count.labels: count.number for count in counts if count.metric == EMBEDDING_CACHE.name}
    with closing(EmbeddingCache(path)) as kept:
        return CacheState(
            enabled=True,
            entries=kept.entries(),
            disk_bytes=sum(file.stat().st_size for file in (path, Path(f"{path}-wal")) if file.exists()),
            hits=looks.get(("hit",), 0),
            misses=looks.get(("miss",), 0),
        )


def broker_state(settings: Settings, pending: PendingReader) -> BrokerState:
    """Return the state of the queue's server."""
    found = pending.broker() or BrokerState(reachable=False, private=False)
    return found.model_copy(update={"private": settings.broker.url is None})


@cache
def _sqlite_vec_version() -> str | None:
    try:
        return version("sqlite-vec")
    except PackageNotFoundError:
        return None


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


def spending(reader: PendingReader, agent: str, memory: MemorySettings) -> tuple[UsageState, ...]:
    """Return the cost of an agent ("*": of all agents) in total and today (UTC), the most asked model first.

    Dollars are the tokens' cost by `memory`'s price or the list price outside batches; None without a price.
    """

    def spent(usage: Usage) -> Spent:
        price = price_of(memory, usage.provider, usage.model)
        return Spent(
            requests=usage.requests,
            failed=usage.failed,
            inputs=usage.inputs,
            tokens=usage.tokens,
            dollars=round(usage.tokens / 1_000_000 * price, 6) if price is not None else None,
        )

    today = {(one.provider, one.model): one for one in reader.usage(agent, day=datetime.now(UTC).date())}
    return tuple(
        UsageState(
            provider=one.provider,
            model=one.model,
            total=spent(one),
            today=spent(today.get((one.provider, one.model), Usage(one.provider, one.model))),
        )
        for one in reader.usage(agent)
    )
