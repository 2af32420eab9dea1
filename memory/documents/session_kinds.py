"""Kinds and places of sessions, from the store beside their transcripts; the settings choose the kinds to index.

OpenClaw keeps `sessions.json` in a folder of transcripts: {session key: {"sessionId": ..., "sessionFile": ...,
"spawnedBy": ...}}. Since release 2026.7.2 the same facts are in the database beside that folder, which counts first.
The kinds are those that release 2026.9.6 tells apart.

    agent:<id>:cron:<job>[:run:<id>]       a run of a scheduled job
    agent:<id>:dreaming-narrative-<id>     a dream, retold at night
    agent:<id>:hook:<id>                   mail and web hooks
    agent:<id>:boot, agent:<id>:internal-session-effects:<id>      the program's own
    <another key>:heartbeat                heartbeats apart from the conversation
    agent:<id>:subagent:<id>, agent:<id>:acp:<id>      sub-agents, of the kind of the session that spawned them

A transcript that no store knows is a user's. The program forgets runs of jobs after a day and archives their
transcripts: an archive that its folder's store does not know is of the kind that its own first lines name.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, get_args

from memory.documents.content import opened_below, stat_below
from memory.documents.roots import COMPRESSED, Root, archived_path, join
from memory.documents.session_database import SessionDatabase, database_of
from schemas.errors import RecalldError
from schemas.settings import SessionKind

#: The store's name in a folder of transcripts.
STORE = "sessions.json"

#: Bytes of a store that is read. The program keeps its own below 10 MB.
_MAX_BYTES = 64_000_000

#: Stores and archives whose kinds are kept in memory.
_MAX_STORES, _MAX_ARCHIVES = 256, 100_000

#: Lines of an archive that are read: what is remembered of the session, then the first message.
_MAX_LINES = 50

#: What only the first message of a run begins with; a time may stand before it.
_RUN = re.compile(r"\s*(?:\[[^\]\n]*\] ?)?\[cron:")

_CHAT: SessionKind = "chat"
_SUBAGENT: SessionKind = "subagent"
_HEARTBEAT: SessionKind = "heartbeat"

_AGENT = "agent"

#: Beginnings of what follows the place in the key of a session.
_PARTS_OF_PLACES = (":topic:", ":thread:")

_NUMBER_OF_KINDS = len(get_args(SessionKind))

#: What the rest of a session key, below `agent:<id>:`, begins with.
_BEGINNINGS: Mapping[str, SessionKind] = {
    "cron:": "cron",
    "hook:": "hook",
    "dreaming-narrative-": "dreaming",
    "boot:": "system",
    "internal-session-effects:": "system",
    "subagent:": _SUBAGENT,
    "acp:": _SUBAGENT,
}


class _Store(NamedTuple):
    """Kinds and places of sessions, by the names of their files; see `place_of`."""

    kinds: Mapping[str, SessionKind]
    places: Mapping[str, str | None]


#: The store in each database, with the version that it is of.
_latest: dict[SessionDatabase, tuple[tuple[int, ...], _Store]] = {}


class SessionKinds:
    """Filter of transcripts by the kinds of their sessions. Made anew for each question: a store is read once."""

    def __init__(self, kinds: Collection[str]) -> None:
        self._indexed = kinds
        self._stores: dict[tuple[str, str], _Store | None] = {}

    def refused(self, root: Root, path: str) -> SessionKind | None:
        """Return the kind of a transcript, named as in keys, that does not count; None if it counts."""
        folder, _, name = path.rpartition("/")
        place = root.folder, folder
        if place not in self._stores:
            has_all_kinds = len(self._indexed) == _NUMBER_OF_KINDS
            self._stores[place] = None if has_all_kinds else _store_in(root.folder, (root.named(path) or ())[:-1])
        store, kind = self._stores[place], _CHAT
        if store is not None:
            session = archived_path(name)
            stored_kind = store.kinds.get(session or name)
            if stored_kind is None and session is not None:
                stored_kind = _told_by(root.folder, root.named(path) or ())
            kind = stored_kind or _CHAT
        return None if kind in self._indexed else kind


def transcripts_at(folder: str, place: str) -> frozenset[str]:
    """Return the names of the transcripts that, by the store of a folder, are of conversations at one place alone."""
    store = _store_in(folder, ())
    places = store.places if store is not None else {}
    return frozenset(name for name, its_place in places.items() if its_place == place)


def knows(folder: str, name: str) -> bool:
    """Return True if the store of a folder knows a transcript of that name."""
    store = _store_in(folder, ())
    return store is not None and name in store.places


def _store_in(folder: str, parts: tuple[str, ...]) -> _Store | None:
    """Return the stores of a folder as one; None without a readable one."""
    store, database = _file_in(folder, parts), database_of(folder) if not parts else None
    with contextlib.suppress(RecalldError):
        if database is not None and (version := database.version()):
            rows = _rows(database, version)
            return rows if store is None else _Store({**store.kinds, **rows.kinds}, {**store.places, **rows.places})
    return store


def _rows(database: SessionDatabase, version: tuple[int, ...]) -> _Store:
    """Return the store in a database; it is read again in every other version."""
    if (latest := _latest.get(database)) is not None and latest[0] == version:
        return latest[1]
    conversations, keys = database.conversations()
    kinds = {f"{session}.jsonl": _kind(key, conversations) for session, key in keys.items()}
    store = _Store(kinds, {f"{session}.jsonl": place_of(key) for session, key in keys.items()})
    _latest[database] = version, store
    return store


def _file_in(folder: str, parts: tuple[str, ...]) -> _Store | None:
    """Return the store in the file `sessions.json` of a folder; None without a readable one."""
    if not os.path.lexists(join(folder, *parts, STORE)):
        return None
    try:
        file_stat = stat_below(folder, (*parts, STORE), name=STORE)
        if file_stat is None or file_stat.st_size > _MAX_BYTES:
            return None
        return _read(folder, parts, (file_stat.st_ino, file_stat.st_size, file_stat.st_mtime_ns, file_stat.st_ctime_ns))
    except (RecalldError, OSError):
        return None


@functools.lru_cache(maxsize=_MAX_STORES)
def _read(folder: str, parts: tuple[str, ...], _version: tuple[int, ...]) -> _Store | None:
    with opened_below(folder, (*parts, STORE), name=STORE) as descriptor, os.fdopen(os.dup(descriptor), "rb") as file:
        data = file.read(_MAX_BYTES)
    try:
        store = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return _Store(kinds_of(store), _places_of(store)) if isinstance(store, dict) else None


def _told_by(folder: str, parts: tuple[str, ...]) -> SessionKind:
    """Return the kind that an archive's first lines tell; a chat if they cannot be read."""
    for compressed in (False, True):
        file = (*parts[:-1], parts[-1] + COMPRESSED) if compressed else parts
        with contextlib.suppress(RecalldError, OSError):
            if (file_stat := stat_below(folder, file, name=parts[-1])) is not None:
                return _begun_as(folder, file, compressed, (file_stat.st_ino, file_stat.st_size, file_stat.st_mtime_ns))
    return _CHAT


