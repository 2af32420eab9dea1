"""The store in PostgreSQL, with pgvector: one row is one chunk, and row-level security parts the tenants."""

from __future__ import annotations
