"""Limits and claims that all workers share: rate, cool-down, and who embeds a text."""

from __future__ import annotations