@functools.lru_cache(maxsize=_MAX_ARCHIVES)
def _begun_as(folder: str, parts: tuple[str, ...], compressed: bool, _version: tuple[int, ...]) -> SessionKind:  # noqa: FBT001 - the key of a cache
    from memory.transcripts.interpreter import parse
    from memory.transcripts.lines import read_lines
    from memory.transcripts.transcript_format import texts_of

    with opened_below(folder, parts, name=parts[-1]) as descriptor:
        lines = read_lines(descriptor, offset=0, end=None, compressed=compressed)
        for line in itertools.islice(lines, _MAX_LINES):
            entry = parse(line.data) if line.data else None
            if entry is None:
                continue
            for holder in (entry, entry.get("data")):
                for key in ("sessionKey", "runId"):
                    session_key = holder.get(key) if isinstance(holder, dict) else None
                    if isinstance(session_key, str) and (kind := _own_kind(session_key, {}, {})) != _CHAT:
                        return kind
            message = entry.get("message")
            if isinstance(message, dict) and message.get("role") == "user":
                return "cron" if _RUN.match("\n".join(texts_of(message.get("content")))) else _CHAT
    return _CHAT


def kinds_of(store: Mapping[str, Any]) -> dict[str, SessionKind]:
    """Return the kind of each transcript, by its file's name, that a store knows.

    A file of several sessions is a chat as soon as one of them is.
    """
    entries = {key: entry for key, entry in store.items() if isinstance(entry, dict)}
    kinds_by_file: dict[str, set[SessionKind]] = {}
    for key, entry in entries.items():
        kind = _kind(key, entries)
        for name in _names(entry):
            kinds_by_file.setdefault(name, set()).add(kind)
    order: tuple[SessionKind, ...] = get_args(SessionKind)
    return {name: min(several, key=order.index) for name, several in kinds_by_file.items()}


