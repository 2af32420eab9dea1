"""Dramatiq middlewares."""

from __future__ import annotations
