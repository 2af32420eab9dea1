"""Searching one agent's memory: both sides, how they are put together, and what an answer shows. Reading only."""

from __future__ import annotations
