"""Search of one agent's memory: vectors and keywords, their fusion, and the passages of an answer. Read-only."""

from __future__ import annotations
