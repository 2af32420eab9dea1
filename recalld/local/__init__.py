"""Answers of this process itself, for commands that find no running service."""

from __future__ import annotations
