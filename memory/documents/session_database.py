"""Sessions that programs keep in SQLite: each is a document, and its events or messages are the lines.

OpenClaw, from release 2026.7.2 on (schema 23 in release 2026.9.6):

    agents/<id>/agent/openclaw-agent.sqlite             sessions and their events; credentials as well
    agents/<id>/sessions/cold/<digest>.jsonl.zst        the events of a session that was moved out of it

An event is the text that was a line of a transcript's file before, byte for byte. OpenCode, from version 1.2 on:

    opencode/opencode.db                                sessions, messages and their parts; credentials as well

A message becomes a line of the plain format. The programs write meanwhile, so every reading is one short transaction
on a connection of its own. An authorizer lets statements read the columns of sessions and no others.
"""

from __future__ import annotations

import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import apsw

from memory.documents.content import (
    DocumentGone,
    DocumentRefused,
    DocumentUnreadable,
    OpenTranscript,
    opened_below,
    stat_below,
)
from memory.documents.roots import OPENCLAW_DATABASE, OPENCODE_DATABASE, is_transcript_name, join
from memory.documents.scan import LATEST_NS
from memory.store.sqlite_file import open_read_only, opened
from schemas.documents import FileStat
from schemas.errors import RecalldError, Transient

if TYPE_CHECKING:
    from memory.transcripts.lines import RawLine

_COLD_NAME = re.compile(r"[0-9a-f]{64}\.jsonl\.zst")

#: Columns of OpenClaw that are read, by table. Older layouts lack the last two tables, and compressed events.
_OPENCLAW_COLUMNS = {
    "session_nodes": {"session_key", "entry_json", "spawned_by", "parent_session_key"},
    "session_windows": {"session_id", "session_key", "updated_at", "transcript_updated_at"},
    "transcript_rewrite_watermarks": {"session_id", "generation"},
    "transcript_events": {"session_id", "seq", "event_json", "event_zstd", "event_utf8_bytes"},
    "session_transcript_archives": {"session_id", "session_key"},
    "session_transcript_cold_archives": {"session_id", "archive_name", "archive_blob", "last_seq"},
}

#: The parts of the layout that older ones lack.
_LATER = """
SELECT name FROM sqlite_schema
WHERE type = 'table' AND name IN ('session_transcript_archives', 'session_transcript_cold_archives')
UNION ALL SELECT name FROM pragma_table_info('transcript_events') WHERE name = 'event_zstd'
"""

#: Id, time of the last change in milliseconds, generation and last event of all sessions, or of one.
_SESSIONS = """
SELECT CAST(windows.session_id AS TEXT), CAST(coalesce(transcript_updated_at, windows.updated_at, 0) AS INTEGER),
       CAST(generation AS TEXT),
       (SELECT max(seq) FROM transcript_events AS events WHERE events.session_id = windows.session_id)
FROM session_windows AS windows LEFT JOIN transcript_rewrite_watermarks USING (session_id)
WHERE ?1 IS NULL OR windows.session_id = ?1
"""
_COLD = "SELECT session_id, last_seq FROM session_transcript_cold_archives WHERE ?1 IS NULL OR session_id = ?1"
_COLD_EVENTS = """
SELECT archive_name, CASE WHEN length(archive_blob) <= ?2 THEN archive_blob END
FROM session_transcript_cold_archives WHERE session_id = ?1
"""

_CONVERSATIONS = """
SELECT CAST(session_key AS TEXT), spawned_by, parent_session_key,
       session_key LIKE '%:heartbeat' AND instr(entry_json, '"heartbeatIsolatedBaseSessionKey":"') > 0
FROM session_nodes
"""
_KEYS = "SELECT CAST(session_id AS TEXT), CAST(session_key AS TEXT) FROM session_windows"
_ARCHIVED_KEYS = _KEYS.replace("session_windows", "session_transcript_archives")

_GENERATION = "SELECT CAST(generation AS TEXT) FROM transcript_rewrite_watermarks WHERE session_id = ?"

#: Events from a place on: number, size, and the text if it is not too long; size and bytes of a compressed text.
_TEXTS = """
SELECT seq, octet_length(event_json), CASE WHEN octet_length(event_json) <= ?4 THEN CAST(event_json AS BLOB) END,
       NULL, NULL
FROM transcript_events WHERE session_id = ?1 AND seq >= ?2 AND seq < ?3 ORDER BY seq LIMIT ?5
"""
_EVENTS = _TEXTS.replace("NULL, NULL", "event_utf8_bytes, CASE WHEN length(event_zstd) <= ?6 THEN event_zstd END")

