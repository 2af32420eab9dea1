"""Ranking of the chunks that a query found, and the passages shown of them. Pure."""

from __future__ import annotations
