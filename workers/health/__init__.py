"""Health of processes and parts, as the broker keeps it."""

from __future__ import annotations