_OPENCODE_COLUMNS = {
    "session": {"id", "parent_id"},
    "message": {"id", "session_id", "time_created", "time_updated", "data"},
    "part": {"id", "message_id", "time_updated", "data"},
}

#: Id, number of messages, number up to the last answer, True if that is completed, and time of the last change in
#: milliseconds, of all sessions that have messages, or of one.
_OPENCODE_SESSIONS = """
SELECT CAST(session.id AS TEXT),
       (SELECT count(*) FROM message WHERE session_id = session.id),
       (SELECT count(*) FROM message WHERE session_id = session.id
        AND (message.time_created, message.id) <= (answer.time_created, answer.id)),
       CASE WHEN json_valid(answer.data) THEN answer.data ->> '$.time.completed' END IS NOT NULL,
       CAST(max(coalesce(last.time_updated, 0),
                coalesce((SELECT max(time_updated) FROM part WHERE message_id = last.id), 0)) AS INTEGER)
FROM session
JOIN message AS last ON last.id = (
    SELECT id FROM message WHERE session_id = session.id ORDER BY time_created DESC, id DESC LIMIT 1)
LEFT JOIN message AS answer ON answer.id = (
    SELECT id FROM message
    WHERE session_id = session.id AND CASE WHEN json_valid(data) THEN data ->> '$.role' END = 'assistant'
    ORDER BY time_created DESC, id DESC LIMIT 1)
WHERE ?1 IS NULL OR session.id = ?1
"""

#: Ids of all sessions, and True for a sub-agent's.
_CHILDREN = "SELECT CAST(id AS TEXT), parent_id IS NOT NULL FROM session"

#: Keys that OpenCode's sessions get: they are of no group or channel, and so of the owner's place.
_OWNER_KEY, _CHILD_KEY = "main", "main:thread:child"

#: Messages from a place on, each as a line. A summary of the conversation so far has no words, and neither have the
#: program's own parts.
_MESSAGES = """
SELECT CAST(json_object(
    'id', CAST(message.id AS TEXT),
    'role', CASE WHEN json_valid(message.data) THEN message.data ->> '$.role' END,
    'name', CASE WHEN parent_id IS NOT NULL AND json_valid(message.data)
                 THEN iif(message.data ->> '$.role' = 'user', 'Agent', 'Subagent') END,
    'timestamp', CAST(message.time_created AS INTEGER),
    'content', json((
        SELECT json_group_array(json_object('type', 'text', 'text', part.data ->> '$.text') ORDER BY part.id)
        FROM part
        WHERE message_id = message.id AND CASE WHEN json_valid(part.data) AND json_valid(message.data) THEN
            part.data ->> '$.type' = 'text' AND json_type(part.data, '$.text') = 'text'
            AND json_type(part.data, '$.synthetic') IS NOT 'true' AND json_type(part.data, '$.ignored') IS NOT 'true'
            AND json_type(message.data, '$.summary') IS NOT 'true' END))
    ) AS BLOB)
FROM message JOIN session ON session.id = session_id
WHERE session_id = ?1 ORDER BY message.time_created, message.id LIMIT ?3 OFFSET ?2
"""

#: Lines, and bytes of them, in one transaction.
MOST_EVENTS, MOST_BYTES = 500, 4_000_000

#: Bytes of a compressed event at most, before and after its decompression, and of a cold archive.
_COMPRESSED_BYTES, _COLD_BYTES = 4_194_304, 67_108_864

#: Milliseconds that a reading waits for a lock.
_BUSY_MS = 200

#: Bit of the inode in the state of a document that is rows of a database.
_ROWS_BIT = 62

#: Numbers of events below this one are read.
_END = 2**62

#: Runs a statement, and returns its rows.
Select: TypeAlias = Callable[[str, tuple[Any, ...]], Iterable[Any]]


