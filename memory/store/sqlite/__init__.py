"""The store in SQLite, with FTS5 for keywords and the tables of sqlite-vec for vectors."""

from __future__ import annotations
