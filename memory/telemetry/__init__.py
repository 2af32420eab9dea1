"""Spans, metrics and the telemetry port of a process."""

from __future__ import annotations
