"""Health of processes and parts, kept in the broker."""

from __future__ import annotations
