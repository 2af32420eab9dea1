"""The front door: the command line, `up`, and `recalld.client` for agents' runtimes.

Thin: it hands rooms to each other.
"""

from __future__ import annotations
