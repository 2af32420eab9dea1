"""Databases of sessions as OpenClaw 2026.9.6 makes them (its schema 23), for tests."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import apsw

if sys.version_info >= (3, 14):
    from compression.zstd import compress
else:
    from backports.zstd import compress

#: Tables of sessions, and a table of credentials.
SCHEMA = """
PRAGMA journal_mode = WAL;
PRAGMA user_version = 23;
CREATE TABLE auth_profile_store (store_key TEXT NOT NULL PRIMARY KEY, store_json TEXT NOT NULL) STRICT;
INSERT INTO auth_profile_store VALUES ('primary', 'credentialword');
CREATE TABLE session_nodes (
  session_key TEXT NOT NULL PRIMARY KEY,
  current_session_id TEXT NOT NULL,
  entry_json TEXT NOT NULL,
  updated_at INTEGER NOT NULL,
  created_via TEXT,
  parent_session_key TEXT,
  spawned_by TEXT,
  fork_source_session_id TEXT
) STRICT;
CREATE TABLE session_windows (
  session_id TEXT NOT NULL PRIMARY KEY,
  session_key TEXT NOT NULL,
  previous_session_id TEXT,
  reason TEXT,
  session_scope TEXT NOT NULL DEFAULT 'conversation',
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  transcript_updated_at INTEGER DEFAULT NULL,
  chat_type TEXT,
  channel TEXT,
  FOREIGN KEY (session_key) REFERENCES session_nodes(session_key) ON DELETE CASCADE
) STRICT;
CREATE TABLE transcript_events (
  session_id TEXT NOT NULL,
  seq INTEGER NOT NULL,
  event_json TEXT,
  created_at INTEGER NOT NULL,
  event_zstd BLOB,
  event_utf8_bytes INTEGER CHECK (event_utf8_bytes IS NULL OR event_utf8_bytes >= 0),
  navigation_json TEXT,
  PRIMARY KEY (session_id, seq),
  FOREIGN KEY (session_id) REFERENCES session_windows(session_id) ON DELETE CASCADE,
  CHECK (
    (event_json IS NOT NULL AND event_zstd IS NULL)
    OR (
      event_json IS NULL AND event_zstd IS NOT NULL
      AND event_utf8_bytes IS NOT NULL
      AND event_utf8_bytes BETWEEN 1 AND 4194304
      AND length(event_zstd) BETWEEN 1 AND 4194304
      AND navigation_json IS NOT NULL
    )
  )
) STRICT;
CREATE TABLE transcript_rewrite_watermarks (
  session_id TEXT NOT NULL PRIMARY KEY,
  generation TEXT NOT NULL,
  updated_at INTEGER NOT NULL,
  FOREIGN KEY (session_id) REFERENCES session_windows(session_id) ON DELETE CASCADE
) STRICT;
CREATE TABLE session_transcript_archives (
  session_id TEXT NOT NULL,
  generation TEXT NOT NULL,
  session_key TEXT NOT NULL,
  reason TEXT NOT NULL CHECK (reason IN ('deleted', 'reset')),
  encoding TEXT NOT NULL CHECK (encoding IN ('identity', 'zstd')),
  archive_blob BLOB NOT NULL,
  archive_sha256 TEXT NOT NULL CHECK (length(archive_sha256) = 64),
  archive_name TEXT NOT NULL UNIQUE,
  created_at INTEGER NOT NULL,
  published_at INTEGER,
  PRIMARY KEY (session_id, generation)
) STRICT;
CREATE TABLE session_transcript_cold_archives (
  session_id TEXT NOT NULL PRIMARY KEY,
  generation TEXT NOT NULL,
  archive_name TEXT NOT NULL UNIQUE,
  archive_sha256 TEXT NOT NULL CHECK (length(archive_sha256) = 64),
  event_count INTEGER NOT NULL CHECK (event_count >= 1),
  raw_bytes INTEGER NOT NULL CHECK (raw_bytes >= 0),
  archive_bytes INTEGER NOT NULL CHECK (archive_bytes >= 0),
  last_seq INTEGER NOT NULL,
  archived_at INTEGER NOT NULL,
  storage TEXT NOT NULL CHECK (storage IN ('file', 'sqlite')),
  archive_blob BLOB,
  FOREIGN KEY (session_id) REFERENCES session_windows(session_id) ON DELETE CASCADE
) STRICT;
"""


class OpenClawDatabase:
    """The database of `agents/<id>`, with a connection that writes like the program."""

    def __init__(self, agent: Path, *, schema: str = SCHEMA) -> None:
        self.agent, self.path = agent, agent / "agent" / "openclaw-agent.sqlite"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.connection = apsw.Connection(str(self.path))
        self.connection.execute("PRAGMA foreign_keys = ON")
        self.connection.execute(schema).fetchall()
        self._now, self._generation = 1_770_000_000_000, 0

    @property
    def generation(self) -> str:
        """The generation that was given last."""
        return f"{'c0de' * 6}{self._generation:08x}"

    def close(self) -> None:
        self.connection.close()

    def add(self, session: str, events: Iterable[bytes], *, key: str = "agent:main:main", spawned_by: str = "") -> None:
        """Add a session with these lines as its events."""
        now = self._tick()
        self.connection.execute(
            "INSERT OR IGNORE INTO session_nodes (session_key, current_session_id, entry_json, updated_at, spawned_by)"
            " VALUES (?, ?, '{}', ?, nullif(?, ''))",
            (key, session, now, spawned_by),
        )
        self.connection.execute(
            "INSERT INTO session_windows (session_id, session_key, created_at, updated_at) VALUES (?, ?, ?, ?)",
            (session, key, now, now),
        )
        self.rotate(session)
        self.append(session, events)

    def append(self, session: str, events: Iterable[bytes], *, first: int | None = None, zstd: bool = False) -> None:
        """Append lines to a session in one transaction, from the next number on."""
        with self.connection:
            [(last,)] = self.connection.execute(
                "SELECT max(seq) FROM transcript_events WHERE session_id = ?", (session,)
            )
            start = first if first is not None else 0 if last is None else int(last) + 1
            for seq, event in enumerate(events, start):
                text = event.rstrip(b"\n")
                row = (None, compress(text), "{}") if zstd else (text.decode(), None, None)
                self.connection.execute(
                    "INSERT INTO transcript_events"
                    " (event_json, event_zstd, navigation_json, session_id, seq, created_at, event_utf8_bytes)"
                    " VALUES (?, ?, ?, ?, ?, 1, ?)",
                    (*row, session, seq, len(text)),
                )
            self.touch(session)

    def touch(self, session: str) -> None:
        """Move the time of a session's last change."""
        self.connection.execute(
            "UPDATE session_windows SET updated_at = ?1, transcript_updated_at = ?1 WHERE session_id = ?2",
            (self._tick(), session),
        )

    def rotate(self, session: str) -> None:
        """Give a session another generation, as every rewriting does."""
        self._generation += 1
        self.connection.execute(
            "INSERT OR REPLACE INTO transcript_rewrite_watermarks VALUES (?, ?, ?)",
            (session, self.generation, self._now),
        )

    def rewrite(self, session: str, events: Sequence[bytes]) -> None:
        """Put these lines in place of all events."""
        with self.connection:
            self.connection.execute("DELETE FROM transcript_events WHERE session_id = ?", (session,))
            self.rotate(session)
            self.append(session, events)

    def delete(self, session: str, *, archived_as: str | None = None) -> None:
        """Delete a session, and archive it as the program does: a row, and a file of the same name."""
        events = self.events(session)
        with self.connection:
            if archived_as is not None:
                name = f"{session}.jsonl.{archived_as}.2026-02-04T10-00-00.000Z.{self.generation}.zst"
                blob = compress(b"".join(text + b"\n" for _, text in events))
                self.connection.execute(
                    "INSERT INTO session_transcript_archives"
                    " SELECT session_id, ?, session_key, ?, 'zstd', ?, ?, ?, 1, 1 FROM session_windows"
                    " WHERE session_id = ?",
                    (self.generation, archived_as, blob, hashlib.sha256(blob).hexdigest(), name, session),
                )
                (self.agent / "sessions").mkdir(exist_ok=True)
                (self.agent / "sessions" / name).write_bytes(blob)
            self.connection.execute("DELETE FROM session_windows WHERE session_id = ?", (session,))

    def cool(self, session: str, *, embedded: bool = False) -> Path:
        """Move the events of a session into a cold archive; return its file."""
        events = self.events(session)
        records = [{"kind": "header", "version": 1, "sessionId": session, "generation": "g"}]
        records += [
            {"kind": "event", "row": {"seq": seq, "event_json": text.decode(), "created_at": 1}} for seq, text in events
        ]
        records += [{"kind": "index", "row": {"indexed_seq": 1}}]
        blob = compress(b"".join(json.dumps(record).encode() + b"\n" for record in records))
        digest = hashlib.sha256(blob).hexdigest()
        file = self.agent / "sessions" / "cold" / f"{digest}.jsonl.zst"
        if not embedded:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(blob)
        with self.connection:
            self.connection.execute(
                "INSERT INTO session_transcript_cold_archives VALUES (?, 'g', ?, ?, ?, 0, ?, ?, 1, ?, ?)",
                (session, file.name, digest, len(events), len(blob), events[-1][0])
                + (("sqlite", blob) if embedded else ("file", None)),
            )
            self.connection.execute("DELETE FROM transcript_events WHERE session_id = ?", (session,))
        return file

    def events(self, session: str) -> list[tuple[int, bytes]]:
        """Return the numbers and texts of a session's events that are not compressed."""
        rows = self.connection.execute(
            "SELECT seq, CAST(event_json AS BLOB) FROM transcript_events WHERE session_id = ? ORDER BY seq", (session,)
        )
        return [(int(seq), bytes(text)) for seq, text in rows]  # type: ignore[arg-type]

    def _tick(self) -> int:
        self._now += 1000
        return self._now