@dataclass(frozen=True, slots=True)
class SessionDatabase(ABC):
    """Database of a program's sessions below a `folder`. Every call opens it anew, for reading.

    Raises, from every method that reads rows:
        DocumentGone: it is not there.
        DocumentRefused: it is, or lies behind, a symbolic link.
        DocumentUnreadable: it is damaged, of an unknown layout, or may not be read.
        Transient: it is locked, or cannot be opened now.
    """

    folder: str

    #: Its components below the folder.
    _parts: ClassVar[tuple[str, ...]]
    #: The columns that are read, by table.
    _columns: ClassVar[Mapping[str, set[str]]]
    #: The statement that names the parts of the layout that older ones lack.
    _later: ClassVar[str] = "SELECT name FROM sqlite_schema LIMIT 1"

    @property
    def place(self) -> str:
        """Path of the folder that holds the database."""
        return join(self.folder, *self._parts[:-1])

    @property
    def path(self) -> str:
        """Path of the database."""
        return join(self.folder, *self._parts)

    def is_there(self) -> bool:
        """Return True if the file exists and no link leads to it."""
        return self._stat_of("") is not None

    def is_readable(self) -> bool:
        """Return True if its sessions can be read now."""
        try:
            self.sessions("")
        except RecalldError:
            return False
        return True

    def version(self) -> tuple[int, ...]:
        """Return numbers that change with its files; none without it."""
        stats = map(self._stat_of, ("", "-wal"))
        return tuple(number for stat in stats if stat for number in (stat.st_ino, stat.st_size, stat.st_mtime_ns))

    def sessions(self, session: str | None = None) -> dict[str, FileStat]:
        """Return the states of all sessions that have lines, or of one, by the names of their transcripts."""
        with self._reading() as (select, later):
            states = list(self._states(select, later, session))
        return {
            f"{name}.jsonl": stat for name, stat in states if "/" not in name and is_transcript_name(f"{name}.jsonl")
        }

    @abstractmethod
    def conversations(self) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
        """Return the conversations by session key, as `sessions.json` has them, and the keys of all sessions by id."""

    def lines(self, session: str, stat: FileStat, position: int, *, longest: int | None) -> Iterator[RawLine]:
        """Yield the lines of a session in the state `stat`, from a position on.

        Raises:
            TranscriptDamaged: they are in a cold archive that is damaged.
            Transient: they were rewritten or deleted meanwhile.
        """
        while position < stat.size and (lines := self._some_lines(session, stat, position, longest)):
            yield from lines
            position = lines[-1].end
        if position < stat.size:
            for line in self._moved_lines(session, position, longest):
                yield line
                position = line.end
        if position < stat.size:
            raise _rewritten(session)

    def next_position(self, stat: FileStat) -> int:
        """Return the position behind the last line that has its end, in the state `stat` of a session."""
        return stat.size

    def _some_lines(self, session: str, stat: FileStat, position: int, longest: int | None) -> list[RawLine]:
        """Return the next lines of a session, in one transaction."""
        from memory.transcripts.lines import MAX_LINE_BYTES

        lines: list[RawLine] = []
        read_bytes = 0
        with self._reading() as (select, later):
            most = MAX_LINE_BYTES if longest is None else longest
            for line in self._lines_in(select, later, session, stat, position, most):
                lines.append(line)
                read_bytes += line.size
                if read_bytes >= MOST_BYTES:
                    break
        return lines

    @abstractmethod
    def _states(self, select: Select, later: set[str], session: str | None) -> Iterator[tuple[str, FileStat]]:
        """Yield the ids and states of all sessions that have lines, or of one."""

    @abstractmethod
    def _lines_in(
        self, select: Select, later: set[str], session: str, stat: FileStat, position: int, most: int
    ) -> Iterator[RawLine]:
        """Yield up to MOST_EVENTS lines of a session, without the contents of those of more than `most` bytes."""

    def _moved_lines(self, session: str, position: int, longest: int | None) -> Iterator[RawLine]:  # noqa: ARG002 - most programs move none
        """Yield the lines of a session that were moved out of the tables."""
        yield from ()

    def _stat_of(self, ending: str) -> os.stat_result | None:
        """Return the stat of the file whose name has this ending; None without a regular one."""
        return stat_below(self.folder, (*self._parts[:-1], self._parts[-1] + ending), name=self.path)

    @contextmanager
    def _reading(self) -> Iterator[tuple[Select, set[str]]]:
        """Lend a transaction, and the names of the later parts of the layout that there are."""
        for ending in ("", "-wal", "-shm"):
            if self._stat_of(ending) is None:
                if os.path.lexists(self.path + ending):
                    raise DocumentRefused(f"{self.path}{ending} is a symbolic link or no regular file")
                if not ending:
                    raise DocumentGone(f"{self.path} is not there")
        later = set[str]()

        def begin(connection: apsw.Connection) -> None:
            connection.set_busy_timeout(_BUSY_MS)
            connection.execute("PRAGMA trusted_schema = OFF; BEGIN")
            later.update(str(name) for (name,) in connection.execute(self._later))
            connection.authorizer = partial(_authorize, self._columns)

        # SQLite refuses a link anywhere in the path, and the configured folder may lie behind one.
        path = Path(os.path.realpath(self.folder), *self._parts)
        try:
            with closing(_opened(path, begin)) as connection:
                yield connection.execute, later
        except (apsw.BusyError, apsw.LockedError, apsw.CantOpenError) as error:
            # The program removes files beside it when it ends.
            reason = f"{self.path} cannot be read now ({error}); it is read again later"
            raise Transient(f"{reason}; check its permissions if that lasts", retry_after=1.0) from error
        except (apsw.SQLError, apsw.AuthError) as error:
            raise DocumentUnreadable(
                f"{self.path} has a layout that this version of recalld does not read ({error}); update recalld"
            ) from error
        except (apsw.Error, UnicodeError) as error:
            raise DocumentUnreadable(f"{self.path} cannot be read: {error}") from error


