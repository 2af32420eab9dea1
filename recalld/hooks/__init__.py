"""Hooks of agents' programs: their installation, and the command that takes one."""

from __future__ import annotations
