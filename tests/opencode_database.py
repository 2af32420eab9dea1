"""Databases of sessions as OpenCode 1.18.33 makes them, for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import apsw

#: The columns of sessions that are read and some that are not, and a table that holds credentials.
SCHEMA = """
PRAGMA journal_mode = WAL;
CREATE TABLE credential (id text PRIMARY KEY, value text NOT NULL);
INSERT INTO credential VALUES ('primary', 'credentialword');
CREATE TABLE session (
  id text PRIMARY KEY,
  project_id text NOT NULL,
  parent_id text,
  directory text NOT NULL,
  title text NOT NULL,
  time_created integer NOT NULL,
  time_updated integer NOT NULL
);
CREATE TABLE message (
  id text PRIMARY KEY,
  session_id text NOT NULL REFERENCES session(id) ON DELETE CASCADE,
  time_created integer NOT NULL,
  time_updated integer NOT NULL,
  data text NOT NULL
);
CREATE TABLE part (
  id text PRIMARY KEY,
  message_id text NOT NULL REFERENCES message(id) ON DELETE CASCADE,
  session_id text NOT NULL,
  time_created integer NOT NULL,
  time_updated integer NOT NULL,
  data text NOT NULL
);
CREATE INDEX message_session_time_created_id_idx ON message (session_id, time_created, id);
CREATE INDEX part_message_id_id_idx ON part (message_id, id);
"""


class OpenCodeDatabase:
    """The database in a folder, with a connection that writes like the program."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "opencode.db"
        self.connection = apsw.Connection(str(self.path))
        self.connection.execute(SCHEMA).fetchall()
        self._now = 1_770_000_000_000

    def close(self) -> None:
        self.connection.close()

    def add(self, session: str, *, parent: str | None = None) -> None:
        """Add a session without messages."""
        now = self._tick()
        self.connection.execute(
            "INSERT INTO session VALUES (?, 'global', ?, '/work', 'A title', ?, ?)", (session, parent, now, now)
        )

    def say(self, session: str, role: str, *texts: str, is_completed: bool = True, **data: Any) -> str:
        """Add a message with a part for each text; return its id."""
        now = self._tick()
        time = {"created": now} | ({"completed": now + 1} if role == "assistant" and is_completed else {})
        message = f"msg_{now:x}"
        self.connection.execute(
            "INSERT INTO message VALUES (?, ?, ?, ?, ?)",
            (message, session, now, now, json.dumps({"role": role, "time": time, **data})),
        )
        for text in texts:
            self.add_part(message, {"type": "text", "text": text})
        return message

    def add_part(self, message: str, data: object) -> None:
        """Add a part to a message."""
        now = self._tick()
        self.connection.execute(
            "INSERT INTO part SELECT ?, id, session_id, ?, ?, ? FROM message WHERE id = ?",
            (f"prt_{now:x}", now, now, json.dumps(data), message),
        )

    def complete(self, message: str) -> None:
        """Complete an answer."""
        self.connection.execute(
            "UPDATE message SET data = json_set(data, '$.time.completed', ?1), time_updated = ?1 WHERE id = ?2",
            (self._tick(), message),
        )

    def _tick(self) -> int:
        self._now += 1000
        return self._now