@dataclass(frozen=True, slots=True)
class OpenClawDatabase(SessionDatabase):
    """Database of one agent of OpenClaw; `folder` is `agents/<id>`. Positions are the numbers of events."""

    _parts = ("agent", OPENCLAW_DATABASE)
    _columns = _OPENCLAW_COLUMNS
    _later = _LATER

    def conversations(self) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
        with self._reading() as (select, later):
            rows = list(select(_CONVERSATIONS, ()))
            archived = dict(select(_ARCHIVED_KEYS, ()) if "session_transcript_archives" in later else ())
            keys = archived | dict(select(_KEYS, ()))
        names = ("spawnedBy", "parentSessionKey", "heartbeatIsolatedBaseSessionKey")
        return {key: dict(zip(names, facts, strict=True)) for key, *facts in rows}, keys

    def _states(self, select: Select, later: set[str], session: str | None) -> Iterator[tuple[str, FileStat]]:
        cold = dict(select(_COLD, (session,)) if "session_transcript_cold_archives" in later else ())
        for name, updated_ms, generation, last_hot in select(_SESSIONS, (session,)):
            if isinstance(last := cold.get(name) if last_hot is None else last_hot, int):
                yield name, _stat(last + 1, updated_ms, generation)

    def _lines_in(
        self, select: Select, later: set[str], session: str, stat: FileStat, position: int, most: int
    ) -> Iterator[RawLine]:
        from memory.transcripts.lines import line_of

        generation = next(iter(select(_GENERATION, (session,))), (None,))[0]
        if _stat(0, 0, generation).inode != stat.inode:
            raise _rewritten(session)
        bounds = session, position, stat.size, most, MOST_EVENTS
        rows = select(_EVENTS, (*bounds, _COMPRESSED_BYTES)) if "event_zstd" in later else select(_TEXTS, bounds)
        for seq, size, text, unpacked_size, packed in rows:
            data = text if packed is None else _unpacked(packed, unpacked_size)
            yield line_of(data, size or 0, start=seq, end=seq + 1, longest=most)

    def _moved_lines(self, session: str, position: int, longest: int | None) -> Iterator[RawLine]:
        from memory.transcripts.lines import decompressed, lines_in, read_lines

        with self._reading() as (select, later):
            is_cold = "session_transcript_cold_archives" in later
            name, blob = next(iter(select(_COLD_EVENTS, (session, _COLD_BYTES)) if is_cold else ()), ("", None))
        if blob is not None:
            records = lines_in(decompressed(lambda size, start: blob[start : start + size], len(blob)))
            yield from _events_among(records, position, longest)
        elif _COLD_NAME.fullmatch(name):
            try:
                with opened_below(self.folder, ("sessions", "cold", name), name=name) as descriptor:
                    records = read_lines(descriptor, offset=0, end=None, compressed=True)
                    yield from _events_among(records, position, longest)
            except DocumentGone as error:
                raise DocumentUnreadable(f"{error}: the events of session {session} are in it; restore it") from error


