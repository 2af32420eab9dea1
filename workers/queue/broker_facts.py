"""Facts of the server that holds the queue: its version, its persistence, and its limits."""

from __future__ import annotations

from typing import Any

import redis

from schemas.status import BrokerState

#: Warning about a server without persistence.
_NOTHING_KEPT = (
    "the broker keeps nothing on disk: after it crashes, everything is compared anew and the usage figures are "
    "lost; set appendonly yes there"
)

#: Warning about a server that evicts keys: only the next comparison finds lost marks.
_EVICTS = "the broker may throw keys away when its memory is full; set maxmemory-policy noeviction there"

#: Factor by which memory may exceed its limit for a moment, while a server evicts keys.
_OVERDRAWN = 1.05


def broker_facts(client: redis.Redis) -> BrokerState:
    """Ask the server for its facts. Raises `redis.RedisError` if it does not answer."""
    asked: Any = client
    info = {**asked.info("server"), **asked.info("persistence"), **asked.info("memory"), **asked.info("replication")}
    name, version = (
        (info.get("server_name", "valkey"), info["valkey_version"])
        if "valkey_version" in info
        else ("redis", info.get("redis_version", "?"))
    )
    warning = None
    if info.get("aof_enabled"):
        kept = f"append-only file, synced {_fsync(asked)}"
    elif _saves(asked):
        kept = "snapshots; what came since the last one is lost in a crash"
    else:
        kept, warning = "none", _NOTHING_KEPT
    refuses = _cannot_write(info)
    warning = refuses or warning
    if warning is None and info.get("maxmemory") and info.get("maxmemory_policy", "noeviction") != "noeviction":
        warning = _EVICTS
    return BrokerState(
        reachable=True,
        private=False,
        server=f"{name} {version}",
        persistence=kept,
        warning=warning,
        writable=refuses is None,
    )


def _cannot_write(info: dict[str, Any]) -> str | None:
    """Return the reason why a server that answers takes no writes; None if it takes them."""
    if info.get("role") == "slave":
        return "the broker is a read-only replica: name the primary in broker.url (or REDIS_URL)"
    if info.get("aof_enabled") and info.get("aof_last_write_status", "ok") != "ok":
        return "the broker cannot write its append-only file, so that it takes nothing new: free space on its disk"
    limit, used = int(info.get("maxmemory") or 0), int(info.get("used_memory") or 0)
    # A server that evicts keys refuses only when eviction is not enough.
    allowed = limit if info.get("maxmemory_policy") == "noeviction" else limit * _OVERDRAWN
    if limit and used >= allowed:
        return "the broker's memory is full, so that it takes nothing new: raise maxmemory there"
    if info.get("rdb_last_bgsave_status", "ok") != "ok":
        return "the broker cannot write its snapshot, and may take nothing new: free space on its disk"
    return None


def _fsync(client: Any) -> str:
    how = _setting(client, "appendfsync")
    return {"everysec": "every second", "always": "at every write", "no": "when the system likes"}.get(how, "at times")


def _saves(client: Any) -> bool:
    return bool(_setting(client, "save"))


def _setting(client: Any, name: str) -> str:
    """Return a setting of the server; empty if a hosted server refuses to show it."""
    try:
        return str(client.config_get(name).get(name, ""))
    except redis.ResponseError:
        return ""
