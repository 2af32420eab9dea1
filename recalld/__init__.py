"""The front door: the command line, `up`, and `recalld.client` for agents' runtimes."""

from __future__ import annotations
