"""Long-running processes: `recalld up`, the processes that it supervises, and the life of each."""

from __future__ import annotations
