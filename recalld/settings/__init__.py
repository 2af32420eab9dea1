"""Settings of one process: read from file, environment and flags, validated, shown and documented."""

from __future__ import annotations