@dataclass(frozen=True, slots=True)
class OpenCodeDatabase(SessionDatabase):
    """Database of OpenCode in its data folder. A message has two positions, its beginning and its end.

    The last answer grows until it is completed, and a request gets its parts one by one until an answer follows. The
    first of these messages is a last line without an end, and those behind it wait.
    """

    _parts = (OPENCODE_DATABASE,)
    _columns = _OPENCODE_COLUMNS

    def conversations(self) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
        with self._reading() as (select, _):
            keys = {session: _CHILD_KEY if is_child else _OWNER_KEY for session, is_child in select(_CHILDREN, ())}
        return {_CHILD_KEY: {"spawnedBy": _OWNER_KEY}}, keys

    def next_position(self, stat: FileStat) -> int:
        return stat.size - stat.size % 2

    def _states(self, select: Select, later: set[str], session: str | None) -> Iterator[tuple[str, FileStat]]:  # noqa: ARG002 - all versions are alike
        for name, messages, answered, is_completed, updated_ms in select(_OPENCODE_SESSIONS, (session,)):
            ended = answered if is_completed or not answered else answered - 1
            yield name, _stat(2 * ended + (messages > ended), updated_ms, name)

    def _lines_in(
        self,
        select: Select,
        later: set[str],  # noqa: ARG002 - all versions are alike
        session: str,
        stat: FileStat,
        position: int,
        most: int,
    ) -> Iterator[RawLine]:
        from memory.transcripts.lines import line_of

        messages = min(MOST_EVENTS, (stat.size - position + 1) // 2)
        for (text,) in select(_MESSAGES, (session, position // 2, messages)):
            end = min(position + 2, stat.size)
            line = line_of(text, len(text), start=position, end=end, longest=most)
            yield line if end == position + 2 else replace(line, has_line_end=False)
            position = end


@dataclass(frozen=True, slots=True)
class OpenSession(OpenTranscript):
    """Session of a database."""

    database: SessionDatabase
    session: str

    @property
    def grows(self) -> bool:
        return True

    def lines(self, position: int = 0, *, longest: int | None = None) -> Iterator[RawLine]:
        return self.database.lines(self.session, self.stat, position, longest=longest)

    def next_position(self) -> int:
        return self.database.next_position(self.stat)

    def changed(self) -> bool:
        return self.database.sessions(self.session).get(f"{self.session}.jsonl") != self.stat


def database_of(folder: str) -> SessionDatabase | None:
    """Return the database that a folder of sessions stands for: OpenClaw's, there or not, or OpenCode's in it."""
    path = Path(folder)
    if path.name == "sessions" and path.parent.parent.name == "agents":
        return OpenClawDatabase(str(path.parent))
    return OpenCodeDatabase(folder) if os.path.lexists(join(folder, OPENCODE_DATABASE)) else None


def is_of_rows(stat: FileStat) -> bool:
    """Return True for the state of a document that is rows of a database."""
    # Some file systems have inodes of 64 bits, but files have change times.
    return stat.inode >> _ROWS_BIT == 1 and not stat.ctime_ns


def _stat(size: int, changed_ms: int, generation: str | None) -> FileStat:
    """Return the state of a document: its next number, the time of its last change, the digest of its generation."""
    digest = int.from_bytes(blake2b((generation or "").encode(), digest_size=7).digest())
    return FileStat(min(size, _END), min(max(changed_ms, 0) * 1_000_000, LATEST_NS), 1 << _ROWS_BIT | digest)


def _authorize(
    columns: Mapping[str, set[str]],
    action: int,
    table: str | None,
    column: str | None,
    _database: str | None,
    view: str | None,
) -> int:
    """Let a statement read the columns of sessions alone, and of tables, no views."""
    if action == apsw.SQLITE_READ and view is None:
        return apsw.SQLITE_OK if column in columns.get(table or "", ()) else apsw.SQLITE_DENY
    return apsw.SQLITE_OK if action in (apsw.SQLITE_SELECT, apsw.SQLITE_FUNCTION) else apsw.SQLITE_DENY


def _opened(path: Path, begin: Callable[[apsw.Connection], None]) -> apsw.Connection:
    """Open a database. The memory that the program shares with its own processes is not written."""
    if path.with_name(f"{path.name}-shm").exists():
        flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_NOFOLLOW | apsw.SQLITE_OPEN_URI
        return opened(f"{path.as_uri()}?readonly_shm=1", flags, begin)
    return open_read_only(path, begin, flags=apsw.SQLITE_OPEN_NOFOLLOW)


def _rewritten(session: str) -> Transient:
    return Transient(f"session {session} was written anew while it was read; it is read again later", retry_after=1.0)


def _unpacked(packed: bytes, size: int) -> bytes:
    """Return a decompressed event of at most `size` bytes; if it is damaged, the bytes as they are stored: no JSON."""
    from memory.transcripts.lines import unpacked

    event = unpacked(packed, most=min(size, _COMPRESSED_BYTES))
    return event if event is not None else packed


def _events_among(records: Iterator[RawLine], position: int, longest: int | None) -> Iterator[RawLine]:
    """Yield the events of a cold archive's records: {"kind": "event", "row": {"seq": ..., "event_json": ...}}."""
    from memory.transcripts.lines import line_of

    for record in records:
        try:
            entry: Any = json.loads(record.data or b"")
            row = entry["row"] if entry["kind"] == "event" else None
            seq, event = (int(row["seq"]), str(row["event_json"]).encode()) if row else (-1, b"")
        except (ValueError, KeyError, TypeError, RecursionError):
            continue  # if it was an event, the document is not whole, and its reader notices
        if position <= seq < _END:
            yield line_of(event, len(event), start=seq, end=seq + 1, longest=longest)
