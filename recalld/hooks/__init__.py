"""Hooks of agents' programs: taking one, and the configuration that sends them."""

from __future__ import annotations