def _places_of(store: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the place of each file's conversations, None for several."""
    places: dict[str, str | None] = {}
    for key, entry in store.items():
        for name in _names(entry) if isinstance(entry, dict) else ():
            place = place_of(key)
            places[name] = place if places.get(name, place) == place else None
    return places


def split_key(session_key: str) -> tuple[str | None, str]:
    """Return the agent that a session key names, if any, and the rest of the key, in lower case."""
    key = session_key.strip().lower()
    if key != _AGENT and not key.startswith(f"{_AGENT}:"):
        return None, key
    agent, _, rest = key.partition(":")[2].partition(":")
    return agent.strip(), rest.strip()


def place_of(session_key: str) -> str:
    """Return the place of a conversation: its key without the agent, and without topic and thread in that place."""
    place = split_key(session_key)[1]
    for part in _PARTS_OF_PLACES:
        place = place.partition(part)[0]
    return place


def _names(entry: Mapping[str, Any]) -> set[str]:
    earlier = entry.get("usageFamilySessionIds")
    ids = [entry.get("sessionId"), *(earlier if isinstance(earlier, list) else ())]
    names = {f"{session_id}.jsonl" for session_id in ids if isinstance(session_id, str) and session_id}
    file = entry.get("sessionFile")
    return names | {file.rpartition("/")[2]} if isinstance(file, str) else names


def _kind(key: str, entries: Mapping[str, Mapping[str, Any]]) -> SessionKind:
    """Return the kind of a session: its own or, of a sub-agent, that of the nearest session above with another one."""
    visited: set[str] = set()
    is_subagent = False
    while key not in visited:
        visited.add(key)
        entry = entries.get(key, {})
        kind = _own_kind(key, entry, entries)
        if kind not in (_CHAT, _SUBAGENT):
            return kind
        parent = entry.get("spawnedBy") or (entry.get("parentSessionKey") if kind == _SUBAGENT else None)
        is_subagent = is_subagent or kind == _SUBAGENT or bool(entry.get("spawnedBy"))
        if not isinstance(parent, str):
            break
        key = parent.strip()
    return _SUBAGENT if is_subagent else _CHAT


def _own_kind(key: str, entry: Mapping[str, Any], entries: Mapping[str, Any]) -> SessionKind:
    above, _, last = key.rpartition(":")
    if entry.get("heartbeatIsolatedBaseSessionKey") or (last == "heartbeat" and above in entries):
        return _HEARTBEAT
    rest = split_key(key)[1]
    if rest == "boot":
        return "system"
    return next((kind for start, kind in _BEGINNINGS.items() if rest.startswith(start)), _CHAT)
