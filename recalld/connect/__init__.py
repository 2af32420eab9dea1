"""Connections of programs to recalld's memory: the MCP server, hooks and agents that `recalld connect` puts in."""

from __future__ import annotations

from recalld.connect.connections import Change, Piece, Plan, plan_removal, recorded_pieces

__all__ = ["Change", "Piece", "Plan", "plan_removal", "recorded_pieces"]
