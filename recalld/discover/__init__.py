"""Memories on this machine: of OpenClaw, Claude Code, Codex and Obsidian, and plain folders of notes."""

from __future__ import annotations
