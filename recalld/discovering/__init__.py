"""What memories there are on this machine: OpenClaw, Claude Code, Codex, and plain folders of notes."""

from __future__ import annotations
