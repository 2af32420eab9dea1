"""Which server holds the queue, and what of it would survive a crash."""

from __future__ import annotations

from typing import Any

import redis

from schemas.ports import BrokerFacts

#: What a server without any persistence means for us.
_NOTHING_KEPT = (
    "the broker keeps nothing on disk: after a crash of it everything is compared anew, and what embedding cost "
    "is forgotten; set appendonly yes there"
)

#: A server that may throw keys away loses marks, which only the next comparison finds.
_EVICTS = "the broker may throw keys away when its memory is full; set maxmemory-policy noeviction there"


#: How far beyond its limit a server's memory may be for a moment, while it throws keys away.
_OVERDRAWN = 1.05


def broker_facts(client: redis.Redis) -> BrokerFacts:
    """Ask the server. Raises `redis.RedisError` when it does not answer."""
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
    return BrokerFacts(server=f"{name} {version}", persistence=kept, warning=warning, writable=refuses is None)


def _cannot_write(info: dict[str, Any]) -> str | None:
    """Why the server takes nothing new: it answers, so that nobody would notice."""
    if info.get("role") == "slave":
        return "the broker is a read-only replica: name the primary in broker.url (or REDIS_URL)"
    if info.get("aof_enabled") and info.get("aof_last_write_status", "ok") != "ok":
        return "the broker cannot write its append-only file, so that it takes nothing new: free space on its disk"
    limit, used = int(info.get("maxmemory") or 0), int(info.get("used_memory") or 0)
    # Of one that throws keys away, when that is not enough.
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
    """A hosted server may refuse to tell."""
    try:
        return str(client.config_get(name).get(name, ""))
    except redis.ResponseError:
        return ""
